"""`sparring init --model NAME` writes a recipe that passes `sparring check`, for each family that has a small model."""

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
from tests.models.architectures.small_models import SMALL_MODELS, save_small_model


@pytest.mark.parametrize("family", SMALL_MODELS)
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
    assert {name: one.family.name for name, one in known.items() if one.family and not name.startswith("qwen3-")} == {
        "gpt-oss-20b": "gpt-oss",
        "qwen3.6-27b": "Qwen3.6",
        "gemma-4-31b": "Gemma 4",
    }
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}', "utf-8")
    folder = find_starter(str(tmp_path))
    assert (folder.model, folder.family) == (str(tmp_path.resolve()), known["gpt-oss-20b"].family)
    refused = CliRunner().invoke(app, ["init", "--model", "unheard-of"])
    assert refused.exit_code == 2
    assert "qwen3-1.7b" in refused.output


def test_the_defaults_fit_each_other() -> None:
    assert SamplingSection().sampling_max_tokens < ModelSection().max_sequence_length
    assert Config.model_fields["sampling"].default == SamplingSection()
