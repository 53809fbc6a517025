"""Request reports (receipts): reused blocks and their tiers, misses with reasons, and stage times."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from time import perf_counter
from typing import Any, Literal

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.methods import ReadyRequest
from workbench.store import Store
from workbench.store.misses import Miss, identity_of, miss_reason

Status = Literal["reused", "encoded", "computed"]
STAGES = ("wait", "load", "encode", "store", "place", "prefill", "decode")


@dataclass(frozen=True)
class BlockReceipt:
    """Report of one context block.

    status       "reused": found in the store; "encoded": missed, encoded and stored; "computed": not looked up,
                 computed within the prompt
    tier, bytes  tier of the hit, and how many bytes were read from it
    shift        positions by which its keys were rerotated
    recomputed   number of its tokens that were recomputed over the prompt
    reason       reason of the miss
    """

    label: str
    tokens: int
    status: Status
    tier: str = ""
    bytes: int = 0
    shift: int = 0
    recomputed: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Receipt:
    """Report of one request.

    question   number of its question tokens, which are computed
    seconds    {stage: seconds} of its whole batch: wait (queued), load (reading blocks), encode (missing blocks), store
               (writing them), place (selection and assembly), prefill (to the first token), decode. On a GPU a stage
               ends when its kernels have been launched
    batch      number of requests that were computed together
    also       number of look-ups of the batch for blocks that are not in its prompts, such as neighbours
    """

    blocks: tuple[BlockReceipt, ...]
    question: int
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    batch: int = 1
    also: int = 0

    def count(self, status: Status) -> int:
        """Return how many blocks have this status."""
        return sum(block.status == status for block in self.blocks)

    @property
    def rerotated(self) -> int:
        """Number of reused blocks whose keys were rerotated."""
        return sum(block.status != "computed" and block.shift != 0 for block in self.blocks)

    @property
    def recomputed(self) -> int:
        """Number of tokens of cached blocks that were recomputed."""
        return sum(block.recomputed for block in self.blocks)

    @property
    def bytes(self) -> dict[str, int]:
        """{tier: bytes read}."""
        read = Counter[str]()
        for block in self.blocks:
            if block.tier:
                read[block.tier] += block.bytes
        return dict(read)

    @property
    def misses(self) -> dict[str, int]:
        """{reason: number of missed blocks}."""
        return dict(Counter(block.reason.partition(":")[0] for block in self.blocks if block.reason).most_common())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values for `from_json`; empty fields of blocks are omitted."""
        blocks = [{k: v for k, v in asdict(b).items() if v or k in ("label", "tokens", "status")} for b in self.blocks]
        return asdict(self) | {"blocks": blocks, "seconds": dict(self.seconds)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Receipt":
        """Parse the result of `to_json`. Raises BadInput for other values."""
        try:
            blocks = tuple(BlockReceipt(**block) for block in values["blocks"])
            return cls(**{**values, "blocks": blocks})
        except (TypeError, KeyError) as problem:
            raise BadInput(f"this is no receipt: {problem}") from None

    def __str__(self) -> str:
        read = ", ".join(f"{size / 1e6:,.1f} MB from {tier}" for tier, size in self.bytes.items()) or "nothing read"
        missed = ", ".join(f"{count} {reason}" for reason, count in self.misses.items())
        times = ", ".join(f"{stage} {self.seconds[stage] * 1e3:.1f} ms" for stage in STAGES if stage in self.seconds)
        parts = [
            f"{self.count('reused')} of {len(self.blocks)} blocks reused ({self.rerotated} shifted)",
            *([f"{self.count('encoded')} encoded ({missed})"] if self.count("encoded") else []),
            *([f"{self.count('computed')} computed"] if self.count("computed") else []),
            f"{self.recomputed} tokens recomputed, {self.question} of the question",
            read,
            (f"times of its batch of {self.batch}: " if times and self.batch > 1 else "") + times,
        ]
        return "; ".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        columns = ("label", "tokens", "status", "tier", "bytes", "shift", "recomputed", "reason")
        head = "".join(f"<th>{name}</th>" for name in columns)
        rows = (
            "".join(f"<td>{escape(str(getattr(block, name) or ''))}</td>" for name in columns) for block in self.blocks
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{escape(str(self))}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Lookup:
    """One look-up of a store: a hit has a `tier`, a miss has a `miss`."""

    key: str
    tier: str = ""
    bytes: int = 0
    miss: Miss | None = None


class WatchedStore:
    """Wrapper of `store` that records look-ups and their times.

    `seconds` has the stages load, encode (from the last look-up to the first `put`) and store.
    """

    def __init__(self, store: Store):
        self.store = store
        self.lookups: list[Lookup] = []
        self.seconds: dict[str, float] = defaultdict(float)
        self._last = perf_counter()

    def get(self, key: str) -> KV | None:
        """Return the KV under `key`, and record the look-up."""
        begin = perf_counter()
        near = key in self.store if hasattr(self.store, "__contains__") else True
        if hasattr(self.store, "find"):
            found = self.store.find(key)
            kv, tier = (None, "") if found is None else (found.kv, found.tier)
        else:
            kv = self.store.get(key)
            tier = _tier(self.store, near)
        self.seconds["load"] += perf_counter() - begin
        if kv is None:
            self.lookups.append(Lookup(key, miss=miss_reason(self.store, key)))
        else:
            self.lookups.append(Lookup(key, tier, kv.nbytes))
        self._last = perf_counter()
        return kv

    def resume(self) -> None:
        """Restart the clock: exclude the time so far."""
        self._last = perf_counter()

    def put(self, key: str, kv: KV) -> None:
        """Store a block; the time since the last look-up counts as encoding."""
        begin = perf_counter()
        self.seconds["encode"] += begin - self._last
        self.store.put(key, kv)
        self._last = perf_counter()
        self.seconds["store"] += self._last - begin

    def miss_reason(self, key: str) -> Miss:
        """Return why `get(key)` misses."""
        return miss_reason(self.store, key)


def receipts_of(
    prompts: Sequence[Prompt], ready: Sequence[ReadyRequest], lookups: Sequence[Lookup], positions: str = "re-encoded"
) -> list[Receipt]:
    """Return the receipt of every request of a batch, without times; `lookups` are those of the batch, in order."""
    by_block: dict[str, dict[str, list[Lookup]]] = {}
    for lookup in lookups:
        if (identity := identity_of(lookup.key)) is not None:
            by_block.setdefault(identity.block, {}).setdefault(lookup.key, []).append(lookup)
    contents = {block.content for prompt in prompts for block in prompt.context}
    final = {content: _final(keys) for content, keys in by_block.items() if content in contents}
    chosen = {content: list(by_block[content][key]) for content, key in final.items()}
    also = len(lookups) - sum(map(len, chosen.values()))
    receipts = []
    for prompt, request in zip(prompts, ready, strict=True):
        rows = request.request.plan.rows if len(request.request.tokens) == len(prompt) else prompt.question
        counts = prompt.block_of[rows].bincount(minlength=len(prompt.blocks)).tolist()
        blocks = []
        for block, start, count in zip(prompt.context, prompt.starts, counts, strict=False):
            listed = chosen.get(block.content, [])
            found = (listed.pop(0) if len(listed) > 1 else listed[0]) if listed else None
            blocks.append(_block_receipt(block.label, len(block), start, count, found, positions))
        receipts.append(Receipt(tuple(blocks), len(prompt.question), batch=len(prompts), also=also))
    return receipts


def with_seconds(receipt: Receipt, seconds: Mapping[str, float]) -> Receipt:
    """Return a receipt with the seconds of its stages; stages of zero duration are omitted."""
    return replace(receipt, seconds={stage: seconds[stage] for stage in STAGES if seconds.get(stage)})


def _final(keys: Mapping[str, list[Lookup]]) -> str:
    """Return the key under which prompts use a block: the one computed over the most other blocks.

    Preprocessing over neighbours also looks up the block's KV without them.
    """

    def context_of(key: str) -> tuple[bool, int]:
        identity = identity_of(key)
        assert identity is not None
        return bool(identity.over), identity.start

    return max(keys, key=context_of)


def _block_receipt(
    label: str, tokens: int, start: int, recomputed: int, lookup: Lookup | None, positions: str
) -> BlockReceipt:
    if lookup is None:
        return BlockReceipt(label, tokens, "computed")
    identity = identity_of(lookup.key)
    shift = start - identity.start if identity and positions == "re-encoded" else 0
    if lookup.miss is not None:
        return BlockReceipt(label, tokens, "encoded", shift=shift, recomputed=recomputed, reason=str(lookup.miss))
    return BlockReceipt(label, tokens, "reused", lookup.tier, lookup.bytes, shift, recomputed)


def _tier(store: Any, near: bool) -> str:
    """Return the tier of a hit in a store without tiers: "host" or "disk"."""
    if hasattr(store, "folder") or (not near and getattr(store, "behind", None) is not None):
        return "disk"
    return "host"
