"""`sparring init --model NAME` writes a recipe that passes `sparring check` and has a plan, for each family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.assembly import load_policy
from sparring.cli import app
from sparring.config import Config, load_config
from sparring.config.sections import ModelSection, SamplingSection
from sparring.models.architectures.families import FAMILIES
from sparring.models.starters import NAMES, find_starter
from sparring.planning.resolve import find_shape
from tests.models.architectures.small_models import save_small_model


@pytest.mark.parametrize("family", [one.name for one in FAMILIES])
def test_a_family_starts_with_a_recipe_that_passes_the_check(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = next(one.example for one in FAMILIES if one.name == family)
    made = CliRunner().invoke(app, ["init", "--model", example, "start"])
    assert made.exit_code == 0, made.output
    save_small_model(family, tmp_path / "model")
    config = load_config(tmp_path / "start" / "recipe.toml", [f"model.name={tmp_path / 'model'}", "model.device=cpu"])
    assert config.model.lora_targets
    policy = load_policy(config, tmp_path / "start")
    assert all(any(f".{one}." in name for name in policy.trained) for one in config.model.lora_targets)

    checked = CliRunner().invoke(app, ["check", "start", f"model.name={tmp_path / 'model'}", "--json"])
    assert checked.exit_code == 0, checked.output
    report = json.loads(checked.stdout)
    assert [one for one in report["findings"] if one["severity"] == "error"] == []


def test_each_number_states_its_source() -> None:
    for name in NAMES:
        lines = [line for text in find_starter(name).sections().values() for line in text.splitlines()]
        assert [line for line in lines if "#" not in line and not line.startswith("name = ")] == []


def test_a_model_is_named_shortly_by_its_hub_or_by_a_folder(tmp_path: Path) -> None:
    known = {name: find_starter(name) for name in NAMES}
    assert known["gpt-oss-20b"].model == "openai/gpt-oss-20b"
    assert known["mistral-nemo"].model == "mistralai/Mistral-Nemo-Instruct-2407"
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}', "utf-8")
    folder = find_starter(str(tmp_path))
    assert (folder.model, folder.family) == (str(tmp_path.resolve()), known["gpt-oss-20b"].family)
    refused = CliRunner().invoke(app, ["init", "--model", "unheard-of"])
    assert refused.exit_code == 2
    assert "qwen3-1.7b" in refused.output


NAMES_ON_THE_HUB = {
    "meta-llama/Meta-Llama-3-8B-Instruct": "Llama 3",
    "meta-llama/Llama-3.3-70B-Instruct": "Llama 3",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": "Qwen2.5",
    "Qwen/Qwen3-4B-Instruct-2507": "Qwen3",
    "someone/qwen3-0.6b-fine-tune": "Qwen3",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "Qwen3 MoE",
    "mistralai/Mistral-Nemo-Instruct-2407": "Mistral",
    "google/gemma-3-270m-it": "Gemma 3",
    "openai/gpt-oss-120b": "gpt-oss",
    # Other architectures or other formats of a call.
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": None,
    "Qwen/Qwen3.6-35B-A3B": None,
    "Qwen/Qwen3-VL-8B-Instruct": None,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": None,
    "google/gemma-3n-E4B-it": None,
    "google/gemma-4-E4B-it": None,
    "google/gemma-4-26B-A4B-it": None,
    "meta-llama/Llama-3.2-11B-Vision-Instruct": None,
}


def test_the_family_of_a_model_is_that_of_its_name() -> None:
    assert {family.example: find_starter(family.example).family for family in FAMILIES} == {
        family.example: family for family in FAMILIES
    }
    found = {name: find_starter(name).family for name in NAMES_ON_THE_HUB}
    assert {name: None if one is None else one.name for name, one in found.items()} == NAMES_ON_THE_HUB
    assert {one.family.name for one in map(find_starter, NAMES) if one.family} == {one.name for one in FAMILIES}


def test_the_rates_are_those_of_the_recipes_of_aws_where_there_are_some() -> None:
    rates = {family.name: find_starter(family.example).sections()["optimizer"].splitlines()[0] for family in FAMILIES}
    assert rates.pop("gpt-oss") == rates.pop("Gemma 4") == "learning_rate = 1e-05 # recipe of AWS for this model"
    assert rates.pop("Qwen3.6") == "learning_rate = 4e-05 # recipe of AWS for this model"
    assert set(rates.values()) == {"learning_rate = 4e-05 # AWS documentation, for open models"}


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_of_a_starter_recipe_needs_no_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["init", "--model", name, "start"]).exit_code == 0
    config = load_config(tmp_path / "start" / "recipe.toml")
    assert config.sampling.sampling_max_tokens < config.model.max_sequence_length
    assert config.optimizer.max_tokens_per_microbatch >= config.model.max_sequence_length
    planned = CliRunner().invoke(app, ["plan", "start", "--gpu", "H200", "--json"])
    assert planned.exit_code in (0, 5), planned.output
    shape = find_shape(config.model.name)
    assert shape is not None
    family = find_starter(name).family
    assert family is not None
    # Each layer that gets an adapter is in some layer of the shape.
    assert set(config.model.lora_targets) <= {one for layer in shape.layers for one in (*layer.attention, *layer.mlp)}


def test_the_defaults_fit_each_other() -> None:
    assert SamplingSection().sampling_max_tokens < ModelSection().max_sequence_length
    assert Config.model_fields["sampling"].default == SamplingSection()
