"""Faithfulness: share of an answer's claims that its passages support (Ragas; FusionRAG, section 5.1.2).

It is exact on the lab corpus, whose facts can be parsed. On real questions, a language model judges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from transformers import PreTrainedModel

from workbench import models
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.data import Sample, chat_template
from workbench.data.lab_corpus import facts as lab_facts
from workbench.engine.forward import all_rows, prefill_many
from workbench.methods.generation import generate
from workbench.metrics.answers import bootstrap, normalise
from workbench.models.model_names import check_judge as check_name

LAB = "lab"  # name of the lab corpus's judge
Verdict = Literal["supported", "of another subject", "in another place", "nowhere"]


class Judge(Protocol):
    """Interface of judges: which claims of each answer the sample's passages support."""

    def __call__(self, samples: Sequence[Sample], answers: Sequence[str]) -> list[list[bool]]: ...


@dataclass(frozen=True)
class Faithfulness:
    """Share of claims that are supported, mean over `n` answers, with a bootstrap 95% interval.

    An answer without claims counts as 0.
    """

    n: int
    claims: int
    mean: float
    low: float
    high: float


def faithfulness(judge: Judge, samples: Sequence[Sample], answers: Sequence[str], seed: int = 0) -> Faithfulness:
    """Measure the faithfulness of answers to the passages of their samples."""
    if not samples or len(samples) != len(answers):
        raise BadInput(f"{len(answers)} answers for {len(samples)} samples: one per sample is needed")
    verdicts = judge(samples, answers)
    shares = [sum(claims) / len(claims) if claims else 0.0 for claims in verdicts]
    return Faithfulness(len(shares), sum(map(len, verdicts)), sum(shares) / len(shares), *bootstrap(shares, seed))


def judge(name: str, device: str = "cpu", dtype: str | None = None) -> Judge:
    """Return a judge: "lab" for questions of the lab corpus, else a model by folder or name (`models.load`)."""
    check_judge(name)
    return LabJudge() if name == LAB else ModelJudge(*models.load(name, device, dtype)[:2])


def check_judge(name: str, samples: Sequence[Sample] = ()) -> None:
    """Raise BadInput for an unknown judge, and for samples that it cannot judge; loads no model."""
    if name == LAB:
        for sample in samples:
            lab_facts.supported_answers(sample)
        return
    check_name(name)


def verdict(sample: Sample, answer: str) -> Verdict:
    """Return whether the passages of a lab sample support an answer's claim, and if not, what they state.

    An answer to a lab question is one claim: "the employer of Ada Kelric is Lordex Mills". It is supported if the
    passages state it. Otherwise they may state the same of another subject, or contain its words in another place.
    """
    claim = normalise(answer)
    if claim in map(normalise, lab_facts.supported_answers(sample)):
        return "supported"
    relation = lab_facts.relation_asked(sample.question)
    objects = [fact.object for fact in lab_facts.statements(sample.ctxs) if fact.relation == relation]
    if claim in map(normalise, objects):
        return "of another subject"
    text = normalise(" ".join(f"{passage.title} {passage.text}" for passage in sample.ctxs))
    return "in another place" if claim and f" {claim} " in f" {text} " else "nowhere"


class LabJudge:
    """Exact judge for samples of the lab corpus. Raises BadInput for other questions."""

    def __call__(self, samples: Sequence[Sample], answers: Sequence[str]) -> list[list[bool]]:
        pairs = zip(samples, answers, strict=True)
        return [[verdict(*pair) == "supported"] if pair[1].strip() else [] for pair in pairs]


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
    """A language model that lists the claims of an answer, then decides whether each is supported (Ragas).

    A claim is supported if `yes` is a more probable next token than `no` (with or without a leading space, capitalised
    or not), so any causal model can judge. Templates are wrapped in the tokenizer's chat template if it has one. `most`
    is the maximum number of claims per answer. Raises BadInput for a template without its fields.
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
        needed = {"claims": ("{question}", "{answer}"), "supported": ("{passages}", "{claim}")}
        for name, placeholders in needed.items():
            if missing := [field for field in placeholders if field not in getattr(self, name)]:
                raise BadInput(f"the judge's template `{name}` has no {missing[0]}")
        if not all(self._verdict_tokens()):
            raise BadInput(f"{self.yes!r} and {self.no!r} begin with the same token: the judge cannot tell them apart")

    def __call__(self, samples: Sequence[Sample], answers: Sequence[str]) -> list[list[bool]]:
        claims = self.list_claims([sample.question for sample in samples], answers)
        texts: list[str] = []
        for sample, own in zip(samples, claims, strict=True):
            passages = "\n\n".join(f"{p.title}\n{p.text}".strip() for p in sample.ctxs)
            texts += [self.supported.format(passages=passages, claim=claim) for claim in own]
        verdicts = iter(self._entailed(texts))
        return [[next(verdicts) for _ in own] for own in claims]

    def list_claims(self, questions: Sequence[str], answers: Sequence[str]) -> list[list[str]]:
        """List the claims of each answer; if the model lists none, the question and answer are the claim."""
        claims: list[list[str]] = [[] for _ in answers]
        answered = [i for i, answer in enumerate(answers) if answer.strip()]
        prompts = self._prompts([self.claims.format(question=questions[i], answer=answers[i]) for i in answered])
        for begin in range(0, len(answered), self.batch):
            batch = prompts[begin : begin + self.batch]
            outputs = generate(self.model, self.tokenizer, batch, max_new_tokens=self.max_new_tokens)
            for i, output in zip(answered[begin:], outputs, strict=False):
                lines = [line.strip(" -*•\t") for line in output.text.splitlines()]
                claims[i] = [line for line in lines if line][: self.most] or [f"{questions[i]} {answers[i]}"]
        return claims

    def _entailed(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether the next token is more likely `yes` than `no`."""
        yes, no = self._verdict_tokens()
        verdicts: list[bool] = []
        prompts = self._prompts(texts)
        for begin in range(0, len(prompts), self.batch):
            batch = prompts[begin : begin + self.batch]
            requests = [all_rows(self.model, prompt.tokens) for prompt in batch]
            for output in prefill_many(self.model, requests, logits_to_keep=1):
                assert output.logits is not None  # a plan of all layers has logits
                last = output.logits[-1].float()
                verdicts.append(bool(last[yes].logsumexp(0) > last[no].logsumexp(0)))
        return verdicts

    def _prompts(self, texts: Sequence[str]) -> list[Prompt]:
        chat = bool(self.tokenizer.chat_template)
        if chat:
            texts = [chat_template.render(self.tokenizer, [chat_template.chat_message("user", text)]) for text in texts]
        tokens = [self.tokenizer(text, add_special_tokens=not chat)["input_ids"] for text in texts]
        return [Prompt((Block(ids[:-1]), Block(ids[-1:]))) for ids in tokens]

    def _verdict_tokens(self) -> list[list[int]]:
        """Return the first tokens of "yes" and of "no", without those that both share."""
        first: list[set[int]] = []
        for word in (self.yes, self.no):
            spellings = [word, word.capitalize(), f" {word}", f" {word.capitalize()}"]
            first.append({ids[0] for ids in self.tokenizer(spellings, add_special_tokens=False)["input_ids"]})
        yes, no = first
        return [sorted(yes - no), sorted(no - yes)]
