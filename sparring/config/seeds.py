"""Read the seeds of a family of runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparring.config.sections import Config
from sparring.errors import UsageError


def read_seeds(text: str, config: Config, overrides: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the seeds that `--seeds` names: `3` means three seeds starting at `run.seed`, and `0,4,7` means exactly
    these three seeds.

    Raises UsageError for any other string.
    """
    if re.fullmatch(r"\d+", text):
        if int(text) < 2:
            raise UsageError(
                f"--seeds {text} is too few for a family of runs; give at least 2, or set run.seed=N instead."
            )
        return tuple(range(config.run.seed, config.run.seed + int(text)))
    if not re.fullmatch(r"\d+(,\d+)+", text):
        raise UsageError(
            f"--seeds {text!r} is neither a number of seeds (such as 3) nor a list of two or more seeds (such as 0,4,7)."
        )
    seeds = tuple(map(int, text.split(",")))
    if double := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise UsageError(
            f"--seeds {text} names {', '.join(map(str, double))} more than once; specify each seed only once."
        )
    if any(one.partition("=")[0].strip() == "run.seed" for one in overrides):
        raise UsageError(f"--seeds {text} and run.seed both set the seed; leave run.seed out.")
    return seeds
