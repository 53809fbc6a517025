"""Modules of earlier versions are found under their old names, with the names that they held."""

from importlib import import_module

import pytest

METRICS = {
    "causes": "Causes causes computed",
    "deviation": "Deviation deviation squared concentration",
    "drift": "POSITIONS drift",
    "repair": "Repair repair",
    "choices": "MEASURES agreement",
    "places": "chosen by_offset by_block summary",
    "antecedents": "antecedents",
    "turning": "Turning turning",
    "rounding": "SCHEMES shift_errors",
    "exactness": "TOLERANCE TINY tiny tiny_configs exactness differences",
    "counts": "Head Counts of_layer of_rows SEVERAL",
    "stages": "STAGES Stages Stopwatch stages",
    "mass": "Mass busiest peak overlap masked reused softmax",
    "misses": "Chosen chosen needed choice Union union Window window Causes causes",
    "states": "States of_prompt synthetic",
    "published": "TABLE_2 TABLE_3 QUESTION LLAMA_3_8B",
}


@pytest.mark.parametrize("module", METRICS)
def test_what_a_module_of_the_metrics_held_is_found_under_its_old_name(module):
    old = import_module(f"workbench.metrics.{module}")
    for name in METRICS[module].split():
        assert getattr(old, name) is not None
