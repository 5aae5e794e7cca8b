"""The composition root: a recipe becomes finished objects. The only room that knows the concrete classes."""

from sparring.build.algorithm import Algorithm, load_algorithm
from sparring.build.changes import check_parts, compared
from sparring.build.environment import environment_of, refuse_training
from sparring.build.judging import judges_of, trials_of
from sparring.build.policies import (
    checkpoint_in,
    frozen_engine,
    load_policy,
    message_engine_of,
    script_of,
    with_checkpoints,
)
from sparring.build.run import Baseline, Parts, build, build_baseline, build_scheduler, close, observer
from sparring.build.tasks import Tasks, load_curriculum, load_tasks
from sparring.build.warm_start import demonstrations

__all__ = [
    "Algorithm",
    "Baseline",
    "Parts",
    "Tasks",
    "build",
    "build_baseline",
    "build_scheduler",
    "check_parts",
    "checkpoint_in",
    "close",
    "compared",
    "demonstrations",
    "environment_of",
    "frozen_engine",
    "judges_of",
    "load_algorithm",
    "load_curriculum",
    "load_policy",
    "load_tasks",
    "message_engine_of",
    "observer",
    "refuse_training",
    "script_of",
    "trials_of",
    "with_checkpoints",
]
