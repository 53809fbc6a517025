"""Block fine-tuning over training seeds, as data/benchmarks/block_seeds.py leaves it.

Methods that were measured of one training only stand in block-attention.json, on the same questions: their seed is 0.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.experiments import results
from workbench.metrics.seeds import OverSeeds, crossed

Methods = Mapping[str, Mapping[str, str]]  # method → training seed → a digit a question
BASE = "lab-full"  # the model that all trainings begin with: its methods are the same beside every seed


def kept() -> dict[str, Any]:
    """Read the results, those of one training among them: {samples, device, methods, untrained}.

    untrained   methods of the model before fine-tuning
    """
    one = results.read("block-attention")
    name = "block-seeds"
    over: dict[str, Any] = results.read("block-seeds") if name in results.names() else {"methods": {}}
    about = ("samples", "seed")
    methods = {name: {"0": entry["right"]} for name, entry in one["methods"].items()}
    if all(over.get(key) == one[key] for key in about):
        methods = {name: methods.get(name, {}) | over["methods"].get(name, {}) for name in methods | over["methods"]}
    device = {"device": over["device"]} if "device" in over else {}
    untrained = [name for name, entry in one["methods"].items() if entry["record"]["trial"]["model"] == BASE]
    return {**{key: one[key] for key in about}, **device, "methods": methods, "untrained": untrained}


def seeds(content: Mapping[str, Any], name: str) -> list[str]:
    """Return the training seeds of a method; none where it was not measured."""
    return sorted(content["methods"].get(name, {}), key=int)


def digits(content: Mapping[str, Any], name: str, seed: str) -> list[float]:
    """Return 1 a question that a method answers right; of the model before fine-tuning whatever the seed."""
    right = content["methods"][name]["0" if name in content["untrained"] else seed]
    return [float(digit) for digit in right]


def share(content: Mapping[str, Any], name: str) -> OverSeeds:
    """Return the share of right answers of a method over the seeds that it has."""
    return crossed([digits(content, name, seed) for seed in seeds(content, name)])


def gap(content: Mapping[str, Any], one: str, other: str) -> OverSeeds:
    """Compare two methods over the seeds that both have; seeds and questions are resampled crosswise."""
    both = [set(seeds(content, name)) for name in (one, other) if name not in content["untrained"]] or [{"0"}]
    shared = sorted(set.intersection(*both), key=int)
    pairs = [(digits(content, one, seed), digits(content, other, seed)) for seed in shared]
    return crossed([np.subtract(*pair).tolist() for pair in pairs])


def summary(methods: Methods) -> str:
    """Return the share of right answers of each method and training seed, a line a method."""
    lines = []
    for name, by_seed in methods.items():
        shares = [f"{seed}: {right.count('1') / len(right):.4f}" for seed, right in sorted(by_seed.items())]
        lines.append(f"{name}  {', '.join(shares)}")
    return "\n".join(lines)
