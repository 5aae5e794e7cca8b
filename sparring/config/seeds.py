"""The seeds of a family of runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparring.config.sections import Config
from sparring.errors import UsageError


def read_seeds(text: str, config: Config, overrides: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the seeds of `--seeds`: `3` is three seeds from `run.seed` on; `0,4,7` are these seeds.

    Raises UsageError for anything else.
    """
    if re.fullmatch(r"\d+", text):
        if int(text) < 2:
            raise UsageError(
                f"--seeds {text} is no family of runs; give 2 seeds or more, or leave it out and set run.seed=N."
            )
        return tuple(range(config.run.seed, config.run.seed + int(text)))
    if not re.fullmatch(r"\d+(,\d+)+", text):
        raise UsageError(
            f"--seeds {text!r} is neither a number of seeds (3) nor a list of two or more seeds from 0 on (0,4,7)."
        )
    seeds = tuple(map(int, text.split(",")))
    if double := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise UsageError(f"--seeds {text} names {', '.join(map(str, double))} more than once; name each seed once.")
    if any(one.partition("=")[0].strip() == "run.seed" for one in overrides):
        raise UsageError(f"--seeds {text} names the seeds, and run.seed another one; leave run.seed out.")
    return seeds
