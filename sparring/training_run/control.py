"""Train a control for RL: the warm start of a run, continued with supervised steps for at least as long as RL took.

The gain of RL is the difference between the tuned weights and this control. A comparison with the warm start would not
show this gain, because more imitation learning alone might have reached the same result.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from sparring.assembly import (
    TrainingParts,
    load_checkpoint_weights,
    load_demonstrations,
    load_into_engine,
    load_training_parts,
    refuse_another_control,
    refuse_training,
)
from sparring.config import Config, load_config
from sparring.config.sections import WarmStartSection
from sparring.errors import UsageError
from sparring.evaluation.evaluation import Evaluation, Row, evaluate
from sparring.ledger.states import CONTROL_LABEL
from sparring.run_folders import RunFolder
from sparring.run_folders.locks import CONTROL_LOCK, hold_lock
from sparring.run_folders.run_folder import CONTINUED, WARM_START
from sparring.runtime import event_loop, interrupts
from sparring.runtime.json_values import parse_json
from sparring.tracking import Console
from sparring.training import checkpoints
from sparring.training.warm_start import run_supervised_steps
from sparring.training_run.loading import LoadedRun, RunLoader
from sparring.training_run.rl_time import RLTime
from sparring.types import Sampling

NUM_POINTS = 4
"""The number of validation runs of the control, evenly spaced."""
MOST_BEFORE_END = 0.999
"""The largest share of a control that is done before RL has ended."""
LEAST_FALL = 0.25
"""The least time, as a share of RL's, in which the learning rate falls from its highest value to 0."""
WAIT_SECONDS = 0.2
NUM_TICKS = 100
"""The number of parts in which progress is shown if the number of steps is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The continued warm start, as stored in `controls/warm_start_continued/state.json`."""

    steps: int
    """The total number of supervised steps."""
    seconds: float
    """The wall time of these steps."""
    rl_seconds: float
    """The wall time of RL's steps, without validation."""
    validated: Mapping[int, float]
    """Success on validation tasks by step; 0 is the warm start itself."""
    best_step: int
    """The step whose weights are kept: the last step with the highest success."""
    fingerprint: str
    """The fingerprint of these weights. An evaluation with another fingerprint used an earlier control."""


def continue_warm_start(
    run: str | Path,
    *,
    steps: int | None = None,
    during_training: bool = False,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> Control:
    """Continue the warm start of a run. Of several points, keep the one with the best validation result as the run's
    control.

    The call blocks. The optimizer is new, and the learning rate falls from `warm_start.learning_rate` to 0. Success is
    validated at the recipe's serving temperature. If `steps` is None, the recipe's `warm_start.control_steps` applies.
    If that is not set either, the control takes supervised steps until it has trained longer than RL did. From then on,
    `sparring eval` and MultiTurnRLEvaluator evaluate the control in addition to the other policies. `overrides` change
    the run's recipe.

    By default, the run must have been trained before. With `during_training`, another process trains the run: the control
    starts from the warm start as soon as it is saved, and ends after RL. On cores that are idle, this takes no extra time.

    If the training of a control is interrupted, it starts again from the warm start, because its learning rate depends
    on the steps and the time that are left. The run keeps its earlier control until the new one is complete.

    Raises UsageError if the run has no warm start, if the recipe differs from the trained one, or if a control with
    more steps exists. With `during_training`, it is also raised if the run fails or nothing trains it, and if its engine or
    learner is not in its process. Raises DataError if the warm start's checkpoint is missing or damaged.
    """
    if steps is not None and steps < 1:
        raise UsageError(
            f"steps is {steps}, but a control needs at least 1 step; give a positive number, or leave it out."
        )
    folder, console = RunFolder(Path(run)), Console(quiet=quiet)
    folder.require_manifest()
    config = load_config(folder.recipe, overrides)
    section = config.warm_start
    refuse_training(config, folder.code)
    if section is None:
        raise UsageError(
            f"{folder.recipe} has no warm start that could be continued; add [warm_start] and train the recipe. Without "
            "demonstrations, the base model is the control."
        )
    steps = steps or section.control_steps
    if during_training:
        _refuse_shared_servers(config, folder)
    elif not (folder.checkpoints / WARM_START).is_dir():
        raise UsageError(
            f"{folder.path} has not finished its warm start: the run ended earlier, or it started from the weights of another "
            f"run. Continue the run with `sparring train --resume {folder.path}`, or create the control of the other run."
        )
    _refuse_shorter(folder, steps)
    loader = RunLoader(load_training_parts, folder.recipe, config, console=console)
    rl = RLTime(folder, is_running=during_training)
    with loader, _locked_control(folder), rl:
        rl.wait_for_start()
        loader.use_folder(folder)
        loaded = event_loop.submit(loader.load()).result()
        refuse_another_control(loaded.parts, folder, config)
        try:
            return interrupts.run(_continue(loaded, section, steps, rl, console))
        except KeyboardInterrupt:
            console.announced(_describe_interruption(folder))
            raise


def _refuse_shared_servers(config: Config, folder: RunFolder) -> None:
    """Raise UsageError if the run and its control would need the same servers."""
    if config.engine.type != "torch" or config.learner.type != "here":
        raise UsageError(
            f"the control of {folder.path} cannot be trained during its training, because both would use the same servers "
            f"(engine.type={config.engine.type}, learner.type={config.learner.type}); create the control after the training."
        )


def _locked_control(folder: RunFolder) -> AbstractContextManager[None]:
    """Lock the control of a run. Raises UsageError if another process trains it."""
    refusal = UsageError(f"another process trains the control of {folder.path}; wait for its end.")
    return hold_lock(folder.path, refusal, name=CONTROL_LOCK)


def _describe_interruption(folder: RunFolder) -> str:
    """Return a message that states what is left of a stopped control, and what to do."""
    earlier = "the earlier control is unchanged" if (folder.controls / CONTINUED).is_dir() else "no control was stored"
    return f"the control was stopped before its last step, so {earlier}; run the command again to start from the warm start"


def read_control(folder: RunFolder) -> Control | None:
    """Return the control of a run, or None if there is none with readable files."""
    try:
        state = parse_json((folder.controls / CONTINUED / "state.json").read_text("utf-8"))
        return Control(
            steps=int(state["steps"]),
            seconds=float(state["seconds"]),
            rl_seconds=float(state["rl_seconds"]),
            validated={int(step): float(score) for step, score in state["validated"].items()},
            best_step=int(state["best_step"]),
            fingerprint=str(state["fingerprint"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _refuse_shorter(folder: RunFolder, steps: int | None) -> None:
    """Raise UsageError if a control with more steps would be lost. A control with unreadable files may be replaced."""
    made = read_control(folder)
    if steps is not None and made is not None and steps < made.steps:
        raise UsageError(
            f"{folder.controls / CONTINUED} is a control of {made.steps} steps, and a shorter control of {steps} steps would "
            f"replace it; give --steps {made.steps} or more, or delete that folder first."
        )


class _Length:
    """How long a control is: a number of steps, or at least this many steps and as long as RL."""

    def __init__(self, steps: int, rl: RLTime, *, is_counted: bool) -> None:
        self._steps, self._rl, self._is_counted = steps, rl, is_counted
        self._share, self._seconds = 0.0, 0.0
        """The share and the seconds when RL was last seen running."""
        self.is_waiting = False
        """Whether the control is as long as a running RL is expected to be, so that it waits for RL."""

    def share(self, step: int, seconds: float) -> float:
        """Return the share that is done after these steps and seconds. It is 1 or more at the end. Raises UsageError if RL
        fails."""
        is_final, by_steps, self.is_waiting = self._rl.is_final, step / self._steps, False
        if self._is_counted or not self._rl.seconds:
            return by_steps
        if not is_final:
            share = min(by_steps, seconds / self._rl.seconds, MOST_BEFORE_END)
            self._share, self._seconds, self.is_waiting = share, seconds, share == MOST_BEFORE_END
            return share
        # RL may end earlier than expected. The learning rate then falls within the time that is left, and a minimum of it.
        least = self._seconds + (1 - self._share) * LEAST_FALL * self._rl.seconds
        left = max(self._rl.seconds, least) - self._seconds
        return min(by_steps, self._share + (1 - self._share) * (seconds - self._seconds) / left)


class _Stopwatch:
    """Measure the time of the supervised steps, without validation."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def return_to(self, seconds: float) -> None:
        """Leave out the time since the stopwatch showed these seconds."""
        self._start = time.monotonic() - seconds


async def _continue(
    loaded: LoadedRun[TrainingParts], section: WarmStartSection, steps: int | None, rl: RLTime, console: Console
) -> Control:
    """Take the supervised steps, and keep the weights of the best point."""
    parts, folder = loaded.parts, loaded.folder
    conversations = load_demonstrations(parts, section.num_demonstrations, section.demonstrations)
    await rl.wait_for_warm_start()
    parts.learner.load_weights(load_checkpoint_weights(folder.checkpoints / WARM_START, parts.policy))
    parts.learner.reset_optimizer()
    # The time counts, and not an estimate of the steps, because other programs may slow the machine at any time.
    earlier = read_control(folder)
    least = max(section.steps, 0 if earlier is None else earlier.steps)
    length = _Length(steps or least, rl, is_counted=steps is not None)
    start = await _validate(loaded, 0)
    scores = {0: start.success.mean}
    best, kept, fingerprint = 0, parts.learner.export_state(), start.fingerprint
    watch, stop, ticks = _Stopwatch(), asyncio.Event(), steps or NUM_TICKS
    unit = "" if steps else " (%)"
    step, seconds, shown = 0, 0.0, 0
    with console.steps(f"control: the warm start continued{unit}", ticks) as progress:
        async for step, metrics in run_supervised_steps(
            parts.learner,
            conversations,
            steps=sys.maxsize,
            batch_size=section.batch_size,
            learning_rate=lambda one: section.learning_rate * max(0.0, 1 - length.share(one - 1, watch.seconds)),
            seed=parts.config.run.seed + 1,
            stop=stop,
        ):
            seconds = watch.seconds
            share = length.share(step, seconds)
            while length.is_waiting:
                await asyncio.sleep(WAIT_SECONDS)
                share = length.share(step, seconds)
            watch.return_to(seconds)
            for _ in range(min(ticks, round(share * ticks)) - shown):
                progress(metrics)
                shown += 1
            if share < len(scores) / NUM_POINTS:
                continue
            validated = await _validate(loaded, step)
            watch.return_to(seconds)
            scores[step] = validated.success.mean
            if scores[step] >= scores[best]:
                best, kept, fingerprint = step, parts.learner.export_state(), validated.fingerprint
            if share >= 1:
                stop.set()
    await rl.wait_for_end()
    control = Control(
        steps=step, seconds=seconds, rl_seconds=rl.seconds, validated=scores, best_step=best, fingerprint=fingerprint
    )
    # Saved together with the weights, so that a crash leaves an earlier control intact.
    checkpoints.save(folder.controls, CONTINUED, kept, {"step": 0, **asdict(control)})
    return control


async def _validate(loaded: LoadedRun[TrainingParts], step: int) -> Evaluation:
    """Evaluate the learner's weights on the validation tasks. Raises UsageError if there are no validation tasks."""
    parts, config = loaded.parts, loaded.parts.config
    section, temperature = config.evaluation, config.serving_temperature
    tasks = parts.tasks.validation[: section.val_num_tasks]
    if not tasks:
        raise UsageError("the control is chosen on validation tasks, but there are none; set data.validation.")
    weights, version = parts.learner.export_weights(), parts.engine.policy_version + 1
    await load_into_engine(parts, loaded.folder, weights, version=version)
    row = Row(
        name=f"control {step}",
        label=f"{CONTROL_LABEL}{step}",
        split="validation",
        policy_version=None,
        fingerprint=parts.engine.fingerprint,
        temperature=temperature,
        group_size=section.eval_group_size,
    )
    [(evaluation, _)] = await evaluate(
        parts.collector,
        tasks,
        [(row, Sampling(temperature=temperature, max_tokens=config.sampling.sampling_max_tokens))],
        criterion=parts.criterion,
        in_waves=parts.is_deterministic,
        attempt=str(time.time_ns()),
        seconds=time.monotonic,
        prefix="val",
        kind_of=parts.kind_of,
    )
    return evaluation
