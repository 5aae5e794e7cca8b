"""What the documented installations can import, with the packages of all other extras hidden."""

import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HIDE = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

HIDDEN = frozenset(sys.argv[1].split(","))
sys.meta_path = [Finder if one is PathFinder else one for one in sys.meta_path]
"""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def required(lines: list[str]) -> set[str]:
    """Names of the distributions that these requirements install, with what they require themselves."""
    found: set[str] = set()
    queue = [Requirement(line) for line in lines]
    while queue:
        one = queue.pop()
        name = canonicalize_name(one.name)
        if name in found:
            continue
        found.add(name)
        queue += [
            needed
            for needed in map(Requirement, distribution(name).requires or ())
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (*one.extras, ""))
        ]
    return found


@pytest.mark.parametrize(
    ("extras", "imported"),
    [
        ((), "sparring.cli, sparring.checks"),
        (("train",), "sparring.trainer, sparring.evaluator, sparring.checks"),
    ],
)
def test_an_installation_imports_nothing_that_it_does_not_have(extras: tuple[str, ...], imported: str) -> None:
    optional = PROJECT["optional-dependencies"]
    there = required([*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])])
    others = {canonicalize_name(Requirement(line).name) for lines in optional.values() for line in lines} - there
    hidden = [
        module for module, owners in packages_distributions().items() if others & set(map(canonicalize_name, owners))
    ]
    assert {"hypothesis", "jsonschema"} <= set(hidden)
    code = f"{HIDE}\nimport {imported}\n"
    done = subprocess.run(
        [sys.executable, "-c", code, ",".join(hidden)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_command_without_its_packages_names_the_extra_that_installs_them(tmp_path: Path) -> None:
    code = f"{HIDE}\nfrom sparring.cli import main\nsys.argv = ['sparring', 'engine', sys.argv[2]]\nmain()\n"
    recipe = str(ROOT / "recipes" / "pointer_chase")
    done = subprocess.run(
        [sys.executable, "-c", code, "torch,safetensors,transformers", recipe],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 4, done.stderr[-2000:]
    assert "pip install 'sparring[train]'" in done.stderr
    assert "unexpected" not in done.stderr
