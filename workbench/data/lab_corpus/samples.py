"""Samples of the lab corpus: questions over passages about invented people, companies and places (`world`)."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from workbench.core.errors import BadInput, not_allowed
from workbench.data.lab_corpus.style import PLAIN, Style, is_lab, style_named
from workbench.data.lab_corpus.world import KINDS, World, passages_of
from workbench.data.sample import Sample

__all__ = ["KINDS", "MOST_PASSAGES", "SHARE_OF", "Style", "is_lab", "samples", "style_named"]

SHARE_OF = {"single-hop": 0.25, "continuation": 0.35, "two-hop": 0.15, "comparison": 0.10, "order": 0.15}
MOST_PASSAGES = 40


def samples(
    n: int,
    seed: int,
    passages: int = 10,
    kinds: Sequence[str] | None = None,
    per_world: int = 8,
    style: Style = PLAIN,
) -> Iterator[Sample]:
    """Yield `n` questions over contexts of `passages` passages.

    A world has 1.5 times as many passages as a context and serves `per_world` samples, so passages recur from sample
    to sample as in a real index. Worlds of different seeds share nothing but the vocabulary. `kinds` are equally
    frequent; None: all kinds, by SHARE_OF.

    Raises BadInput for an unknown kind, a context outside 1 to 40 passages, or one too small for these kinds.
    """
    wanted = dict.fromkeys(kinds, 1.0) if kinds else SHARE_OF
    if unknown := [kind for kind in wanted if kind not in KINDS]:
        raise not_allowed("kind of question", unknown[0], KINDS)
    if not 1 <= passages <= MOST_PASSAGES:
        raise BadInput(f"passages is {passages}; a lab context has 1 to {MOST_PASSAGES} passages")
    if kinds and passages == 1 and set(kinds) != {"single-hop"}:
        raise BadInput(f"a context of 1 passage has single-hop questions only, not {', '.join(kinds)}")
    if passages == 1:
        wanted = {"single-hop": 1.0}
    for i in range(n):
        if i % per_world == 0:
            world = World(Random(f"lab {seed} {i // per_world}"), _size(passages), style)
        yield _sample(world, f"lab-{seed}-{i}", passages, wanted)


def _sample(world: World, name: str, passages: int, kinds: Mapping[str, float]) -> Sample:
    kind = world.rng.choices(tuple(kinds), tuple(kinds.values()))[0]
    for attempt in range(2000):
        context = world.context(passages)
        if len(passages_of(context)) == passages and (subjects := world.questions(context)[kind]):
            question = world.ask(kind, world.rng.choice(subjects))
            hops = 2 if kind in ("two-hop", "comparison") else 1
            return Sample(question.text, question.answers, passages_of(context), question.titles, hops, kind, id=name)
        if attempt % 10 == 9:  # a small world may have none: try a new one
            world = World(world.rng, _size(passages), world.style)
    raise BadInput(f"no {kind} question fits a context of {passages} passages")


def _size(passages: int) -> int:
    """Return the number of passages of a world for contexts of this size."""
    return passages + (passages + 1) // 2
