"""The commands that docs/scaling.md and a run show start a run and its workers."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sparring.assembly.environment import build_worker_pool
from sparring.config import load_config
from sparring.errors import UsageError
from sparring.ledger import Ledger
from tests.workers.machine import KEY, ROOT, machine
from tests.workers.test_training import RECIPE

PAGE = (ROOT / "docs" / "scaling.md").read_text("utf-8").partition("## Environments and rewards on other machines")[2]


def documented_place(number: int) -> str:
    """A place file of the page."""
    return re.findall(r"```toml\n(.+?)```", PAGE, flags=re.DOTALL)[number]


def test_the_documented_commands_train_a_recipe_with_a_connected_worker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "place.toml").write_text(documented_place(0).replace("7700", str(port)))
    assert "    SPARRING_API_KEY=... sparring train recipes/pointer_chase --on place.toml\n" in PAGE
    arguments = ["train", str(RECIPE), "--on", str(tmp_path / "place.toml"), "--no-check", "--name", "run"]
    with subprocess.Popen(
        [sys.executable, "-m", "sparring", *arguments, f"run.runs_dir={tmp_path / 'runs'}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARRING_API_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout is not None
        output = ""
        while "sparring worker --connect" not in output:
            line = run.stdout.readline()
            assert line, output
            output += line
        shown = re.search(r"(SPARRING_API_KEY=)KEY (sparring worker --connect) (\S+)", output)
        assert shown is not None, output
        assert f"{shown[1]}... {shown[2]} trainer:7700" in PAGE
        assert shown[3].endswith(f":{port}")
        with machine(f"127.0.0.1:{port}", "--processes", "2", cache=tmp_path / "cache") as one:
            assert shlex.split(shown[2]) == ["sparring", *one.process.args[3:5]]  # type: ignore[index]
            output += run.stdout.read()
            assert run.wait() == 0, output
            assert "the recipe's code is in" in one.output, f"{output}\n{one.output}"
    status = json.loads((tmp_path / "runs" / "run" / "status.json").read_text())
    assert status["status"] == "completed"
    with Ledger(tmp_path / "runs" / "run" / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []


def test_the_documented_place_with_a_certificate_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_API_KEY", KEY)
    settings = tomllib.loads(documented_place(1))["environment"]
    config = load_config(RECIPE, [f"environment.{key}='{value}'" for key, value in settings.items()])
    with pytest.raises(UsageError, match=r"tls_certificate = 'trainer\.pem' .* cannot be loaded"):
        build_worker_pool(config, RECIPE.parent, print)


def test_without_a_key_only_this_machine_can_be_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARRING_API_KEY", raising=False)
    for address in ("127.0.0.1:0", "[::1]:0", "localhost:0"):
        config = load_config(RECIPE, [f"environment.listen={address}"])
        assert build_worker_pool(config, RECIPE.parent, print) is not None
    config = load_config(RECIPE, ["environment.listen=0.0.0.0:0", "environment.api_key_env=OTHER"])
    with pytest.raises(UsageError, match="the environment variable OTHER is not set"):
        build_worker_pool(config, RECIPE.parent, print)
    monkeypatch.setenv("OTHER", KEY)
    assert build_worker_pool(config, RECIPE.parent, print) is not None
