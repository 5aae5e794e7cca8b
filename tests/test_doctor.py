"""`sparring doctor` lists every extra with what it is for, and the command for what is missing."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sparring.cli import doctor

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def test_every_extra_for_users_is_described() -> None:
    assert set(doctor.FEATURES) == set(EXTRAS) - {"dev", "docs", "benchmarks"}


def test_the_command_lists_machine_extras_and_programs() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "sparring", "doctor", "--json"], capture_output=True, text=True, timeout=120, check=True
    )
    report = json.loads(found.stdout)
    assert report["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    by_name = {one["name"]: one for one in report["parts"]}
    assert by_name["train"]["state"] == "ready"
    assert {"sandbox", "vllm", "gpu"} <= set(by_name)


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("httpx>=0.27", None),
        ("httpx>=999", "does not fit httpx>=999"),
        ("no-such-package-of-anybody[a]>=1", "no-such-package-of-anybody is not installed"),
    ],
)
def test_a_missing_and_an_unfitting_package_are_named(requirement: str, problem: str | None) -> None:
    found = doctor._problem_with(requirement)
    assert found is None if problem is None else problem in str(found)


def test_an_extra_that_is_missing_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["httpx>=0.27", 'no-such-package>=1; extra == "mlflow"', 'httpx>=0.27; extra == "data"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: required)
    data, mlflow = doctor._extras()
    assert (data.name, data.state, data.command) == ("data", "ready", "")
    assert (mlflow.state, mlflow.command) == ("missing", "pip install 'sparring[mlflow]'")
