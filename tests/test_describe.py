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
    assert rate.read_by == "training only (engine.type = 'torch', 'remote', 'vllm', 'sglang' or 'tinker')"


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


def test_a_range_names_the_functions_to_choose_from_and_the_bounds_of_elements() -> None:
    assert describe("algorithm.loss_fn").range.startswith("importance_sampling, ppo, ")
    assert describe("algorithm.loss_fn").range.endswith(" or a `module:function`")
    assert "module" not in describe("algorithm.loss_reduction").range
    assert describe("evaluation.pass_k_values").range == "each at least 1"
    assert describe("curriculum.kind_weights").range == "each above 0"
    assert describe("tracking.prices").range == "each at least 0"
    for override in ("evaluation.pass_k_values=[1, 0]", "curriculum.kind_weights.a=0.0", "tracking.prices.hour=-1.0"):
        with pytest.raises(ConfigError, match=override.partition("=")[0]):
            validate({}, [override])


ADAPTER = "model.trained_weights = 'lora'"
UNREAD = {
    "model.base_precision": ("bf16", ["model.trained_weights=full"], ADAPTER),
    "model.lora_merged": (True, ["model.trained_weights=full"], ADAPTER),
    "optimizer.lora_plus_lr_ratio": (2.0, ["model.trained_weights=full"], ADAPTER),
    "curriculum.kind_weights": ({"a": 1.0}, [], "training with curriculum.kind_field"),
    "curriculum.kind_block_size": (8, [], "training with curriculum.kind_field"),
    "curriculum.retry_share": (0.5, [], "curriculum.select = 'mixed' or 'frontier'"),
    "environment.max_turns": (3, ["agent.function=a:b"], "the built-in tool loop (recipes without an agent)"),
    "environment.worker_timeout": (9.0, [], "environment.workers above 0, or environment.listen"),
    "environment.listen_timeout": (
        9.0,
        ["environment.workers=2"],
        "environment.listen, and workers that a Ray cluster starts",
    ),
    "environment.tls_key": ("key.pem", [], "environment.listen"),
    "agent.max_turns": (3, [], "agent.function, agent.command, agent.url and agent.pull"),
    "agent.gateway_host": ("localhost", ["agent.function=a:b"], "agent.url and agent.pull"),
    "agent.gateway_port": (80, ["agent.function=a:b"], "agent.url and agent.pull"),
    "agent.gateway_names": (("tunnel",), ["agent.function=a:b"], "agent.url and agent.pull"),
    "agent.variables": (("REGION=eu",), ["agent.function=a:b"], "agent.command"),
    "agent.tps_limit": (2.0, ["agent.pull=true"], "agent.url"),
    "data.validation_fraction": (0.2, ["data.validation=v.jsonl"], "recipes without data.validation"),
    "data.held_out_fraction": (0.2, ["data.held_out=h.jsonl"], "recipes without data.held_out"),
    "algorithm.kl_form": ("loss_k3", [], "algorithm.kl_coef above 0"),
    "algorithm.teacher_coef": (0.5, [], "algorithm.teacher"),
    "algorithm.options": ({"a": 1}, [], "advantage_method and loss_fn that are a `module:function`"),
    "rollout.session_weights": ("pinned", ["rollout.max_steps_off_policy=0"], "rollout.max_steps_off_policy above 0"),
    "tracking.mlflow_uri": ("sqlite:///a", [], "tracking.mlflow = true"),
    "tracking.mlflow_experiment_name": ("a", [], "tracking.mlflow = true"),
    "tracking.wandb_project": ("a", [], "tracking.wandb = true"),
    "tracking.wandb_entity": ("a", [], "tracking.wandb = true"),
    "tracking.wandb_mode": ("offline", [], "tracking.wandb = true"),
    "engine.script": ("a.jsonl", [], "engine.type = 'scripted'"),
    "learner.base_url": ("http://a", [], "learner.type = 'remote' or 'tinker'"),
    "algorithm.ratio_cap": (2.0, [], "loss_fn = dppo_tv (20.0)"),
}


@pytest.mark.parametrize("key", UNREAD)
def test_a_key_with_readers_is_refused_in_a_recipe_without_them(key: str) -> None:
    value, overrides, readers = UNREAD[key]
    assert describe(key).read_by == readers
    section, name = key.split(".")
    with pytest.raises(ConfigError) as refused:
        validate({section: {name: value}}, overrides)
    assert key in {problem.key for problem in refused.value.problems}


@pytest.mark.parametrize("method", ["group_based", "monte_carlo"])
def test_the_methods_that_sum_rewards_per_turn_are_those_that_may_be_set_to(method: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate({}, ["algorithm.turn_rewards=sum", f"algorithm.advantage_method={method}"])
    is_refused = "algorithm.turn_rewards" in {problem.key for problem in refused.value.problems}
    named = describe("algorithm.turn_rewards").read_by.removeprefix("advantage_method = ").split(", ")
    assert is_refused == (method not in named)


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
