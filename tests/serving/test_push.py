"""An export is pushed to a hub with the real client, and stays on disk when the hub refuses it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.models.export_files import verify
from tests.serving.fake_hub import TOKEN, FakeHub, running_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def export(run: Path, folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["export", str(run), str(folder), *options])


def text(result: Result) -> str:
    return re.sub(r"\s+", " ", result.output)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_is_pushed_in_one_commit_to_a_private_repository(run: Path, tmp_path: Path, hub: FakeHub) -> None:
    folder = tmp_path / "policy"
    done = export(run, folder, "--push", "me/policy", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["pushed"] == f"{hub.url}/me/policy/commit/{'1' * 40}"
    assert hub.repositories == {"me/policy": True}
    assert hub.files == {f"me/policy/{name}": content for name, content in files_of(folder).items()}
    assert "me/policy/adapter_model.safetensors" in hub.files
    assert set(hub.cards) == {(folder / "README.md").read_text()}
    assert TOKEN not in "".join(content.decode(errors="replace") for content in hub.files.values())


def test_what_is_published_was_asked_for(run: Path, tmp_path: Path, hub: FakeHub) -> None:
    done = export(run, tmp_path / "first", "--push", "me/shown", "--public")
    assert done.exit_code == 0, done.output
    assert "public" in text(done)
    assert hub.repositories == {"me/shown": False}
    hub.files.clear()
    refused = export(run, tmp_path / "second", "--push", "me/shown")
    assert refused.exit_code == 2
    assert "exists and is public, so nothing was uploaded; add --public" in text(refused)
    assert hub.files == {}
    assert verify(tmp_path / "second")


def test_a_push_that_fails_leaves_the_export_and_names_the_command_that_pushes_it(
    run: Path, tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.refuses_commits = True
    refused = export(run, tmp_path / "refused", "--push", "me/policy")
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    unknown = export(run, tmp_path / "unknown", "--push", "me/policy")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    unreachable = export(run, tmp_path / "unreachable", "--push", "me/policy")
    reasons = {
        "refused": (refused, "may not write there (403)"),
        "unknown": (unknown, "does not accept the token (401)"),
        "unreachable": (unreachable, "Check the network and HF_ENDPOINT"),
    }
    for name, (result, reason) in reasons.items():
        assert result.exit_code == 4, (name, result.output, result.exception)
        assert reason in text(result)
        assert "hf upload me/policy" in text(result)
        assert "hf_expired" not in result.output
        assert verify(tmp_path / name)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--push", "policy"), "write OWNER/NAME"),
        (("--public",), "--public is only for a push"),
    ],
)
def test_a_push_without_a_repository_is_refused_before_anything_is_written(
    options: tuple[str, ...], reason: str, run: Path, tmp_path: Path
) -> None:
    done = export(run, tmp_path / "out", *options)
    assert done.exit_code == 2
    assert reason in text(done)
    assert not (tmp_path / "out").exists()


def test_the_library_is_named_when_it_is_missing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    done = export(run, tmp_path / "out", "--push", "me/policy")
    assert done.exit_code == 4
    assert "pip install 'sparring[hub]'" in text(done)
    assert not (tmp_path / "out").exists()
