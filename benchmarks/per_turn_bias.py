"""Measures which estimators of credit per turn preserve the true gradient, in a stop-or-continue task whose exact
gradient is known.

An episode has at most four turns. At each of the first three, a policy with one parameter theta continues with
probability p = sigmoid(theta) = 0.5. Continuing earns 0.5. Stopping, which is forced at the fourth turn, earns 1 with
probability .2, .4, .5 or .55 at turn 1, 2, 3 or 4. The policy itself therefore determines how many turns, and how many
baselines, there are.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import options, report
from sparring.algorithms.advantages import ADVANTAGES, Rewarded

CONTINUE, BONUS, SUCCESS, GROUP_SIZE = 0.5, 0.5, (0.2, 0.4, 0.5, 0.55), 4

ESTIMATORS = {
    "monte_carlo": ("monte_carlo", {}),
    "rloo": ("rloo", {}),
    "group_based, not normalized": ("group_based", {"advantage_normalization": False}),
    "return_to_go_loo (group_based_per_turn)": ("return_to_go_loo", {}),
    "group_based_per_turn_immediate": ("group_based_per_turn_immediate", {}),
}
OURS = "return_to_go_loo (group_based_per_turn)"


def exact_gradient() -> float:
    """Return the sum over turns of P(turn is reached) p (1 - p) (value of continuing - value of stopping)."""
    value, gradient = SUCCESS[-1], 0.0
    for turn in reversed(range(len(SUCCESS) - 1)):
        continuing, stopping = BONUS + value, SUCCESS[turn]
        gradient += CONTINUE**turn * CONTINUE * (1 - CONTINUE) * (continuing - stopping)
        value = CONTINUE * continuing + (1 - CONTINUE) * stopping
    return gradient


def episode(rng: random.Random) -> tuple[Rewarded, list[float]]:
    """Return the rewards per turn, and d log pi / d theta of every turn."""
    rewards: list[float] = []
    scores: list[float] = []
    for turn, success in enumerate(SUCCESS):
        is_last = turn == len(SUCCESS) - 1
        if not is_last and rng.random() < CONTINUE:
            rewards.append(BONUS)
            scores.append(1 - CONTINUE)
            continue
        rewards.append(float(rng.random() < success))
        scores.append(0.0 if is_last else -CONTINUE)
        break
    played = Rewarded(total=math.fsum(rewards), turn_rewards=tuple(rewards), turn_tokens=(1,) * len(rewards))
    return played, scores


def study(num_groups: int, seed: int) -> list[dict[str, float | str]]:
    """Return each estimator's mean gradient, standard error over groups, and variance per episode, all computed on the
    same groups."""
    rng = random.Random(seed)
    groups = [[episode(rng) for _ in range(GROUP_SIZE)] for _ in range(num_groups)]
    seen = [[played for played, _ in group] for group in groups]
    exact, rows = exact_gradient(), []
    for name, (method, settings) in ESTIMATORS.items():
        advantages = ADVANTAGES[method](seen, **settings)
        gradients = [
            [
                sum(a * s for a, s in zip(turns, scores, strict=True))
                for turns, (_, scores) in zip(members, group, strict=True)
            ]
            for members, group in zip(advantages, groups, strict=True)
        ]
        means = [sum(group) / GROUP_SIZE for group in gradients]
        mean, error = sum(means) / num_groups, _deviation(means) / math.sqrt(num_groups)
        rows.append(
            {
                "estimator": name,
                "mean gradient": mean,
                "standard error": error,
                "kept": mean / exact,
                "variance an episode": _deviation([value for group in gradients for value in group]) ** 2,
                "distance from exact, in standard errors": abs(mean - exact) / (error or math.nan),
            }
        )
    return rows


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def picture(rows: Sequence[dict[str, float | str]]) -> str:
    """Draw the share of the exact gradient that each estimator keeps, as SVG."""
    width, bar, left = 640, 26, 270
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bar * len(rows) + 40}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    scale = (width - left - 60) / 1.1
    for place, row in enumerate(rows):
        y, kept = 10 + place * bar, float(row["kept"])
        color = "#2a7f62" if abs(kept - 1) < 0.02 else "#c8553d"
        lines += [
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{row["estimator"]}</text>',
            f'<rect x="{left}" y="{y + 3}" width="{kept * scale:.1f}" height="{bar - 10}" fill="{color}"/>',
            f'<text x="{left + kept * scale + 6:.1f}" y="{y + 15}">{kept:.0%}</text>',
        ]
    end = 10 + bar * len(rows)
    lines += [
        f'<line x1="{left + scale:.1f}" y1="6" x2="{left + scale:.1f}" y2="{end}" stroke="#333" stroke-dasharray="4 3"/>',
        f'<text x="{left + scale:.1f}" y="{end + 18}" text-anchor="middle">share of the exact gradient</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--svg", type=Path, help="draw the share that each estimator keeps")
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"exact gradient: {exact_gradient():.6f}")
    rows = study(300 if arguments.smoke else arguments.groups, arguments.seed)
    if arguments.svg is not None:
        arguments.svg.write_text(picture(rows), "utf-8")
    by_name = {row["estimator"]: row for row in rows}
    sides = {str(row["estimator"]): float(row["variance an episode"]) for row in rows}
    figures = {
        "ours: distance from exact, in standard errors": float(
            by_name[OURS]["distance from exact, in standard errors"]
        ),
        "ours / rloo: variance an episode": float(by_name[OURS]["variance an episode"])
        / float(by_name["rloo"]["variance an episode"]),
    }
    targets = {
        "ours: distance from exact, in standard errors": {"at_most": 2.0},
        "ours / rloo: variance an episode": {"at_most": 1.0},
    }
    return report(
        "per_turn_bias", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
