"""`import sparring`: which names are public, that they load, and that the import alone stays cheap."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import sparring
from tests.api_page import api_page

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", sparring.__all__)
def test_a_public_name_loads(name: str) -> None:
    assert getattr(importlib.import_module("sparring"), name).__doc__


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse((ROOT / "sparring/__init__.pyi").read_text("utf-8"))
    typed = {
        alias.asname or alias.name: f"{line.module}:{alias.name}"
        for line in stub.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert typed == sparring._PUBLIC


def test_importing_the_package_imports_no_other_package() -> None:
    program = "import sys; before = set(sys.modules); import sparring; print(*set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {name.partition(".")[0] for name in ran.stdout.split()} - set(sys.stdlib_module_names) == {"sparring"}


def test_defining_an_environment_imports_no_torch() -> None:
    program = "import sys; from sparring import Environment, Task, Trajectory, agent, answer, tool; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "False"


def test_an_unknown_name_is_an_error_that_lists_the_public_ones() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Enviroment'; its public names are AgentReport, "):
        sparring.Enviroment  # type: ignore[attr-defined]  # noqa: B018


def test_the_api_page_is_what_the_docstrings_say() -> None:
    assert (ROOT / "docs/api.md").read_text("utf-8") == api_page(), "python -m tests.api_page > docs/api.md"
