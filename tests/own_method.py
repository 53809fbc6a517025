"""The text of a file that holds a selector of one's own, and of one with a correction and an attention rule."""

LAST = """
from dataclasses import dataclass
import torch
from workbench.methods.select import Select

@dataclass(frozen=True)
class LastOnes(Select):
    weight: float = 1.0
    def score(self, prompt):
        return torch.arange(prompt.starts[-1]).float() * self.weight
"""

RULES = """
from dataclasses import dataclass
import torch
from workbench.core.masks import causal
from workbench.methods.attend import Attend
from workbench.methods.correct import Correct, Correction

@dataclass(frozen=True)
class AsTheyAre(Correct):
    def __call__(self, model, prompts, kvs, rows, ratio):
        return [Correction(each) for each in rows or [torch.empty(0, dtype=torch.int64)] * len(prompts)]

@dataclass(frozen=True)
class AllBefore(Attend):
    def plan(self, prompt, rows, scores):
        return {"sees": causal}
"""
