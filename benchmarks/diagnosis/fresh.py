"""Cells in addition to the two halves: more cells for tuning, and fresh splits with other severities and seeds.

A fresh split measures rules that were frozen before any of its cells was trained. If the results on a split lead to a
rule change, the next split measures the changed rule."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.diagnosis.faults import FAULTS, HEALTHY, PLANTED, RATE, RECIPES, Cell, cells


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
}
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
SECOND: Mapping[str, Mapping[str, Sequence[str]]] = {
    "rate_high": {"x75": _rate(75), "x500": _rate(500)},
    "rate_low": {"x0.003": _rate(0.003), "x0.0002": _rate(0.0002)},
    "frozen": {
        "x3e-6": _rate(3e-6), "eps-300": ["optimizer.adam_eps=300"], "clip-11": ["optimizer.adam_grad_clip_norm=1e-11"],
    },
    "batch": {"5": _batch(1, 5), "8": _batch(2, 4)},
    "temperature": {"0.15": ["sampling.temperature=0.15"], "1.7": ["sampling.temperature=1.7"]},
    "labels": {
        "45": _reward("labels_wrong_45", f"reward.scorer={PLANTED}:labels_wrong_scorer_45"),
        "65": _reward("labels_wrong_65", f"reward.scorer={PLANTED}:labels_wrong_scorer_65"),
        "55-scored": _reward("labels_wrong_55"),
    },
    "contradicts": {"40": _reward("contradicts_40"), "60": _reward("contradicts_60")},
    "noise": {"50": _reward("noise_50"), "70": _reward("noise_70")},
    "tools": {str(share): [f"environment.target={PLANTED}:ToolsRaise_{share}"] for share in (35, 70)},
    "lost": {str(share): [f"environment.target={PLANTED}:IsLost_{share}"] for share in (20, 50)},
    "turns": {"1": ["environment.max_turns=1"], "2": ["environment.max_turns=2"]},
    "tokens": {"2": ["sampling.sampling_max_tokens=2"], "5": ["sampling.sampling_max_tokens=5"]},
    "stale": {
        "cispo": _stale(4, "cispo", 5, "algorithm.off_policy_correction=geometric_mask"),
        "none": _stale(5, "importance_sampling", 7, "algorithm.off_policy_correction=none"),
    },
    "template": {"roles": (), "no_end": (), "bare": ()},
    "reward_constant": {"0": _reward("constant_0"), "0.25": _reward("constant_25"), "0.75": _reward("constant_75")},
    "reward_unread": {"all": _reward("never_reads_100")},
    "reward_hacked": {
        "any": _reward("pays_any_100"), "length": _reward("pays_length_100"), "calls": _reward("pays_calls_100"),
    },
    HEALTHY: {
        "seed-d": (), "seed-e": (), "x0.6": _rate(0.6), "x1.3": _rate(1.3), "warm": ["sampling.temperature=1.05"],
        "groups": _batch(7, 6), "large": _batch(6, 7), "ahead": ["rollout.max_steps_off_policy=1"],
    },
}  # fmt: skip
THIRD: Mapping[str, Mapping[str, Sequence[str]]] = {
    "rate_high": {"x60": _rate(60), "x200": _rate(200)},
    "rate_low": {"x0.002": _rate(0.002), "x0.0001": _rate(0.0001)},
    "frozen": {
        "x5e-6": _rate(5e-6), "eps-50": ["optimizer.adam_eps=50"], "clip-9": ["optimizer.adam_grad_clip_norm=1e-9"],
    },
    "batch": {"1x4": _batch(1, 4), "3x2": _batch(3, 2)},
    "temperature": {"0.12": ["sampling.temperature=0.12"], "1.9": ["sampling.temperature=1.9"]},
    "labels": {
        "55": _reward("labels_wrong_55", f"reward.scorer={PLANTED}:labels_wrong_scorer_55"),
        "75": _reward("labels_wrong_75", f"reward.scorer={PLANTED}:labels_wrong_scorer_75"),
        "80-scored": _reward("labels_wrong_80"),
    },
    "contradicts": {"45": _reward("contradicts_45"), "80": _reward("contradicts_80")},
    "noise": {"55": _reward("noise_55"), "90": _reward("noise_90")},
    "tools": {str(share): [f"environment.target={PLANTED}:ToolsRaise_{share}"] for share in (40, 90)},
    "lost": {str(share): [f"environment.target={PLANTED}:IsLost_{share}"] for share in (25, 60)},
    "turns": {"1": ["environment.max_turns=1"], "3": ["environment.max_turns=3"]},
    "tokens": {"3": ["sampling.sampling_max_tokens=3"], "7": ["sampling.sampling_max_tokens=7"]},
    "stale": {
        "cispo": _stale(3, "cispo", 8, "algorithm.off_policy_correction=geometric_mask"),
        "none": _stale(7, "importance_sampling", 9, "algorithm.off_policy_correction=none"),
    },
    "template": {"brackets": (), "text_end": (), "no_prompt": (), "bare": ()},
    "reward_constant": {"0.1": _reward("constant_10"), "0.9": _reward("constant_90")},
    "reward_unread": {"all": _reward("never_reads_100")},
    "reward_hacked": {
        "any": _reward("pays_any_100"), "calls": _reward("pays_calls_100"), "short": _reward("pays_short_100"),
    },
    HEALTHY: {
        "seed-f": (), "seed-g": (), "x0.9": _rate(0.9), "x1.2": _rate(1.2), "warm": ["sampling.temperature=0.92"],
        "groups": _batch(5, 8), "large": _batch(7, 7), "ahead": ["rollout.max_steps_off_policy=1"],
    },
}  # fmt: skip
"""Overrides by kind and name of the severity."""
ENOUGH = frozenset({("turns", "3", "partial_credit")})
"""Severities that are not a fault in a recipe: two look-ups and the answer need only three turns."""


def more_cells() -> list[Cell]:
    """Return the cells for tuning, then the fresh splits. In a split, kinds alternate, so that any part of it contains
    every kind."""
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
    more = tuning
    for split in SPLITS:
        more = more + _drawn(split, [*cells(), *more] if split.is_new else ())
    return more


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Cells that were drawn from the severities and recipes, and trained after the rules were frozen."""

    name: str
    severities: Mapping[str, Mapping[str, Sequence[str]]]
    seed: int
    """The seed of the draw."""
    first_run_seed: int
    broken_a_kind: int
    healthy: int
    is_new: bool = False
    """Whether the combinations of fault, severity and recipe must be new, as far as new combinations exist."""


SPLITS = (
    Split(name="fresh", severities=FRESH, seed=23, first_run_seed=100, broken_a_kind=4, healthy=20),
    Split(name="second", severities=SECOND, seed=29, first_run_seed=300, broken_a_kind=3, healthy=16),
    Split(name="third", severities=THIRD, seed=31, first_run_seed=500, broken_a_kind=3, healthy=16, is_new=True),
)


def _drawn(split: Split, earlier: Sequence[Cell]) -> list[Cell]:
    rng, by_kind = random.Random(split.seed), []
    known = {(one.fault.kind, one.severity, one.recipe) for one in earlier}
    for fault in FAULTS:
        places = [(severity, recipe) for severity in split.severities[fault.kind] for recipe in RECIPES]
        places = [one for one in places if (fault.kind, *one) not in ENOUGH]
        rng.shuffle(places)
        places.sort(key=lambda one: (fault.kind, *one) in known)
        count = split.healthy if fault.kind == HEALTHY else split.broken_a_kind
        by_kind.append([(fault, *place) for place in places[:count]])
    drawn = [kind[place] for place in range(split.healthy) for kind in by_kind if place < len(kind)]
    return [
        Cell(
            name=f"{split.name}-{fault.kind}-{severity}-{recipe}",
            fault=fault,
            severity=severity,
            recipe=recipe,
            half=split.name,
            planted=(*split.severities[fault.kind][severity], f"run.seed={split.first_run_seed + place}"),
        )
        for place, (fault, severity, recipe) in enumerate(drawn)
    ]
