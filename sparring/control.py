"""A control for RL: the warm start of a run, continued by supervised steps for at least as long as RL took.

What RL gained is what tuned weights do better than this, not better than the warm start: some more imitation might have done
the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from sparring import interrupts
from sparring.build import Parts, demonstrations, refuse_training
from sparring.config.sections import WarmStartSection
from sparring.errors import UsageError
from sparring.evaluation.evaluation import Evaluation, Row, evaluate
from sparring.tracking import Console, RunFolder
from sparring.tracking.recipe_files import folder_of
from sparring.tracking.run_folder import CONTINUED, WARM_START
from sparring.tracking.stored import training_seconds
from sparring.trainer import MultiTurnRLTrainer
from sparring.training import checkpoints
from sparring.training.schedule import learning_rate
from sparring.types import Sampling
from sparring.warm_start import Conversation, supervised_steps

NUM_POINTS = 4
"""How often the control is validated, evenly spaced."""
NUM_TIMED = 5
"""Steps after which it is known how long a step takes; the first is left out."""
SPARE = 1.1
"""How many times RL's wall time the steps shall take, where their number follows from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The warm start continued, as `controls/warm_start_continued/state.json` has it."""

    steps: int
    """Supervised steps in all."""
    seconds: float
    """That the steps took."""
    rl_seconds: float
    """That RL's steps took, validation apart."""
    validated: Mapping[int, float]
    """Success on validation tasks by step; 0 is the warm start itself."""
    best_step: int
    """Whose weights are kept: of those with the highest success the last."""
    fingerprint: str
    """Of these weights: an evaluation with another one played an earlier control."""


def continue_warm_start(
    model: MultiTurnRLTrainer | str | Path, *, steps: int | None = None, quiet: bool = False
) -> Control:
    """Continue the warm start of a trained run, and keep the best of several points by validation as its control; blocks.

    The optimizer is fresh, and the rate falls from `warm_start.learning_rate` to 0. Success is validated at the temperature
    that the recipe serves with. `steps`: None takes the recipe's `warm_start.control_steps`, and without one as many as
    last longer than RL did. `sparring eval` and MultiTurnRLEvaluator evaluate the control beside the other policies from
    then on. The learner of a given trainer holds other weights afterwards.

    Raises UsageError for a run without warm start, and DataError where its checkpoint is missing or damaged.
    """
    if steps is not None and steps < 1:
        raise UsageError(f"{steps} steps continue nothing; give a number from 1, or leave it out.")
    trainer = model if isinstance(model, MultiTurnRLTrainer) else MultiTurnRLTrainer.attach(model)
    section, folder = trainer.config.warm_start, trainer.folder
    refuse_training(trainer.config, folder_of(trainer.recipe))
    if section is None or folder is None or not (folder.checkpoints / WARM_START).is_dir():
        raise UsageError(
            f"{trainer.recipe} has had no warm start that could be continued; add [warm_start] and train it. Without "
            "demonstrations the base model is the control."
        )
    parts = trainer.parts
    with folder.held_for_training():
        return interrupts.run(
            _continue(trainer, parts, section, folder, steps or section.control_steps, Console(quiet=quiet))
        )


async def _continue(
    trainer: MultiTurnRLTrainer,
    parts: Parts,
    section: WarmStartSection,
    folder: RunFolder,
    steps: int | None,
    console: Console,
) -> Control:
    rl_seconds = training_seconds(folder.path / "metrics.jsonl")
    conversations = demonstrations(parts, section.num_demonstrations, section.demonstrations)
    parts.learner.load_weights(checkpoints.load_weights(folder.checkpoints / WARM_START, parts.policy))
    if steps is None:
        with console.phase("control: how long a supervised step takes"):
            each = await _seconds_of_step(parts, conversations, section, trainer.config.run.seed)
        steps = max(section.steps, math.ceil(SPARE * rl_seconds / each))
        parts.learner.load_weights(checkpoints.load_weights(folder.checkpoints / WARM_START, parts.policy))
    parts.learner.reset_optimizer()
    rate = partial(learning_rate, peak=section.learning_rate, schedule="linear", warmup_steps=0, max_steps=steps)
    points = sorted({max(1, round(steps * part / NUM_POINTS)) for part in range(1, NUM_POINTS + 1)})
    start = await _validated(trainer, parts, 0)
    scores = {0: start.success.mean}
    best, kept, fingerprint, seconds = 0, parts.learner.export_state(), start.fingerprint, 0.0
    with console.steps("control: the warm start continued", steps) as progress:
        began = time.monotonic()
        async for step, metrics in supervised_steps(
            parts.learner, conversations, steps=steps, batch_size=section.batch_size, learning_rate=rate,
            seed=trainer.config.run.seed + 1,
        ):  # fmt: skip
            progress(metrics)
            if step in points:
                seconds += time.monotonic() - began
                validated = await _validated(trainer, parts, step)
                scores[step] = validated.success.mean
                if scores[step] >= scores[best]:
                    best, kept, fingerprint = step, parts.learner.export_state(), validated.fingerprint
                began = time.monotonic()
    control = Control(
        steps=steps, seconds=seconds, rl_seconds=rl_seconds, validated=scores, best_step=best, fingerprint=fingerprint
    )  # fmt: skip
    # With the weights, so that a process that dies leaves an earlier control with its own.
    checkpoints.save(folder.controls, CONTINUED, kept, {"step": 0, **asdict(control)})
    return control


async def _seconds_of_step(
    parts: Parts, conversations: list[Conversation], section: WarmStartSection, seed: int
) -> float:
    began = 0.0
    async for step, _ in supervised_steps(
        parts.learner, conversations, steps=NUM_TIMED, batch_size=section.batch_size, learning_rate=lambda _: 0.0, seed=seed
    ):  # fmt: skip
        if step == 1:
            began = time.monotonic()
    return (time.monotonic() - began) / (NUM_TIMED - 1)


async def _validated(trainer: MultiTurnRLTrainer, parts: Parts, step: int) -> Evaluation:
    """What the learner's weights do on the validation tasks."""
    section, temperature = trainer.config.evaluation, trainer.config.serving_temperature
    tasks = parts.tasks.validation[: section.val_num_tasks]
    if not tasks:
        raise UsageError("the control is chosen on validation tasks, and there are none; set data.validation.")
    await trainer.play_with(parts.learner.export_weights())
    row = Row(
        name=f"control {step}", label=f"control-{step}", split="validation", policy_version=None,
        fingerprint=parts.engine.fingerprint, temperature=temperature, group_size=section.eval_group_size,
    )  # fmt: skip
    evaluation, _ = await evaluate(
        parts.collector, tasks, row,
        sampling=Sampling(temperature=temperature, max_tokens=trainer.config.sampling.sampling_max_tokens),
        judge=parts.judge, in_waves=parts.is_deterministic, attempt=str(time.time_ns()), seconds=time.monotonic,
        prefix="val", kind_of=parts.kind_of,
    )  # fmt: skip
    return evaluation
