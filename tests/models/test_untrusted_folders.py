"""A folder with a model is data: loading it runs none of its code, reads no pickle, and asks nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from sparring.config import validate
from sparring.errors import ServiceError
from sparring.models.description import read_description
from sparring.models.pretrained import load_pretrained
from sparring.models.small import small_model

SECTION = validate({"environment": {"target": "a:B"}, "reward": {"reward": "a:c"}}).model
CODE = """
import pathlib
pathlib.Path({mark!r}).write_text("it ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Config, Model, Tokenizer = LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
"""


class Questions:
    """Standard input. Fails the test if anything waits for an answer of the user."""

    def readline(self, *_: object) -> str:
        raise AssertionError("standard input was read")

    read = fileno = readline


@pytest.fixture(autouse=True)
def questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Questions())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, tokenizer = small_model(0, ["hello there, hello here"], layers=2, width=32)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


class Program:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("is_honest", [True, False])
def test_weights_in_pickle_files_only_are_refused(folder: Path, is_honest: bool) -> None:
    model, _ = load_pretrained(str(folder))
    (folder / "model.safetensors").unlink()
    content = model.state_dict() if is_honest else Program(f"touch {folder}/ran")
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(ServiceError, match=r"pytorch_model\.bin.*never reads.*save_pretrained\(FOLDER\)"):
        load_pretrained(str(folder))
    assert not (folder / "ran").exists()


def test_an_adapter_in_a_pickle_file_is_refused(folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(folder), "peft_type": "LORA"})
    )
    torch.save(Program(f"touch {adapter}/ran"), adapter / "adapter_model.bin")
    (adapter / "other.safetensors").touch()
    with pytest.raises(ServiceError, match=r"adapter_model\.bin.*load the adapter with"):
        load_pretrained(str(adapter))
    assert not (adapter / "ran").exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_of_a_model_is_never_run_and_nothing_is_asked(folder: Path, file: str) -> None:
    (folder / "custom.py").write_text(CODE.format(mark=str(folder / "ran")))
    if file == "config.json":
        auto = {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"}
        content = json.loads((folder / file).read_text())
        del content["model_type"]
        (folder / file).write_text(json.dumps({**content, "auto_map": auto}))
    else:
        auto = {"AutoTokenizer": [None, "custom.Tokenizer"]}
        change(folder / file, auto_map=auto, tokenizer_class="TheirTokenizer")
    with pytest.raises(ServiceError, match=r"auto_map.*never runs"):
        load_pretrained(str(folder))
    with pytest.raises(ServiceError, match=r"auto_map.*never runs"):
        read_description(folder, SECTION, device="cpu", base_fingerprint=str)
    assert not (folder / "ran").exists()


def test_code_next_to_a_known_type_is_ignored(folder: Path) -> None:
    (folder / "custom.py").write_text(CODE.format(mark=str(folder / "ran")))
    change(folder / "config.json", auto_map={"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"})
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "custom.Tokenizer"]})
    model, _ = load_pretrained(str(folder))
    assert type(model).__module__.startswith("transformers.")
    assert not (folder / "ran").exists()
