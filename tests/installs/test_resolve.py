"""What `make resolve` asks pip about is found in the project's own files, so that nothing is forgotten."""

import re
import tomllib

from sparring.engines.servers.environment import VERSION as VLLM
from tests.installs.resolve import ROOT, declared_extras, documented_combinations, is_combination, lines, made

LINES = lines()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
EXTRA_NAMES = re.compile(r"[a-z][a-z0-9-]+")
CONSTRAINED = ("--constraint", "constraints.txt")


def test_all_extras_are_asked_for_together_and_no_part_of_them_alone() -> None:
    assert set(declared_extras()) == set(EXTRAS)
    assert [line for line in LINES if is_combination(line)] == [(*CONSTRAINED, f".[{','.join(sorted(EXTRAS))}]")]


def test_what_the_make_targets_install_is_asked_for() -> None:
    assert {(*CONSTRAINED, "torch"), (*CONSTRAINED, ".[data,dev,mlflow,train,wandb]")} <= set(made())
    assert {line for line in made() if not is_combination(line)} <= set(LINES)
    # A combination is solved with all extras: it may name none besides.
    for line in filter(is_combination, made()):
        assert set(EXTRA_NAMES.findall(line[2])) <= set(EXTRAS)
    # The OpenEnv library has an environment of its own.
    assert any(line[0].startswith("openenv") for line in made())


def test_what_each_client_requires_is_asked_for() -> None:
    for file in ROOT.glob("tests/clients/*/requirements.txt"):
        assert ("--requirement", str(file.relative_to(ROOT))) in LINES


def test_pages_and_templates_name_no_extra_that_does_not_exist() -> None:
    # pip only warns of one, and installs nothing for it.
    assert ("data", "train") in documented_combinations()
    assert {name for names in documented_combinations() for name in names} <= set(EXTRAS)


def test_every_direct_dependency_is_constrained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = [*project["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]
    constrained = {
        normal(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    }
    assert {normal(re.split(r"[\[<>=]", each)[0]) for each in required} <= constrained


def test_the_documented_versions_are_those_that_pip_accepts_and_the_tests_use() -> None:
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    table = [
        re.findall(r"[^|]+", line)[:4]
        for line in page.splitlines()
        if re.match(r"\| (`[\w-]+` \| [>=]|vLLM|Python)", line)
    ]
    documented = {
        name.strip(" `"): (accepted.strip(), tested.strip(), extra) for name, accepted, tested, extra in table
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert documented.pop("Python")[0] == project["requires-python"]
    assert documented.pop("vLLM")[:2] == (f"=={VLLM}", VLLM)
    assert len(documented) > 10
    for name, (accepted, tested, extra) in documented.items():
        lines = project["dependencies"] if "core" in extra else EXTRAS[extra.strip(" `")]
        assert f"{name}{accepted}" in lines
        assert f"{name}=={tested}" in constraints


def normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()
