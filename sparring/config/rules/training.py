"""Rules of [batch], [curriculum], [schedule], [model], [optimizer] and [detectors]."""

from __future__ import annotations

from collections.abc import Iterator

from sparring.algorithms.choice import SILENT_WHEN_EQUAL
from sparring.config.rules.conflict import ConfigRule, Conflict, find_given
from sparring.config.sections import Config


def refill_of_groups_that_teach(config: Config) -> Iterator[Conflict]:
    section = config.algorithm
    uses_equal_groups = (
        section.needs_every_token or section.takes_reward_off or section.advantage_method not in SILENT_WHEN_EQUAL
    )
    if config.batch.refill_groups and uses_equal_groups:
        yield Conflict(
            "batch.refill_groups",
            f"is {config.batch.refill_groups}, but with this [algorithm] a group with equal total rewards still has a gradient; "
            "leave it out, or use a method that compares total rewards, without a teacher, an entropy bonus or a divergence.",
            ("algorithm.advantage_method",),
        )


def keys_of_other_selections(config: Config) -> Iterator[Conflict]:
    select = config.curriculum.select
    unread = "is given, but select = {!r} does not read it; leave it out, or use {}."
    for key in find_given(config, "curriculum", "easy_threshold", "hard_threshold") if select != "mixed" else ():
        yield Conflict(f"curriculum.{key}", unread.format(select, "'mixed'"), ("curriculum.select",))
    for key in find_given(config, "curriculum", "retry_share", "history_groups") if select == "all" else ():
        yield Conflict(f"curriculum.{key}", unread.format(select, "'mixed' or 'frontier'"), ("curriculum.select",))


def thresholds_that_select_no_task(config: Config) -> Iterator[Conflict]:
    curriculum = config.curriculum
    if curriculum.hard_threshold >= curriculum.easy_threshold:
        yield Conflict(
            "curriculum.hard_threshold",
            f"is {curriculum.hard_threshold}, but easy_threshold is {curriculum.easy_threshold}, so no task would be between "
            "them; lower hard_threshold.",
            ("curriculum.easy_threshold",),
        )


def selection_in_one_epoch(config: Config) -> Iterator[Conflict]:
    select = config.curriculum.select
    if select != "all" and config.schedule.max_epochs == 1:
        yield Conflict(
            "curriculum.select",
            f"is {select!r}, which depends on earlier episodes of a task, but schedule.max_epochs = 1 uses every task once; "
            "raise max_epochs, or leave select out.",
            ("schedule.max_epochs",),
        )


def history_too_short(config: Config) -> Iterator[Conflict]:
    group_size, curriculum = config.batch.group_size, config.curriculum
    if curriculum.select != "all" and group_size * curriculum.history_groups < 4:
        yield Conflict(
            "curriculum.history_groups",
            f"is {curriculum.history_groups}, which with batch.group_size = {group_size} gives too few episodes to measure how "
            "hard a task is: after one lucky episode the task would be left out. Make the product of the two at least 4.",
            ("batch.group_size", "curriculum.select"),
        )


def settings_of_kinds_without_kinds(config: Config) -> Iterator[Conflict]:
    if config.curriculum.kind_field is not None:
        return
    for key in find_given(config, "curriculum", "kind_weights", "kind_block_size"):
        if getattr(config.curriculum, key):
            yield Conflict(
                f"curriculum.{key}",
                "is given, but kind_field is not, so all tasks are of one kind; set kind_field to the field that contains the "
                "kind.",
                ("curriculum.kind_field",),
            )


def roll_back_without_checkpoints(config: Config) -> Iterator[Conflict]:
    is_asked = config.detectors.reaction == "roll_back"
    if is_asked and config.schedule.save_every == 0 and config.warm_start is None:
        yield Conflict(
            "detectors.reaction",
            "is 'roll_back', but schedule.save_every = 0 saves only at the end, so there would be no checkpoint to return to; "
            "set save_every, or use 'stop'.",
            ("schedule.save_every", "warm_start"),
        )


def adapter_keys_without_adapter(config: Config) -> Iterator[Conflict]:
    if config.model.trained_weights != "full":
        return
    message = "is given, but trained_weights = 'full' trains no adapter; leave it out."
    keys = ("lora_rank", "lora_alpha", "lora_layers", "lora_targets", "lora_merged", "base_precision")
    for key in find_given(config, "model", *keys):
        yield Conflict(f"model.{key}", message, ("model.trained_weights",))
    for key in find_given(config, "optimizer", "lora_plus_lr_ratio"):
        yield Conflict(f"optimizer.{key}", message, ("model.trained_weights",))


def warmup_longer_than_run(config: Config) -> Iterator[Conflict]:
    if config.optimizer.warmup_steps > config.schedule.max_steps > 0:
        yield Conflict(
            "optimizer.warmup_steps",
            f"is {config.optimizer.warmup_steps}, but the run ends at schedule.max_steps = {config.schedule.max_steps}, so the "
            "rate would never reach learning_rate; lower it.",
            ("schedule.max_steps",),
        )


RULES: tuple[ConfigRule, ...] = (
    refill_of_groups_that_teach,
    keys_of_other_selections,
    thresholds_that_select_no_task,
    selection_in_one_epoch,
    history_too_short,
    settings_of_kinds_without_kinds,
    roll_back_without_checkpoints,
    adapter_keys_without_adapter,
    warmup_longer_than_run,
)
