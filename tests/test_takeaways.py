"""The sentence of each notebook is made of its metrics, and turns with their signs."""

import pytest

from workbench.plots import takeaways

START = {"orders": 28, "same_answer": {"none": 0.64, "query_guided": 0.7, "answer_guided": 0.99}, "flops_share": 0.3}
REUSE = {"em_full": 0.98, "em_block": 0.77, "em_naive": 0.68, "samples": 60}
REUSE |= {"ttft_full_ms": 630.0, "ttft_block_ms": 63.0, "ttft_context": 2048}
TUNED = {"gap_points": -0.3, "gap_low": -0.5, "gap_high": -0.1, "measured_samples": 2000, "lost_points": 22.9}
DEVIATION = {"change_by_preparation": -0.7, "ratio": 0.15}
DEVIATION["left_in_last_layer"] = {"random, asked": 0.9, "answer_guided, asked": 0.4, "answer_guided, chosen": 0.1}
TOKENS = {"answer_full": "harp", "answer_reuse": "guitar"}
TOKENS["ratio_that_is_enough"] = {"answer_guided": 0.01, "first_k": None}
RATIOS = {"at_15_percent": {"answer_guided": 0.99, "random": 0.85, "oracle": 1}, "em_full": 1, "measured_samples": 9}
LATENCY = {"context": 64, "device": "a CPU"}
LATENCY["ttft_ms"] = {"full": 20, "block": 10, "recompute": 40, "stock prefix": 5}
SPARSE = {"thresholds": {"bfla": "bfla"}, "keep": 0.95, "em_dense": 0.956, "measured_samples": 500}
SPARSE["crossover"] = {"bfla": {"own": 1218, "Llama": None}, "quoka": {"own": 362, "Llama": None}}
STORE = {"ttft_ms_sync": 60, "ttft_ms_layer": 30, "path_storage_saved": 0.7, "path_hit_rate": 0.8}


@pytest.mark.parametrize(
    ("sentence", "metrics", "changes", "said", "turned"),
    [
        (takeaways.start_here, START, {"orders": 1}, "Over 28 orders of its passages one", "In the order in which"),
        (takeaways.start_here, START, {"same_answer": {"first_k": 0.5}}, "answer-guided 99%", "(EPIC) 50%"),
        (takeaways.reuse, REUSE, {"em_block": 1.0}, "21.0 points below full", "2.0 points above full"),
        (takeaways.reuse, REUSE, {"ttft_block_ms": 1260.0}, "10.0 times sooner", "2.0 times later"),
        (takeaways.block_finetuning, TUNED, {"gap_high": 0.1}, "0.3 points below", "no difference that shows"),
        (takeaways.kv_deviation, DEVIATION, {"change_by_preparation": 0.2}, "lowers their mean", "raises their mean"),
        (takeaways.critical_tokens, TOKENS, {"answer_reuse": "harp"}, "answer-guided 1%", "Reuse alone answers"),
        (takeaways.critical_tokens, TOKENS, {"ratio_that_is_enough": {"all": None}}, "back: answer", "no share that"),
        (takeaways.recomputation, RATIOS, {"at_15_percent": {"random": 0.9}}, "random 85.0%", "random 90.0%"),
        (takeaways.latency, LATENCY, {"context": 65}, "2.0 times later than a stock prefix cache", "At 65 tokens"),
        (
            takeaways.sparse_quality,
            SPARSE,
            {"crossover": {}},
            "from 362 tokens in own on.",
            "threshold that was tried.",
        ),
        (takeaways.store, STORE, {"ttft_ms_layer": 120}, "2.0 times sooner", "2.0 times later"),
    ],
)
def test_a_sentence_turns_with_its_numbers(sentence, metrics, changes, said, turned):
    assert said in sentence(metrics)
    assert turned in sentence(metrics | changes)


def test_an_oracle_is_not_called_the_best_selector():
    assert "answer-guided answers 99.0%" in takeaways.recomputation(RATIOS)
