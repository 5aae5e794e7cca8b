"""`sparring config` describes every key, its range and what reads it, and names the nearest one for an unknown key."""

import json

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.config import Config, validate
from sparring.config.describe import Setting, describe_settings, describe_type
from sparring.config.sections import section_class
from sparring.errors import ConfigError, UsageError


def describe(key: str) -> Setting:
    (setting,) = describe_settings(key)
    return setting


def test_a_key_is_described_with_its_type_range_default_and_meaning() -> None:
    rate = describe("optimizer.learning_rate")
    assert (rate.type, rate.range, rate.default) == ("number", "above 0, at most 1", 4e-5)
    assert rate.meaning == "Learning rate of the RL steps."
    assert rate.read_by == "training only (engine.type = 'torch' or 'remote')"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.precision", 'one of "auto", "fp32", "bf16"'),
        ("model.lora_layers", "integer or none"),
        ("model.lora_targets", "list of text"),
        ("tracking.prices", "table of number"),
        ("environment.options", "table of any value"),
    ],
)
def test_types_are_in_words(key: str, words: str) -> None:
    assert describe(key).type == words


def test_a_hyperparameter_names_the_functions_that_read_it_with_their_defaults() -> None:
    assert "loss_fn = " in describe("algorithm.clip_low_threshold").read_by
    assert "ppo (0.8)" in describe("algorithm.clip_low_threshold").read_by
    assert "values of clip_low_threshold" in describe("algorithm.clip_low_epsilon").read_by
    assert describe("algorithm.pass_k").read_by.startswith("advantage_method = pass_at_k")
    assert describe("engine.script").read_by == "engine.type = 'scripted'"
    assert describe("curriculum.easy_threshold").read_by == "curriculum.select = 'mixed'"


def test_every_key_of_a_recipe_is_described() -> None:
    described = {one.key.replace("policies.NAME.", "policies.") for one in describe_settings()}
    assert described == {
        f"{name}.{key}"
        for name, field in Config.model_fields.items()
        for key in section_class(field.annotation).model_fields
    }


def test_every_stated_bound_is_the_one_that_is_refused_beyond() -> None:
    for one in describe_settings():
        bounds = [part.split() for part in one.range.split(", ") if part]
        for *sign, bound in bounds:
            if sign not in (["at", "least"], ["at", "most"]) or one.key.startswith("policies"):
                continue
            beyond = float(bound) - 1 if sign == ["at", "least"] else float(bound) + 1
            value = int(beyond) if "integer" in one.type else beyond
            with pytest.raises(ConfigError, match=one.key):
                validate({}, [f"{one.key}={json.dumps(value)}"])


def test_a_section_is_a_prefix_and_an_unknown_key_names_the_nearest() -> None:
    assert [one.key for one in describe_settings("batch")] == [
        "batch.global_batch_size",
        "batch.group_size",
        "batch.refill_groups",
    ]
    assert describe("policies.helper.role").key == "policies.NAME.role"
    with pytest.raises(UsageError, match=r"'batch.grup_size'.*nearest one is 'batch.group_size'"):
        describe_settings("batch.grup_size")
    with pytest.raises(UsageError, match=r"nearest one is 'optimizer.learning_rate'"):
        describe_settings("learning_rate")


def test_the_command_prints_one_key_and_every_key() -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["config", *arguments], terminal_width=200)
        assert result.exit_code == 0, result.output
        return result.stdout

    one = run("batch.group_size")
    assert "integer" in one
    assert "at least 1" in one
    assert "Episodes per task." in one
    everything = json.loads(run("--json"))
    assert len(everything) == len(describe_settings())
    assert all(setting["meaning"] for setting in everything)


def test_an_annotated_type_is_described_by_what_it_annotates() -> None:
    assert describe_type(tuple[int, ...] | None) == "list of integer or none"
