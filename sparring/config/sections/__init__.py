"""The sections of a recipe: every setting with its default, its bounds and its meaning."""

from sparring.config.sections.base import Section
from sparring.config.sections.config import Config, section_class
from sparring.config.sections.episodes import (
    ENGINE_CAPABILITIES,
    ENGINE_KEYS,
    LAUNCHED_KEYS,
    LISTEN_KEYS,
    LOCAL_SERVER_KEYS,
    POLICY_KEYS,
    AgentSection,
    DataSection,
    EngineSection,
    EnvironmentSection,
    PolicySection,
    RewardSection,
    RolloutSection,
    SamplingSection,
)
from sparring.config.sections.runs import EvaluationSection, RunSection, TrackingSection
from sparring.config.sections.training import (
    HYPERPARAMETERS,
    LEARNER_KEYS,
    AlgorithmSection,
    BatchSection,
    ChecksSection,
    CurriculumSection,
    DetectorsSection,
    LearnerSection,
    LimitsSection,
    ModelSection,
    OptimizerSection,
    ScheduleSection,
    WarmStartSection,
)

__all__ = [
    "ENGINE_CAPABILITIES", "ENGINE_KEYS", "HYPERPARAMETERS", "LAUNCHED_KEYS", "LEARNER_KEYS", "LISTEN_KEYS", "LOCAL_SERVER_KEYS",
    "POLICY_KEYS", "AgentSection", "AlgorithmSection",
    "BatchSection", "ChecksSection", "Config", "CurriculumSection", "DataSection", "DetectorsSection", "EngineSection",
    "EnvironmentSection", "EvaluationSection", "LearnerSection", "LimitsSection", "ModelSection", "OptimizerSection",
    "PolicySection",
    "RewardSection", "RolloutSection", "RunSection", "SamplingSection", "ScheduleSection", "Section", "TrackingSection",
    "WarmStartSection", "section_class",
]  # fmt: skip
