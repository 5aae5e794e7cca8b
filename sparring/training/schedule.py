"""Compute learning-rate schedules, as pure functions of the step."""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, schedule: str, warmup_steps: int, max_steps: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 1.

    The rate rises linearly over `warmup_steps` and reaches `peak` at the last warmup step. After that, it stays at
    `peak` (`constant`), or it falls linearly (`linear`) or along half a cosine period (`cosine`) and is 0 one step
    after `max_steps`.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    share = (step - 1 - warmup_steps) / max(1, max_steps - warmup_steps)
    if schedule == "linear":
        return peak * max(0.0, 1 - share)
    if schedule == "cosine":
        return peak * (1 + math.cos(math.pi * min(1.0, share))) / 2
    return peak
