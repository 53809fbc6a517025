"""One sentence for each shipped notebook: what its run found, made of its metrics and worded by their signs.

The report's index shows it. Every function takes what the notebook saves as metrics.json.
"""

from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from workbench.plots.findings import compared, joined, times
from workbench.plots.styles import SELECTORS

Metrics = Mapping[str, Any]


def _sooner(full: float, ours: float) -> str:
    return times(full / ours, "sooner", "later")


def start_here(found: Metrics) -> str:
    """Tell how often reuse and recomputing answer one prompt as full attention does, whatever its order."""
    same = {spec: share for spec, share in found["same_answer"].items() if spec not in ("none", "all")}
    best = max(same, key=same.__getitem__, default=None)
    several = f"Over {found['orders']} orders of its passages"
    orders = several if found["orders"] > 1 else "In the order in which its passages are given,"
    parts = [f"reuse alone {found['same_answer']['none']:.0%}"] if "none" in found["same_answer"] else []
    parts += [f"{SELECTORS.name_of(best)} {same[best]:.0%}"] if best else []
    return (
        f"{orders} one prompt is answered as full attention answers it by {joined(parts)} of the time, for "
        f"{found['flops_share']:.0%} of the operations on average."
    )


def masks(found: Metrics) -> str:
    """Tell what block attention leaves out, and what that does to the prediction."""
    return (
        f"Block attention computes {found['block_pairs_share']:.0%} of the pairs of a causal prompt, and with its "
        f"blocks cached {found['reuse_rows_share']:.0%} of the rows; {found['passage_attention_to_other_blocks']:.0%} "
        "of what passages attend to lies in other passages, and leaving it out moves the next token by "
        f"{found['kl_block']:.2f} nats."
    )


def positions(found: Metrics) -> str:
    """Tell how exact rerotated keys are, and what naive positions cost."""
    ours, naive = found["same_first_token_re_encoded"], found["same_first_token_naive"]
    return (
        f"In {found['families']} model configurations rerotated keys are those of a fresh prefill to within "
        f"{found['largest_difference']:.0e}, naive ones are off by {found['smallest_naive_difference']:.0e} or more; "
        f"the first token is that of full attention in {ours:.0%} of prompts with rerotated keys, in {naive:.0%} with "
        "naive ones."
    )


def reuse(found: Metrics) -> str:
    """Tell what reuse costs in answers and saves in time."""
    gap = compared("blocks cached independently answer", "full attention", found["em_block"] - found["em_full"])
    naive = compared("naive positions", "that", found["em_naive"] - found["em_block"])
    sooner = _sooner(found["ttft_full_ms"], found["ttft_block_ms"])
    return f"Of {found['samples']} questions {gap}, {naive}; at {found['ttft_context']:,} tokens they start {sooner}."


def block_finetuning(found: Metrics) -> str:
    """Tell how near full attention a fine-tuned model comes, and how far it was."""
    ends = found["gap_low"] / 100, found["gap_high"] / 100
    gap = compared("Block mode stands", "full attention", found["gap_points"] / 100, ends)
    count = found.get("trainings", 1)
    trainings = f" over {count} trainings" if count > 1 else ""
    return (
        f"{gap} after block fine-tuning{trainings}, on {found['measured_samples']:,} questions; without it reuse loses "
        f"{found['lost_points']:.1f} points."
    )


def beyond_rag(found: Metrics) -> str:
    """Tell what comes back from prompt to prompt, and what that saves."""
    same = "always" if found["equal"] else "not always"
    sooner = _sooner(found["game_ttft_full_ms"], found["game_ttft_ms"])
    return (
        f"From one state of a game to the next {found['game_repeated']:.0%} of the blocks come back and the first "
        f"token comes {sooner}; answers are {same} those of encoding every block again."
    )


def kv_deviation(found: Metrics) -> str:
    """Tell what preparation changes, and which selector repairs most of what the question sees."""
    left = {key.removesuffix(", asked"): x for key, x in found["left_in_last_layer"].items() if key.endswith(", asked")}
    chosen = {name: value for name, value in left.items() if name != "oracle"}
    best = min(chosen, key=chosen.__getitem__)
    change, beside = found["change_by_preparation"], f", random {left['random']:.0%}" if "random" in left else ""
    return (
        f"Preparing passages behind their neighbours {'lowers' if change < 0 else 'raises'} their mean deviation by "
        f"{abs(change):.0%}; recomputing {found['ratio']:.0%} of the tokens leaves {left[best]:.0%} of it where the "
        f"question looks with {SELECTORS.name_of(best)}, the best selector{beside}."
    )


def critical_tokens(found: Metrics) -> str:
    """Tell at which ratio each selector's answer is that of full attention."""
    full, reused = (shorten(found[name], 60, placeholder=" …") for name in ("answer_full", "answer_reuse"))
    if found["answer_full"] == found["answer_reuse"]:
        return f"Reuse alone answers “{full}”, as full attention does."
    at = {SELECTORS.name_of(name): ratio for name, ratio in found["ratio_that_is_enough"].items() if ratio is not None}
    said = joined([f"{name} {ratio:.0%}" for name, ratio in at.items()])
    need = f"shares that bring the answer back: {said}" if at else "no share that was tried brings the answer back"
    return f"Full attention answers “{full}”, reuse “{reused}”; {need}."


def recomputation(found: Metrics) -> str:
    """Tell the best and the worst selector at 15%, beside random tokens and full attention."""
    em = {name: value for name, value in found["at_15_percent"].items() if name not in ("oracle", "all")}
    best, worst = (choice(em, key=em.__getitem__) for choice in (max, min))
    beside = f"random {em['random']:.1%}, " if "random" in em else ""
    return (
        f"With 15% of the tokens recomputed, {SELECTORS.name_of(best)} answers {em[best]:.1%}, {beside}"
        f"{SELECTORS.name_of(worst)} {em[worst]:.1%}; full attention {found['em_full']:.1%} "
        f"(n = {found['measured_samples']:,})."
    )


def sparse_masks(found: Metrics) -> str:
    """Tell how much attention each method keeps, and at which density."""
    kept, density = found["attention_kept"], found["density"]
    ranked = sorted(kept, key=kept.__getitem__, reverse=True)
    said = joined([f"{name} {kept[name]:.0%} ({density[name]:.0%} of the tiles)" for name in ranked])
    return f"Attention kept at {found['tokens']:,} tokens: {said}."


def sparse_quality(found: Metrics) -> str:
    """Tell how many rules keep the chosen quality, and from which length a choice can pay."""
    shapes: dict[str, list[int]] = {}
    for lengths in found["crossover"].values():
        for shape, length in lengths.items():
            shapes.setdefault(shape, []).extend([length] if length else [])
    pays = joined([f"{min(each):,} tokens in {shape}" for shape, each in shapes.items() if each])
    return (
        f"{len(found['thresholds'])} methods keep {found['keep']:.0%} of dense quality ({found['em_dense']:.1%}, "
        f"n = {found['measured_samples']:,}) at a threshold that was tried"
        + (f"; the first choice costs less than it saves from {pays} on." if pays else ".")
    )


def latency(found: Metrics) -> str:
    """Tell how much sooner cached blocks start than full attention and than a stock prefix cache."""
    ms = found["ttft_ms"]
    return (
        f"At {found['context']:,} tokens cached blocks start {_sooner(ms['full'], ms['block'])} than full attention "
        f"and {_sooner(ms['stock prefix'], ms['block'])} than a stock prefix cache, with 15% recomputed "
        f"{_sooner(ms['full'], ms['recompute'])} than full attention ({found['device']})."
    )


def real_model(found: Metrics) -> str:
    """Tell how far predictions of a real model move under its nearest and its farthest method."""
    kl, measured = found["kl"], found["measured"]
    best, worst = (choice(kl, key=kl.__getitem__) for choice in (min, max))
    return (
        f"On {measured['data']} (n = {measured['n']:,}) predictions move least from full attention with {best} "
        f"(KL {kl[best]:.3f} nats) and most with {worst} ({kl[worst]:.3f})."
    )


def papers(found: Metrics) -> str:
    """Tell how many tables and figures are confirmed, contradicted and out of reach."""
    return (
        f"Of {found['items']} tables and figures of five papers {found['confirmed']} are confirmed here, "
        f"{found['contradicted']} contradicted and {found['unreachable']} out of reach."
    )


def store(found: Metrics) -> str:
    """Tell what loading beside computing saves, and what Alternative Path does."""
    ratio = found["ttft_ms_sync"] / found["ttft_ms_layer"]
    return (
        f"Loading layer by layer beside the engine starts {times(ratio, 'sooner', 'later')} than loading first; "
        f"Alternative Path stores {found['path_storage_saved']:.0%} less and hits {found['path_hit_rate']:.0%} "
        "(simulated clock)."
    )
