"""Draws the weight of a token in each loss (the factor of A * grad log p) as a function of the ratio, for
docs/algorithms.md."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.report import options, report
from sparring.algorithms.losses import LOSSES, Tokens

COLORS = {
    "importance_sampling": "#888888",
    "ppo": "#c8553d",
    "cispo": "#2a7f62",
    "gspo": "#3d5ac8",
    "dppo_tv": "#b8860b",
    "gpg": "#7b4fa3",
}
PROBABILITY = 0.2
"""Probability of the token when it was sampled. Only dppo_tv uses it."""


def weights(loss: str, ratios: torch.Tensor, advantage: float) -> torch.Tensor:
    """Return d loss / d log p divided by -A. Each token is a separate trajectory."""
    old = torch.full_like(ratios, PROBABILITY).log()
    new = (old + ratios.log()).requires_grad_()
    tokens = Tokens(
        logprobs_M=new,
        old_M=old,
        advantages_M=torch.full_like(ratios, advantage),
        trajectory_M=torch.arange(len(ratios)),
    )
    settings = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2} if loss == "gspo" else {}
    LOSSES[loss](tokens, **settings)[0].sum().backward()
    assert new.grad is not None
    return new.grad / -advantage


def picture(ratios: torch.Tensor) -> str:
    width, height, margin = 340, 260, 40
    top = 3.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width + 150}" height="{height + 30}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for side, (title, advantage) in enumerate((("A &gt; 0", 1.0), ("A &lt; 0", -1.0))):
        x0, x1, y0, y1 = side * width + margin, (side + 1) * width - 10, height - margin, 20

        def place(ratio: float, weight: float, x0: float = x0, x1: float = x1, y0: float = y0, y1: float = y1) -> str:
            x = x0 + (x1 - x0) * ratio / float(ratios[-1])
            return f"{x:.1f},{y0 - (y0 - y1) * min(weight, top) / top:.1f}"

        lines.append(f'<polyline fill="none" stroke="#333" points="{x0},{y1} {x0},{y0} {x1},{y0}"/>')
        lines.append(f'<text x="{(x0 + x1) / 2}" y="{y1 - 6}" text-anchor="middle">{title}</text>')
        lines.append(f'<text x="{(x0 + x1) / 2}" y="{height - 8}" text-anchor="middle">ratio</text>')
        for tick in (1, 2, 3):
            x, y = place(tick, tick).split(",")
            lines.append(f'<text x="{x}" y="{y0 + 15}" text-anchor="middle">{tick}</text>')
            lines.append(f'<text x="{x0 - 6}" y="{float(y) + 4}" text-anchor="end">{tick}</text>')
        for loss, color in COLORS.items():
            points = " ".join(
                place(ratio, weight)
                for ratio, weight in zip(ratios.tolist(), weights(loss, ratios, advantage).tolist(), strict=True)
            )
            lines.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" opacity="0.8" points="{points}"/>')
    for row, (loss, color) in enumerate(COLORS.items()):
        y = 40 + 22 * row
        lines.append(f'<rect x="{2 * width + 8}" y="{y - 9}" width="14" height="4" fill="{color}"/>')
        lines.append(f'<text x="{2 * width + 28}" y="{y}">{loss}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    ratios = torch.linspace(0.01, 3.2, 320, dtype=torch.float64)
    if arguments.svg is not None:
        arguments.svg.write_text(picture(ratios), "utf-8")
    shown = torch.tensor([0.5, 0.9, 1.0, 1.1, 2.0, 6.0], dtype=torch.float64)
    rows = [
        {
            "loss": loss,
            "A": sign,
            **{f"ratio {r:g}": w for r, w in zip(shown.tolist(), weights(loss, shown, a).tolist(), strict=True)},
        }
        for loss in COLORS
        for sign, a in (("> 0", 1.0), ("< 0", -1.0))
    ]
    on_policy = [weights(loss, torch.ones(1, dtype=torch.float64), a).item() for loss in COLORS for a in (1.0, -1.0)]
    sides = {loss: sum(float(weights(loss, shown, a).abs().sum()) for a in (1.0, -1.0)) for loss in COLORS}
    figures = {"largest distance from 1 of a weight on-policy": max(abs(weight - 1) for weight in on_policy)}
    targets = {name: {"at_most": 1e-9} for name in figures}
    return report(
        "loss_weights", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
