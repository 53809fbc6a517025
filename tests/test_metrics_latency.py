import torch

from workbench.metrics.latency import Quantiles, measure, quantiles


def test_quantiles_of_a_hundred_and_one_measurements():
    assert quantiles([i / 100 for i in range(101)]) == Quantiles(0.05, 0.5, 0.95, 101, 0, 1)


def test_jobs_run_one_at_a_time_and_only_the_first_is_warmed_up():
    ran = []
    found = measure([lambda i=i: ran.append(i) for i in range(3)], torch.device("cpu"), warm_up=2)
    assert ran == [0, 0, 0, 1, 2]
    assert found.n == 3 and 0 < found.p5 <= found.p95
