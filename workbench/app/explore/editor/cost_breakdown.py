"""What an answer took: which rows were computed, reused and shifted, and what was paid for them."""

from typing import Any

from workbench.app.explore.editor.heat import Recorded
from workbench.core.blocks import Prompt
from workbench.core.plan import Pass
from workbench.methods import ReadyRequest
from workbench.methods.modes.reuse import Reuse
from workbench.methods.request_report import WatchedStore, receipts_of
from workbench.metrics import cost


def bill(
    prompt: Prompt,
    ready: ReadyRequest,
    watched: WatchedStore,
    method: Reuse,
    seconds: float,
    shape: cost.ModelShape,
    chosen: Recorded | None = None,
) -> dict[str, Any]:
    """Return rows by what became of them, operations and seconds to the first token, beside those of full attention.

    A token that is encoded now and recomputed counts as recomputed in `rows`, and twice in `computed`. Operations are
    those over the tiles that a sparse method chose, without its choosing, which has `seconds` of its own on a CPU.
    """
    (receipt,) = receipts_of([prompt], [ready], watched.lookups, method.positions)
    rows = dict.fromkeys(("question", "recomputed", "encoded", "shifted", "reused"), 0)
    rows["question"] = receipt.question
    blocks = []
    for block in receipt.blocks:
        status = "encoded" if block.status == "encoded" else "shifted" if block.shift else "reused"
        rows["recomputed"] += block.recomputed
        rows[status] += block.tokens - block.recomputed
        blocks.append({"status": status, "shift": block.shift, "recomputed": block.recomputed})
    encoded = [block.tokens for block in receipt.blocks if block.status == "encoded"]
    spent = cost.of_passes(shape, ready.passes, ready.reused).flops
    kept = chosen.kept(len(shape.windows)) if chosen else 1.0
    spent -= (1 - kept) * cost.of_passes(shape, ready.passes[-1:], 0).attention
    full = cost.of_passes(shape, [Pass(range(len(prompt)), len(prompt))], 0).flops
    encoding = cost.encoding(shape, encoded).flops if encoded else 0.0
    return {
        "rows": rows,
        "blocks": blocks,
        "length": len(prompt),
        "computed": ready.computed + sum(encoded),
        "flops": {"method": spent + encoding, "encoding": encoding, "full": full},
        "seconds": {
            "method": seconds,
            "encoding": float(watched.seconds.get("encode", 0.0)),
            "choosing": chosen.seconds if chosen else 0.0,
        },
        "kept": kept,
    }
