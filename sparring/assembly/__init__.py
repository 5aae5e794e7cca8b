"""Build all objects of a run from a recipe. This is the only package that knows the concrete classes."""

from sparring.assembly.algorithm import Algorithm, load_algorithm
from sparring.assembly.changes import check_parts, find_overrides, record_parts, refuse_another_control
from sparring.assembly.engines import build_engine, build_learner
from sparring.assembly.environment import load_environment, refuse_training
from sparring.assembly.graders import build_trials, load_graders
from sparring.assembly.message_engines import build_main_policy, load_evaluated_engine, load_message_engine
from sparring.assembly.policies import (
    build_frozen_engine,
    find_checkpoint,
    load_checkpoint_weights,
    load_policy,
    pin_checkpoints,
)
from sparring.assembly.run import (
    EvaluationParts,
    RolloutParts,
    TrainingParts,
    build_scheduler,
    close,
    load_evaluation_parts,
    load_into_engine,
    load_rollout_parts,
    load_training_parts,
)
from sparring.assembly.tasks import Tasks, load_curriculum, load_tasks, pin_data
from sparring.assembly.warm_start import check_demonstrations, load_demonstrations

__all__ = [
    "Algorithm",
    "EvaluationParts",
    "RolloutParts",
    "Tasks",
    "TrainingParts",
    "build_engine",
    "build_frozen_engine",
    "build_learner",
    "build_main_policy",
    "build_scheduler",
    "build_trials",
    "check_demonstrations",
    "check_parts",
    "close",
    "find_checkpoint",
    "find_overrides",
    "load_algorithm",
    "load_checkpoint_weights",
    "load_curriculum",
    "load_demonstrations",
    "load_environment",
    "load_evaluated_engine",
    "load_evaluation_parts",
    "load_graders",
    "load_into_engine",
    "load_message_engine",
    "load_policy",
    "load_rollout_parts",
    "load_tasks",
    "load_training_parts",
    "pin_checkpoints",
    "pin_data",
    "record_parts",
    "refuse_another_control",
    "refuse_training",
]
