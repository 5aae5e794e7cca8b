"""Rules of [data] and [evaluation]: how tasks are split, and what can be measured on the splits."""

from __future__ import annotations

from collections.abc import Iterator

from sparring.config.rules.conflict import ConfigRule, Conflict, find_given
from sparring.config.sections import Config


def share_of_a_named_split(config: Config) -> Iterator[Conflict]:
    for split in ("validation", "held_out"):
        if getattr(config.data, split) is not None and find_given(config, "data", f"{split}_fraction"):
            message = f"is given, but data.{split} already names the tasks; leave one of them out."
            yield Conflict(f"data.{split}_fraction", message, (f"data.{split}",))


def columns_of_functions(config: Config) -> Iterator[Conflict]:
    data = config.data
    sources = [one for one in (data.train, data.validation, data.held_out) if one is not None]
    if data.columns and not any(":" not in one or one.startswith("hf://") for one in sources):
        message = "names columns, but no split is read from a file or a data set; leave it out."
        yield Conflict("data.columns", message, ("data.train", "data.validation", "data.held_out"))


def nothing_left_to_train_on(config: Config) -> Iterator[Conflict]:
    data = config.data
    are_split_off = data.validation is None and data.held_out is None
    if are_split_off and data.validation_fraction + data.held_out_fraction >= 1:
        yield Conflict(
            "data.validation_fraction",
            f"is {data.validation_fraction}, which with held_out_fraction = {data.held_out_fraction} leaves nothing to train "
            "on; make their sum less than 1.",
            ("data.held_out_fraction", "data.validation", "data.held_out"),
        )


def undefined_pass_at_k(config: Config) -> Iterator[Conflict]:
    largest = max(config.evaluation.val_group_size, config.evaluation.eval_group_size)
    for k in config.evaluation.pass_k_values or ():
        if k > largest:
            yield Conflict(
                "evaluation.pass_k_values",
                f"contains {k}, but with {largest} episodes per task pass@{k} is not defined; raise eval_group_size.",
                ("evaluation.val_group_size", "evaluation.eval_group_size"),
            )


def nucleus_of_greedy_sampling(config: Config) -> Iterator[Conflict]:
    if config.evaluation.val_temperature == 0 and config.evaluation.val_top_p < 1:
        yield Conflict(
            "evaluation.val_top_p",
            f"is {config.evaluation.val_top_p}, but evaluation.val_temperature = 0 always takes the most likely token; raise "
            "val_temperature, or leave val_top_p out.",
            ("evaluation.val_temperature",),
        )


RULES: tuple[ConfigRule, ...] = (
    share_of_a_named_split,
    columns_of_functions,
    nothing_left_to_train_on,
    undefined_pass_at_k,
    nucleus_of_greedy_sampling,
)
