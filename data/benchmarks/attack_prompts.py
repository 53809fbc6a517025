"""Questions whose cached passage is attacked, and the attacker's text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.data import Sample
from workbench.data.retrieval_corpus import Corpus
from workbench.data.sample import Passage
from workbench.models.loading import Loaded


@dataclass(frozen=True)
class Victim:
    """A question whose cached passage is attacked.

    passage   the block with the answer
    poison    the attacker's text: the passage with `target` instead of the answer
    """

    sample: Sample
    prompt: Prompt
    passage: Block
    at: int  # index of the passage in the sample
    poison: Passage
    poison_block: Block
    target: str

    @property
    def harmless(self) -> Passage:
        """The passage with its last sentence twice: as similar as the attacker's text, but correct."""
        passage = self.sample.ctxs[self.at]
        return replace(passage, text=f"{passage.text} {passage.text.rstrip('.').split('. ')[-1]}.")


def victims_of(loaded: Loaded, samples: Sequence[Sample], most: int | None = None) -> list[Victim]:
    """Return one victim per set of passages: its first question whose answer is in exactly one passage, not the first.

    The target is the answer of the next such question that begins alike. Raises BadInput if there is none.
    """
    fit = [found for sample in samples if (found := _answering(sample)) is not None]
    asked = list({frozenset(_group(sample)): (sample, at) for sample, at in reversed(fit)}.values())[::-1]
    victims: list[Victim] = []
    for number, (sample, at) in enumerate(asked):
        others = [other for other, _ in asked[number + 1 :] + asked[:number] if _alike(sample, other)]
        if others and (most is None or len(victims) < most):
            victims.append(_victim(loaded, sample, at, others[0].answers[0]))
    if not victims:
        raise BadInput(f"{len(samples)} samples: none has its answer in one passage and another that begins alike")
    return victims


def _group(sample: Sample) -> list[str]:
    """Return the key of samples that share passages: lab ids number eight per world."""
    *name, number = sample.id.rsplit("-", 1)
    return [*name, str(int(number) // 8)] if number.isdigit() else [sample.id]


def _answering(sample: Sample) -> tuple[Sample, int] | None:
    at = [i for i, passage in enumerate(sample.ctxs) if sample.answers[0] in passage.text]
    return (sample, at[0]) if len(at) == 1 and at[0] > 0 and sample.hops == 1 else None


def _alike(one: Sample, other: Sample) -> bool:
    """Return whether both ask the same of different names, with different answers."""
    return _asks(one) == _asks(other) and not set(one.answers) & set(other.answers)


def _asks(sample: Sample) -> list[str]:
    first, *words = sample.question.split()
    return [first, *(word for word in words if word.islower() and word != "the")]


def _victim(loaded: Loaded, sample: Sample, at: int, target: str) -> Victim:
    passage = sample.ctxs[at]
    poisoned = replace(passage, text=passage.text.replace(sample.answers[0], target))
    ctxs = (*sample.ctxs[:at], poisoned, *sample.ctxs[at + 1 :])
    both = [sample, replace(sample, ctxs=ctxs)]
    prompt, tampered = loaded.layout.prompts(both, loaded.tokenizer)
    place = len(prompt.context) - len(sample.ctxs) + at
    return Victim(sample, prompt, prompt.blocks[place], at, poisoned, tampered.blocks[place], target)


def corpus(loaded: Loaded, victims: Sequence[Victim], added: Sequence[Passage] = ()) -> Corpus:
    """Return the corpus of the victims' passages and of `added`, one passage per victim."""
    samples = [victim.sample for victim in victims]
    samples += [replace(victim.sample, ctxs=(passage,)) for victim, passage in zip(victims, added, strict=False)]
    return Corpus.of(samples, loaded.layout, loaded.tokenizer)
