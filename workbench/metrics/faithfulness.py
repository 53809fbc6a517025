"""Faithfulness: which share of what an answer claims is supported by the passages it was given (Ragas; FusionRAG,
section 5.1.2). Exact on the lab corpus, whose facts can be read back; by a language model as judge on real questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.data import Sample, lab_facts
from workbench.engine.forward import PrefillRequest, empty, prefill_many
from workbench.methods.generation import generate
from workbench.metrics.answers import bootstrap, normalise

Verdict = Literal["supported", "of another subject", "in another place", "nowhere"]


class Judge(Protocol):
    """Says of every claim of every answer whether the sample's passages support it."""

    def __call__(self, samples: Sequence[Sample], answers: Sequence[str]) -> list[list[bool]]: ...


@dataclass(frozen=True)
class Faithfulness:
    """Mean over `n` answers of the share of their claims that is supported, with a bootstrap 95% interval.

    An answer that claims nothing counts 0: silence is not faithful.
    """

    n: int
    claims: int
    mean: float
    low: float
    high: float


def faithfulness(judge: Judge, samples: Sequence[Sample], answers: Sequence[str], seed: int = 0) -> Faithfulness:
    """Faithfulness of answers to the passages of their samples."""
    if not samples or len(samples) != len(answers):
        raise BadInput(f"{len(answers)} answers for {len(samples)} samples: one each is needed, and at least one")
    verdicts = judge(samples, answers)
    shares = [sum(claims) / len(claims) if claims else 0.0 for claims in verdicts]
    return Faithfulness(len(shares), sum(map(len, verdicts)), sum(shares) / len(shares), *bootstrap(shares, seed))


def verdict(sample: Sample, answer: str) -> Verdict:
    """Where the passages of a lab sample say what an answer claims.

    An answer to a lab question is one claim: "the employer of Ada Kelric is Lordex Mills". It is supported where the
    passages state it; else the passages may say the same of another subject, or hold its words in another place.
    """
    said = normalise(answer)
    if said in map(normalise, lab_facts.supported(sample)):
        return "supported"
    told, relation = lab_facts.statements(sample.ctxs), lab_facts.asked(sample.question)
    if said in (normalise(one.object) for one in told if one.relation == relation):
        return "of another subject"
    text = normalise(" ".join(f"{passage.title} {passage.text}" for passage in sample.ctxs))
    return "in another place" if said and f" {said} " in f" {text} " else "nowhere"


class LabJudge:
    """Exact, for samples of the lab corpus. BadInput for a question that the lab corpus does not ask."""

    def __call__(self, samples: Sequence[Sample], answers: Sequence[str]) -> list[list[bool]]:
        return [
            [verdict(sample, answer) == "supported"] if answer.strip() else []
            for sample, answer in zip(samples, answers, strict=True)
        ]


CLAIMS = (
    "Question: {question}\nAnswer: {answer}\n\nRewrite the answer as short statements that can be understood on their "
    "own, one a line, with names in place of pronouns.\nStatements:\n"
)
SUPPORTED = (
    "{passages}\n\nStatement: {claim}\n\nCan the statement be inferred from the passages above? Answer yes or no.\n"
    "Answer:"
)


@dataclass(frozen=True)
class ModelJudge:
    """A language model asked twice, as Ragas does: what an answer claims, then of each claim whether it is supported.

    A claim is supported where `yes` is a more probable next token than `no` (with a space before it or without, in
    capitals or not), so any causal model can be asked, however it likes to speak. Templates are wrapped in the
    tokenizer's chat template where it has one. `most`: claims of an answer, at most.
    """

    model: PreTrainedModel
    tokenizer: Any
    claims: str = CLAIMS
    supported: str = SUPPORTED
    yes: str = "yes"
    no: str = "no"
    most: int = 8
    max_new_tokens: int = 128
    batch: int = 8

    def __post_init__(self) -> None:
        for name, template, wanted in (
            ("claims", self.claims, ("{question}", "{answer}")),
            ("supported", self.supported, ("{passages}", "{claim}")),
        ):
            if lacking := [field for field in wanted if field not in template]:
                raise BadInput(f"the judge's template `{name}` has no {lacking[0]}")
        if not all(self._verdicts()):
            raise BadInput(f"{self.yes!r} and {self.no!r} begin with the same token: the judge cannot tell them apart")

    def __call__(self, samples: Sequence[Sample], answers: Sequence[str]) -> list[list[bool]]:
        claims = self.claimed([sample.question for sample in samples], answers)
        asked = [
            self.supported.format(
                passages="\n\n".join(f"{p.title}\n{p.text}".strip() for p in sample.ctxs), claim=claim
            )
            for sample, listed in zip(samples, claims, strict=True)
            for claim in listed
        ]
        rest = iter(self._holds(asked))
        return [[next(rest) for _ in listed] for listed in claims]

    def claimed(self, questions: Sequence[str], answers: Sequence[str]) -> list[list[str]]:
        """The claims of every answer; of one that the model rewrites as nothing, the answer itself."""
        told = [i for i, answer in enumerate(answers) if answer.strip()]
        prompts = self._prompts([self.claims.format(question=questions[i], answer=answers[i]) for i in told])
        found: list[list[str]] = [[] for _ in answers]
        for begin in range(0, len(told), self.batch):
            made = generate(
                self.model, self.tokenizer, prompts[begin : begin + self.batch], max_new_tokens=self.max_new_tokens
            )
            for i, text in zip(told[begin:], (one.text for one in made), strict=False):
                lines = [line.strip(" -*•\t") for line in text.splitlines()]
                found[i] = [line for line in lines if line][: self.most] or [f"{questions[i]} {answers[i]}"]
        return found

    def _holds(self, asked: Sequence[str]) -> list[bool]:
        yes, no = self._verdicts()
        found: list[bool] = []
        prompts = self._prompts(asked)
        for begin in range(0, len(prompts), self.batch):
            requests = [
                PrefillRequest(prompt.tokens, Plan(torch.arange(len(prompt))), empty(self.model, len(prompt)))
                for prompt in prompts[begin : begin + self.batch]
            ]
            for step in prefill_many(self.model, requests, logits_to_keep=1):
                assert step.logits is not None  # a plan without `depth` has logits
                last = step.logits[-1].float()
                found.append(bool(last[yes].logsumexp(0) > last[no].logsumexp(0)))
        return found

    def _prompts(self, texts: Sequence[str]) -> list[Prompt]:
        chat = bool(self.tokenizer.chat_template)
        if chat:
            texts = [
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                )
                for text in texts
            ]
        tokens = [self.tokenizer(text, add_special_tokens=not chat)["input_ids"] for text in texts]
        return [Prompt((Block(ids[:-1]), Block(ids[-1:]))) for ids in tokens]

    def _verdicts(self) -> list[list[int]]:
        """Tokens that begin a yes, and those that begin a no; none that begins both."""
        begins = [
            {
                self.tokenizer(space + spelt, add_special_tokens=False)["input_ids"][0]
                for space in ("", " ")
                for spelt in (word, word.capitalize())
            }
            for word in (self.yes, self.no)
        ]
        return [sorted(begins[0] - begins[1]), sorted(begins[1] - begins[0])]
