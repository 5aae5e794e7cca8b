"""What is exported states what it is, loads with plain peft and transformers, and is refused when it is damaged."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import DataError, ServiceError
from sparring.evaluation.policies import checkpoint_of
from sparring.models.export_files import verify
from sparring.models.policy import fingerprint
from sparring.models.pretrained import load_pretrained
from sparring.run_folders import RunFolder
from sparring.serving.export import export
from sparring.serving.serve import load_served
from tests.faults.recipe.tiny import build

TINY = Path(__file__).parents[1] / "faults" / "recipe"
IDS = list(b"what an adapter computes")


@pytest.fixture
def adapter(run: Path, tmp_path: Path) -> Path:
    return export(run, tmp_path / "adapter")


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def engine_logprobs(run: str) -> list[float]:
    """What the engine gives for IDS under a run's policy."""
    policy, _, _ = load_served(run)
    engine = TorchEngine(policy, policy.snapshot())
    return asyncio.run(engine.logprobs(IDS))


def executed_readme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the README's Python block defines when it is executed in the folder."""
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)
    return names


def logprobs(model: Any) -> list[float]:
    with torch.no_grad():
        scores = model(torch.tensor([IDS])).logits[0].log_softmax(-1)
    return [scores[place, token].item() for place, token in enumerate(IDS[1:])]


def test_an_adapter_loads_as_its_readme_states_and_computes_what_the_engine_computes(
    run: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine_logprobs(str(run))[-len(IDS) + 1 :]
    assert logprobs(build(0)[0]) != pytest.approx(expected, abs=1e-3)
    names = executed_readme(adapter, monkeypatch)
    assert logprobs(names["model"]) == pytest.approx(expected, abs=1e-5)
    assert names["tokenizer"].encode("a") == build(0)[1].encode("a")
    assert logprobs(load_pretrained(str(adapter))[0]) == pytest.approx(expected, abs=1e-5)
    # Served in the machine's own precision.
    assert engine_logprobs(str(adapter))[-len(IDS) + 1 :] == pytest.approx(expected, abs=0.05)


def test_a_merged_model_and_the_base_of_a_model_made_by_code_load_as_the_readme_states(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine_logprobs(str(run))[-len(IDS) + 1 :]
    names = executed_readme(export(run, tmp_path / "merged", merge=True), monkeypatch)
    assert logprobs(names["model"]) == pytest.approx(expected, abs=1e-5)

    made = Path(shutil.copytree(run, tmp_path / "made"))
    recipe = made / "run.toml"
    recipe.write_text(re.sub(r'(?m)^name = ".*/base"$', 'name = "tiny:build"', recipe.read_text()))
    folder = export(made, tmp_path / "whole")
    moved = Path(shutil.move(folder, tmp_path / "elsewhere"))
    assert logprobs(executed_readme(moved, monkeypatch)["model"]) == pytest.approx(expected, abs=1e-5)
    assert logprobs(load_pretrained(str(moved))[0]) == pytest.approx(expected, abs=1e-5)


def test_the_manifest_names_step_policy_base_and_the_evaluations_of_exactly_these_weights(
    run: Path, tmp_path: Path
) -> None:
    done = sparring("export", f"{run}@1", str(tmp_path / "first"), "--json")
    assert done.exit_code == 0, done.output
    manifest = verify(tmp_path / "first")
    assert {key: json.loads(done.stdout)[key] for key in ("step", "fingerprint")} == {
        "step": 1,
        "fingerprint": manifest["fingerprint"],
    }
    validation = json.loads((run / "evaluations" / "validation-1.json").read_text())
    assert (manifest["step"], manifest["kind"]) == (1, "adapter")
    assert manifest["fingerprint"] == validation["fingerprint"]
    assert [(one["file"], one["success"]) for one in manifest["evaluations"]] == [
        ("validation-1.json", validation["success"])
    ]
    assert manifest["base"]["fingerprint"] == fingerprint(dict(build(0)[0].named_parameters()))
    assert manifest["base"]["fingerprint"] == RunFolder(run).manifest()["contents"]["model"]
    assert Path(manifest["base"]["path"]) == run.parents[1] / "base"
    assert "# run, step 1\n" in (tmp_path / "first" / "README.md").read_text()


def test_the_card_states_the_verdict_the_strongest_control_and_only_if_it_is_about_these_weights(
    run: Path, tmp_path: Path
) -> None:
    evaluated = Path(shutil.copytree(run, tmp_path / "evaluated"))
    recipe = evaluated / "run.toml"
    done = sparring("eval", str(evaluated), "--json", "data.held_out_fraction=0.5")
    assert done.exit_code == 0, done.output
    claim = json.loads(done.stdout)["claim"]["claim"]
    card = (export(evaluated, tmp_path / "newest", license_id="mit") / "README.md").read_text()
    assert 'license: "mit"\n' in card
    assert f"**{claim}**" in card
    assert "\n| policy | split | temperature | tasks | success (95 %) | score (95 %) |\n| --- |" in card
    assert re.search(r"(?m)^\| base \(strongest control\) \| held_out \| .* x .* \[", card)
    assert re.search(r"(?m)^\| \*\*tuned\*\* \| held_out ", card)
    assert (tmp_path / "newest" / "recipe.toml").read_text() == recipe.read_text()
    older = (export(f"{evaluated}@1", tmp_path / "older") / "README.md").read_text()
    assert "nothing is claimed about them" in older
    assert claim not in older


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x80
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def link_elsewhere(file: Path) -> None:
    """Move a file out of the export, with a link in its place."""
    file.rename(file.parent.with_name("elsewhere.json"))
    file.symlink_to("../elsewhere.json")


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("adapter_model.safetensors", flip_a_bit),
        ("adapter_model.safetensors", truncate),
        ("adapter_model.safetensors", Path.unlink),
        (
            "adapter_config.json",
            lambda file: file.write_text(file.read_text().replace('"lora_alpha": ', '"lora_alpha": 9')),
        ),
        ("tokenizer.json", truncate),
        ("chat_template.jinja", lambda file: file.write_text("other")),
        ("sparring.json", truncate),
        ("model.safetensors", lambda file: file.write_bytes(b"added")),
        ("tokenizer.json", link_elsewhere),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_damaged_export_is_refused_by_name_wherever_it_is_loaded(adapter: Path, file: str, damage: Any) -> None:
    damage(adapter / file)
    for command in (
        ("verify", str(adapter)),
        ("serve", str(adapter), "--port", "0"),
        ("train", str(TINY), f"model.name={adapter}", "--no-check", "--dry-run"),
    ):
        result = sparring(*command)
        assert result.exit_code == 4, (command, result.output, result.exception)
        assert file in result.stderr


def test_a_damaged_model_that_is_no_export_is_refused_too(run: Path, tmp_path: Path) -> None:
    folder = export(run, tmp_path / "merged", merge=True)
    (folder / "sparring.json").unlink()
    truncate(folder / "model.safetensors")
    with pytest.raises(ServiceError, match="could not be loaded"):
        load_pretrained(str(folder))


def test_another_base_than_the_adapters_is_refused(adapter: Path, run: Path) -> None:
    base = run.parents[1] / "base"
    kept = (base / "model.safetensors").read_bytes()
    try:
        build(1)[0].save_pretrained(base)
        with pytest.raises(ServiceError, match=r"is not the base model that the adapter in .* was trained on"):
            load_pretrained(str(adapter))
    finally:
        (base / "model.safetensors").write_bytes(kept)


def test_a_damaged_newest_checkpoint_is_refused_and_the_older_one_can_be_named(run: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(run, tmp_path / "damaged"))
    truncate(damaged / "checkpoints" / "000002" / "weights.safetensors")
    with pytest.raises(DataError, match=r"000002/weights\.safetensors.*To use an older one, name it: .*damaged@1\."):
        export(damaged, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert verify(export(f"{damaged}@1", tmp_path / "out"))["step"] == 1
    flip_a_bit(damaged / "checkpoints" / "000001" / "weights.safetensors")
    with pytest.raises(DataError, match="No older one is intact"):
        checkpoint_of(RunFolder(damaged), None)


def test_an_export_that_fails_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sparring.serving.export.write_manifest", full)
    with pytest.raises(OSError, match="No space left"):
        export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
