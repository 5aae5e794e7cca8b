"""The command that tries out the change that a finding proposes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path

from sparring.config import Config
from sparring.diagnosis.course import JUDGE_AFTER
from sparring.diagnosis.proposal import overrides
from sparring.findings import Finding
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import WARM_START
from sparring.types import Json


def next_command(run: Path, config: Config, metrics: Mapping[int, Mapping[str, float]], finding: Finding) -> str:
    """Return the command that continues a run with the settings of a finding, or a sentence if the run has no
    checkpoint to continue from.

    The new run is long enough to confirm the change, even if `run` has finished. `metrics` are those of `run` by step.
    """
    steps, late = checkpoint_steps(RunFolder(run)), finding.before_step
    if late is not None:
        steps = [step for step in steps if step < late]
    if not steps:
        reason = "it has no checkpoint yet" if late is None else f"no checkpoint is from before step {late}"
        return f"train the recipe again with {shlex.join(overrides(finding.settings))}: {reason}"
    origin = [] if late is None else ["--from", str(steps[-1])]
    until = steps[-1] + (finding.confirm_after or JUDGE_AFTER)
    settings = {**finding.settings, **_longer(config, metrics, until, finding.settings)}
    return shlex.join(["sparring", "runs", "branch", str(run), *origin, *overrides(settings)])


def checkpoint_steps(run: RunFolder) -> list[int]:
    """Return the steps from which a branch can start. 0 is after the warm start."""
    there = [one.name for one in run.checkpoints.glob("[!.]*") if one.is_dir()]
    return sorted(0 if name == WARM_START else int(name) for name in there if name == WARM_START or name.isdigit())


def _longer(
    config: Config, metrics: Mapping[int, Mapping[str, float]], until: int, changed: Mapping[str, Json]
) -> Mapping[str, Json]:
    """Return the settings with which a run continues until a step with changed settings, as far as the run's own settings
    end it earlier."""
    longer: dict[str, Json] = {}
    if until > config.schedule.max_steps:
        longer["schedule.max_steps"] = until
    last = max((step for step in metrics if "training/epoch" in metrics[step]), default=0)
    if last > 0:
        a_step = metrics[last]["training/epoch"] / last
        # In the worst case, a selection skips all tasks but those that it retries. Skipped tasks count as offered.
        offers = 1 / config.curriculum.retry_share if "curriculum.select" in changed else 1.0
        epochs = metrics[last]["training/epoch"] + a_step * max(0, until - last) * offers
        if epochs > config.schedule.max_epochs:
            longer["schedule.max_epochs"] = math.ceil(epochs)
    return longer
