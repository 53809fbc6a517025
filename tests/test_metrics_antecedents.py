"""Antecedents: found where the passage before is among the neighbours, and only there."""

from tests.random_models import Letters
from workbench import data
from workbench.data.layouts import LAB
from workbench.metrics.selection import antecedents


class Words(Letters):
    bos_token_id = 0

    def __call__(self, texts, add_special_tokens=False):
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


def test_a_continued_passage_is_counted_once_and_found_by_the_passage_before_it():
    samples = data.load("lab", 16, 3, 10)
    prompts = LAB.prompts(samples, Words())
    before = {b: a for p in prompts for a, b in zip(p.context, p.context[1:], strict=False)}
    titles = {p.blocks[1 + i] for s, p in zip(samples, prompts, strict=True) for i, c in enumerate(s.ctxs)
              if c.title.startswith("Continued")}  # fmt: skip
    assert antecedents(samples, prompts, lambda block: [before[block]]) == (len(titles), len(titles))
    assert antecedents(samples, prompts, lambda block: [block]) == (0, len(titles)) and titles
