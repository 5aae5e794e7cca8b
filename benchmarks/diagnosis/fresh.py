"""Cells beside the two halves: more to tune with, and the fresh split, with other severities and other seeds.

The fresh split measures rules that were frozen before any of its cells was trained.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from benchmarks.diagnosis.faults import FAULTS, HEALTHY, PLANTED, RATE, RECIPES, Cell

FRESH_SEED = 23
BROKEN_A_KIND, NUM_HEALTHY = 4, 20


def _rate(factor: float) -> list[str]:
    return [f"optimizer.learning_rate={RATE * factor:g}"]


def _reward(name: str, *more: str) -> list[str]:
    return [f"reward.reward={PLANTED}:{name}", *more]


def _batch(tasks: int, episodes: int) -> list[str]:
    return [f"batch.global_batch_size={tasks}", f"batch.group_size={episodes}"]


def _stale(steps: int, loss: str, factor: float, *more: str) -> list[str]:
    return [f"rollout.max_steps_off_policy={steps}", f"algorithm.loss_fn={loss}", *_rate(factor), *more]


TUNING: Mapping[str, Mapping[str, Sequence[str]]] = {
    "labels": {
        str(share): _reward(f"labels_wrong_{share}", f"reward.scorer={PLANTED}:labels_wrong_scorer_{share}")
        for share in (35, 60)
    },
    "temperature": {"0.2": ["sampling.temperature=0.2"], "1.6": ["sampling.temperature=1.6"]},
    "contradicts": {"20": _reward("contradicts_20")},
    HEALTHY: {f"seed-{seed}": [f"run.seed={seed}"] for seed in (11, 12, 13, 14)},
}  # fmt: skip
"""Overrides by kind and name of the severity, as in `FRESH`."""
FRESH: Mapping[str, Mapping[str, Sequence[str]]] = {
    "rate_high": {"x50": _rate(50), "x300": _rate(300)},
    "rate_low": {"x0.005": _rate(0.005), "x0.0005": _rate(0.0005)},
    "frozen": {
        "x1e-5": _rate(1e-5), "eps-100": ["optimizer.adam_eps=100"], "clip-10": ["optimizer.adam_grad_clip_norm=1e-10"],
    },
    "batch": {"3": _batch(1, 3), "6": _batch(2, 3)},
    "temperature": {"0.1": ["sampling.temperature=0.1"], "1.8": ["sampling.temperature=1.8"]},
    "labels": {
        "40": _reward("labels_wrong_40", f"reward.scorer={PLANTED}:labels_wrong_scorer_40"),
        "70": _reward("labels_wrong_70", f"reward.scorer={PLANTED}:labels_wrong_scorer_70"),
        "70-scored": _reward("labels_wrong_70"),
    },
    "contradicts": {"30": _reward("contradicts_30"), "70": _reward("contradicts_70")},
    "noise": {"40": _reward("noise_40"), "80": _reward("noise_80")},
    "tools": {str(share): [f"environment.target={PLANTED}:ToolsRaise_{share}"] for share in (45, 80)},
    "lost": {str(share): [f"environment.target={PLANTED}:IsLost_{share}"] for share in (15, 40)},
    "turns": {"1": ["environment.max_turns=1"], "2": ["environment.max_turns=2"]},
    "tokens": {"3": ["sampling.sampling_max_tokens=3"], "5": ["sampling.sampling_max_tokens=5"]},
    "stale": {
        "cispo": _stale(3, "cispo", 6, "algorithm.off_policy_correction=geometric_mask"),
        "none": _stale(6, "importance_sampling", 6, "algorithm.off_policy_correction=none"),
    },
    "template": {"roles": (), "no_end": (), "bare": ()},
    "reward_constant": {"0": _reward("constant_0"), "0.5": _reward("constant_50"), "1": _reward("constant_100")},
    "reward_unread": {"all": _reward("never_reads_100")},
    "reward_hacked": {
        "any": _reward("pays_any_100"), "length": _reward("pays_length_100"), "calls": _reward("pays_calls_100"),
    },
    HEALTHY: {
        "seed-a": (), "seed-b": (), "seed-c": (), "x0.7": _rate(0.7), "x1.5": _rate(1.5),
        "warm": ["sampling.temperature=0.95"], "groups": _batch(8, 6), "ahead": ["rollout.max_steps_off_policy=1"],
    },
}  # fmt: skip
"""Overrides by kind and name of the severity."""


def more_cells() -> list[Cell]:
    """Those to tune with, then the fresh ones; of these kinds take turns, so that a part of them holds all."""
    tuning = [
        Cell(
            name=f"{fault.kind}-{severity}-{recipe}",
            fault=fault,
            severity=severity,
            recipe=recipe,
            half="tuning",
            planted=planted,
        )
        for fault in FAULTS
        for severity, planted in TUNING.get(fault.kind, {}).items()
        for recipe in RECIPES
    ]
    rng, by_kind = random.Random(FRESH_SEED), []
    for fault in FAULTS:
        places = [(severity, recipe) for severity in FRESH[fault.kind] for recipe in RECIPES]
        rng.shuffle(places)
        by_kind.append([(fault, *place) for place in places[: NUM_HEALTHY if fault.kind == HEALTHY else BROKEN_A_KIND]])
    drawn = [kind[place] for place in range(NUM_HEALTHY) for kind in by_kind if place < len(kind)]
    return tuning + [
        Cell(
            name=f"fresh-{fault.kind}-{severity}-{recipe}", fault=fault, severity=severity, recipe=recipe, half="fresh",
            planted=(*FRESH[fault.kind][severity], f"run.seed={100 + place}"),
        )
        for place, (fault, severity, recipe) in enumerate(drawn)
    ]  # fmt: skip
