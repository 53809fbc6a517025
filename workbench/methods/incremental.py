"""Revise a prompt: only changed blocks are encoded.

Block-Attention, section 2.5 and appendix A: between two states of a game, two turns of a chat or two edits of a
document, most blocks stay the same. Blocks are looked up by content, so they may be edited, inserted, deleted or
reordered: stored blocks are rerotated to their new positions, the others are encoded.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.core.utils import annotations
from workbench.core.utils.annotations import Count
from workbench.engine.assembly import assemble
from workbench.engine.forward import PrefillRequest
from workbench.models.spec import spec_for
from workbench.store import Store, fetch, fingerprint, key_of
from workbench.store.fetching import checked
from workbench.store.views import RecordingStore

ReuseStatus = Literal["kept", "moved", "recalled", "encoded"]
REUSE_STATUSES: tuple[ReuseStatus, ...] = get_args(ReuseStatus)


@dataclass(frozen=True)
class Revision:
    """A prompt with the KV of its context, and how each block was obtained.

    statuses  of every context block: "kept" at its position in the previous prompt, "moved" from another position in
              it, "recalled" from the store though not in the previous prompt (or repeated within this prompt), or
              "encoded" now
    shifts    tokens by which every block moved since the previous prompt; None for a block that was not in it
    prefix    leading tokens equal to those of the previous prompt, which a prefix cache would reuse
    """

    prompt: Prompt
    kv: KV
    statuses: tuple[ReuseStatus, ...]
    shifts: tuple[int | None, ...]
    prefix: int

    @property
    def request(self) -> PrefillRequest:
        """The remaining work: the question over the context."""
        return PrefillRequest(self.prompt.tokens, Plan(self.prompt.question), self.kv)

    def blocks(self, status: ReuseStatus) -> int:
        """Count the context blocks with this status."""
        return self.statuses.count(status)

    def tokens(self, status: ReuseStatus) -> int:
        """Count the tokens of the blocks with this status."""
        return sum(len(block) for block, had in zip(self.prompt.context, self.statuses, strict=True) if had == status)

    @property
    def computed(self) -> int:
        """Number of computed tokens: encoded blocks and the question."""
        return self.tokens("encoded") + len(self.prompt.question)


@annotations.checked
def revise(
    model: PreTrainedModel, prompt: Prompt, store: Store, before: Prompt | None = None, reserve: Count = 0
) -> Revision:
    """Assemble `prompt` from `store`, and encode missing blocks in one pass.

    `before` is the previous prompt, for the report only; reuse depends on the store. `reserve` is capacity for new
    tokens. Raises BadInput for a prompt that does not fit the model, before any work.
    """
    spec_for(model, [prompt.tokens])
    recording = RecordingStore(checked(store))
    cached = fetch(model, prompt.context, recording)
    kv = assemble(model, prompt, cached, reserve=reserve)
    model_key = fingerprint(model)
    fresh = [key_of(model_key, model.dtype, block) in recording.stored for block in prompt.context]
    return Revision(prompt, kv, *_compare(prompt, before, fresh), _prefix(prompt, before))


def _compare(
    prompt: Prompt, before: Prompt | None, fresh: list[bool]
) -> tuple[tuple[ReuseStatus, ...], tuple[int | None, ...]]:
    old_starts: dict[Block, list[int]] = {}
    for block, start in zip(before.context, before.starts, strict=False) if before else ():
        old_starts.setdefault(block, []).append(start)
    statuses: list[ReuseStatus] = []
    shifts: list[int | None] = []
    seen: set[Block] = set()
    for block, start, new in zip(prompt.context, prompt.starts, fresh, strict=False):
        shift = min((start - old for old in old_starts.get(block, ())), key=abs, default=None)
        shifts.append(shift)
        known: ReuseStatus = "recalled" if shift is None else "moved" if shift else "kept"
        statuses.append("encoded" if new and block not in seen else known)
        seen.add(block)
    return tuple(statuses), tuple(shifts)


def _prefix(prompt: Prompt, before: Prompt | None) -> int:
    """Return the length of the common prefix, without the prompt's last token, which must be computed."""
    if before is None:
        return 0
    most = min(len(prompt) - 1, len(before))
    same = prompt.tokens[:most] == before.tokens[:most]
    return most if bool(same.all()) else int(same.int().argmin())
