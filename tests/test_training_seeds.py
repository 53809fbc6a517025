"""Headline comparisons over training seeds: readers, sentences by their sign, the joining of units."""

import numpy as np
import sparse_seeds as measuring

from workbench.experiments import sparse_seeds

N = 200


def answered(share: float, shift: int = 0) -> str:
    """Digits of N questions of which a share is right, begun `shift` questions later."""
    right = "1" * round(share * N) + "0" * (N - round(share * N))
    return right[shift:] + right[:shift]


def swept(bfla: float, drawn: float) -> dict:
    """Results of sparse methods over two trainings."""
    shares = {sparse_seeds.DENSE: (0.9, 1.0), "bfla(mass=0.9)": (bfla, 0.25), "random(share=0.1)": (drawn, 0.24)}
    settings = {
        spec: {
            str(seed): {"right": answered(em, seed), "density": kept, "union": kept, "prompts": 4} for seed in (1, 2)
        }
        for spec, (em, kept) in shares.items()
    }
    about = {"model": "lab-hard-small", "data": "lab-hard", "seed": 1, "samples": N, "passages": 2, "chunk": 64}
    return about | {"tokens": 100.0, "settings": settings}


def test_the_best_setting_of_a_method_keeps_at_most_the_share():
    content = swept(0.5, 0.2)
    assert sparse_seeds.best(content, "bfla(", 0.3) == "bfla(mass=0.9)" and not sparse_seeds.best(content, "bfla(", 0.2)


def test_units_are_joined_up_to_the_first_question_that_a_seed_lacks():
    def unit(digit: str, count: int) -> dict:
        settings = {spec: {"right": digit * count, "density": [0.5], "union": [0.7]} for spec in measuring.SPECS}
        return {"settings": settings, "tokens": [10] * count, "device": "cpu"}

    units = {(seed, start, 2): unit(str(seed % 2), 2) for seed in (1, 2, 3) for start in (0, 2)}
    units[3, 6, 2] = unit("1", 2)  # a gap before it
    del units[2, 2, 2]
    made = measuring.joined(units, 8)
    assert made["samples"] == 2
    assert {seed: one["right"] for seed, one in made["settings"][measuring.SPECS[0]].items()} == {
        "1": "11",
        "2": "00",
        "3": "11",
    }
    dense, union = measuring.SPECS[0], next(spec for spec in measuring.SPECS if spec.startswith("compact("))
    shares = [sparse_seeds.density(made, dense), sparse_seeds.attended(made, dense), sparse_seeds.attended(made, union)]
    assert np.allclose(shares, [0.5, 0.5, 0.7])
