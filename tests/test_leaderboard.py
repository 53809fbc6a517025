"""One budget and the leaderboard: what a request is charged, ratios solved for it, and rankings."""

import pytest

from tests.random_models import model_of, prompt_of
from workbench.core.errors import BadInput
from workbench.core.plan import Pass
from workbench.engine.attention_backends.attention import PlannedRequest
from workbench.experiments.trials import budget
from workbench.methods import finish, select
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.metrics.cost import charged_share, rows_charged
from workbench.store import MemoryStore

SIZES = (4, 9, 7, 12, 5)  # system, three passages, question
CONTEXT, QUESTION, LENGTH, LAYERS = 32, 5, 37, 3
CHOSEN = 7  # a quarter of 28 document tokens
SCORED = {  # tokens times layers that a selector computes before any token is recomputed
    "random": 0,
    "first_k": 0,
    "kv_deviation": CONTEXT * 2,  # layers 0 and 1 in full, over the whole context
    "kv_deviation(layer=0)": CONTEXT,
    "oracle": CONTEXT * LAYERS,
    "inter_attention": CONTEXT * LAYERS,
    "query_guided": QUESTION * LAYERS,
    "query_guided(layers=(0,))": QUESTION,
    "answer_guided": QUESTION * LAYERS,
}


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


def computed(model, method, prompt, monkeypatch) -> tuple[int, tuple[Pass, ...]]:
    """Return the tokens times layers that run for one request whose blocks are cached, and what it says of them."""
    store, rows = MemoryStore(), []
    method.begin(model, [prompt], store)
    attend = PlannedRequest.attend
    monkeypatch.setattr(PlannedRequest, "attend", lambda one, x: rows.append(len(one.rows)) or attend(one, x))
    ready = method.begin(model, [prompt], store)
    finish(model, ready)
    return sum(rows), ready[0].passes


@pytest.mark.parametrize("spec", SCORED)
def test_a_request_is_charged_what_runs_for_it(model, spec, monkeypatch):
    method = Reuse(select=select.named(spec), ratio=0.25)
    rows, passes = computed(model, method, prompt_of(*SIZES), monkeypatch)
    assert rows == SCORED[spec] + (CHOSEN + QUESTION) * LAYERS
    assert rows_charged(passes, LAYERS) == pytest.approx(rows / LAYERS)
    assert charged_share(passes, LAYERS, LENGTH) == pytest.approx(rows / LAYERS / LENGTH)


@pytest.mark.parametrize("spec", select.names())
def test_every_selector_says_what_it_computes(model, spec, monkeypatch):
    method = Reuse(select=select.named(spec), ratio=None if spec in ("all", "cache_craft") else 0.25)
    rows, passes = computed(model, method, prompt_of(*SIZES), monkeypatch)
    assert rows_charged(passes, LAYERS) == pytest.approx(rows / LAYERS)


@pytest.mark.parametrize("method", [Full(), Superposition(), Superposition(prior=False), Reuse()])
def test_other_methods_are_charged_what_runs_for_them(model, method, monkeypatch):
    rows, passes = computed(model, method, prompt_of(*SIZES), monkeypatch)
    assert rows_charged(passes, LAYERS) == pytest.approx(rows / LAYERS)
    assert charged_share(passes, LAYERS, LENGTH) == 1 or type(method) is not Full


def test_a_helper_model_is_charged_by_its_weight():
    assert charged_share([Pass(range(40), 40, weight=0.1), Pass([39], 40, forward=1)], LAYERS, 40) == pytest.approx(
        (4 + 1) / 40
    )


@pytest.mark.parametrize("charged", [0.2, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("spec", ["first_k", "query_guided(layers=(0,))"])
def test_a_ratio_is_the_largest_that_keeps_the_budget(model, spec, charged):
    prompts = [prompt_of(*SIZES), prompt_of(4, 30, 21, 6, seed=1)]
    solved = budget.within(model, Reuse(select=select.named(spec)), prompts, charged)

    def share(ratio):
        ready = Reuse(select=solved.select, ratio=ratio).begin(model, prompts)
        return sum(charged_share(one.passes, LAYERS, len(p)) for one, p in zip(ready, prompts, strict=True)) / 2

    assert share(solved.ratio) <= charged
    assert solved.ratio == 1 or share(min(1, solved.ratio + 2 / budget.STEPS)) > charged


@pytest.mark.parametrize(
    ("method", "charged", "message"),
    [
        (Reuse(select=select.named("kv_deviation")), 0.3, r"computes 71\..% of a prompt before .*selection 57\..%"),
        (Reuse(select=select.named("first_k")), 0.1, "question 13.5%"),
        (Reuse(), 0.5, "charged is 0.5: a method with a selector"),
        (Full(), 0.5, "charged is 0.5: a method with a selector"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(model, method, charged, message):
    with pytest.raises(BadInput, match=message):
        budget.within(model, method, [prompt_of(*SIZES)], charged)
