"""The whole recipe, section by section."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pydantic import Field

from sparring.algorithms import choice
from sparring.config.sections.base import Section
from sparring.config.sections.episodes import (
    ENGINE_CAPABILITIES,
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
from sparring.types import EngineCapabilities


class Config(Section):
    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    environment: EnvironmentSection = EnvironmentSection()
    agent: AgentSection = AgentSection()
    policies: dict[str, PolicySection] = Field(default_factory=dict)
    reward: RewardSection = RewardSection()
    batch: BatchSection = BatchSection()
    curriculum: CurriculumSection = CurriculumSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    sampling: SamplingSection = SamplingSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    limits: LimitsSection = LimitsSection()
    rollout: RolloutSection = RolloutSection()
    engine: EngineSection = EngineSection()
    learner: LearnerSection = LearnerSection()
    evaluation: EvaluationSection = EvaluationSection()
    warm_start: WarmStartSection | None = None
    checks: ChecksSection = ChecksSection()
    detectors: DetectorsSection = DetectorsSection()
    tracking: TrackingSection = TrackingSection()

    @property
    def launches_workers(self) -> bool:
        """Whether a cluster starts the workers, which connect to the run."""
        return self.run.launcher == "ray" and self.environment.workers > 0

    @property
    def is_trainable(self) -> bool:
        """Whether the engine returns token ids, which training needs."""
        return self.engine_capabilities.reports_token_ids

    @property
    def engine_capabilities(self) -> EngineCapabilities:
        """The capabilities of the recipe's engine."""
        can = ENGINE_CAPABILITIES[self.engine.type]
        if self.engine.uses_servers and self.model.trained_weights == "full":
            return replace(can, holds_several_weights=False, pins_weights=False)
        return can

    @property
    def starts_servers(self) -> bool:
        """Whether vLLM servers are started on this machine."""
        return self.engine.type == "vllm" and not self.engine.base_urls

    @property
    def num_adapters(self) -> int:
        """The number of adapters that servers keep at once: the newest one, those that turns may still use, the one that is
        being loaded, and those of frozen policies."""
        num_frozen = sum(policy.role == "frozen" for policy in self.policies.values())
        return self.rollout.max_steps_off_policy + 2 + num_frozen

    @property
    def runs_in_rounds(self) -> bool:
        """Whether the engine runs in deterministic rounds.

        If the recipe does not set it, the engine uses deterministic rounds when training is synchronous and the engine
        supports them.
        """
        if self.engine.deterministic is not None:
            return self.engine.deterministic
        # Rounds wait for every open session, and there is no limit on how long an agent or an endpoint takes.
        is_foreign = self.agent.is_foreign or any(policy.role == "endpoint" for policy in self.policies.values())
        can = self.engine_capabilities.deterministic_rounds
        return can and self.rollout.max_steps_off_policy == 0 and not is_foreign

    @property
    def start_allowance(self) -> int:
        """The number of steps by which groups may start ahead of the learner (docs/staleness.md). It is negative if the
        window alone exceeds the bound."""
        waits = math.ceil((self.rollout.staleness_window - 1) / self.batch.global_batch_size)
        return self.rollout.max_steps_off_policy - waits

    @property
    def serving_temperature(self) -> float:
        """The temperature at which a policy is served; by default the temperature of training."""
        temperature = self.evaluation.eval_temperature
        return self.sampling.temperature if temperature is None else temperature

    @property
    def off_policy_correction(self) -> str:
        """The correction that the recipe names, or the default correction for its loss and staleness."""
        section = self.algorithm
        if section.off_policy_correction is not None:
            return section.off_policy_correction
        # The servers' kernels differ from the learner's, so even its newest tokens are slightly off-policy.
        is_elsewhere = self.engine.uses_servers or self.engine.type == "tinker"
        bound = max(1 if is_elsewhere else 0, self.rollout.max_steps_off_policy)
        return choice.default_correction(section.loss_fn, max_steps_off_policy=bound)

    def chosen_functions(self) -> dict[str, str]:
        """Return the names of the functions that make up the algorithm, by their keys in [algorithm]."""
        section = self.algorithm
        return {
            "advantage_method": section.advantage_method,
            "loss_fn": section.loss_fn,
            "off_policy_correction": self.off_policy_correction,
            "loss_reduction": section.loss_reduction,
        }

    def loss_config(self) -> dict[str, Any]:
        """Return the loss settings that a learner reads: the hyperparameters, the correction and the additional
        terms."""
        section = self.algorithm
        return section.hyperparameters() | {
            "off_policy_correction": self.off_policy_correction,
            "policy_ratio": section.policy_ratio,
            "entropy_coef": section.entropy_coef,
            "kl_coef": section.kl_coef,
            "kl_form": section.kl_form,
        }

    def algorithm_in_effect(self) -> dict[str, Any]:
        """Return [algorithm] with the correction that applies, and without hyperparameters that nothing reads."""
        section = self.algorithm
        values = section.model_dump(mode="json") | {"off_policy_correction": self.off_policy_correction}
        read = choice.resolve_hyperparameters(self.chosen_functions(), section.hyperparameters())
        return {
            key: read.get(key, value)
            for key, value in values.items()
            if key in read or key not in HYPERPARAMETERS or value is not None
        }


def section_class(annotation: Any) -> type[Section]:
    """Return the section class in a field's annotation. The annotation may be an optional section or a mapping of
    sections."""
    if isinstance(annotation, type):
        return annotation
    return next(part for part in annotation.__args__ if isinstance(part, type) and issubclass(part, Section))
