"""The files of locks/ have the versions of constraints.txt and hashes for everything, and what is not audited is reported."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker

from tests.installs.audit import audit, read_audit, show
from tests.installs.lock import OF_CUDA, split_cuda
from tests.installs.resolve import ROOT

LOCKS = ROOT / "locks"
NAMES = sorted(path.name for path in LOCKS.glob("*.txt"))
REQUIREMENT = re.compile(r"([a-z0-9-]+)==(\S+)(?: ; ([^\\]+))? \\")


def read_lock(name: str) -> dict[str, tuple[str, str, int]]:
    """Return the version, the marker and the number of hashes of each package. Fails at a line that is neither."""
    packages: dict[str, tuple[str, str, int]] = {}
    package = ""
    for line in (LOCKS / name).read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        if line.startswith(" "):
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
            version, marker, hashes = packages[package]
            packages[package] = (version, marker, hashes + 1)
            continue
        match = REQUIREMENT.fullmatch(line)
        assert match, line
        package = match[1]
        assert package not in packages, f"{package} has two versions"
        packages[package] = (match[2], (match[3] or "").strip(), 0)
    return packages


def read_constraints(*files: str) -> dict[str, str]:
    lines = [line for file in files for line in (ROOT / file).read_text("utf-8").splitlines() if "==" in line]
    return {re.sub("[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in lines}


OURS = read_constraints("constraints.txt", "deploy/constraints.txt")


@pytest.mark.parametrize("name", NAMES)
def test_every_package_has_one_version_and_hashes_and_no_file_names_an_index(name: str) -> None:
    packages = read_lock(name)
    assert packages
    assert all(hashes for _, _, hashes in packages.values())
    assert "://" not in (LOCKS / name).read_text("utf-8")


@pytest.mark.parametrize("name", ["image.txt", "development.txt", "torch-cpu.txt", "torch-cuda.txt"])
def test_the_versions_are_those_of_the_constraints(name: str) -> None:
    packages = read_lock(name)
    assert {one: version for one, (version, _, _) in packages.items() if OURS.get(one, version) != version} == {}
    # Only the libraries of CUDA, and what other systems need, have no constraint.
    linux = {"sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix", "platform_system": "Linux"}
    needed = [one for one, (_, marker, _) in packages.items() if not marker or Marker(marker).evaluate(linux)]
    assert [one for one in needed if one not in OURS and not OF_CUDA.fullmatch(one)] == []


def test_the_lock_for_development_has_everything_that_the_constraints_list() -> None:
    packages = read_lock("development.txt")
    assert set(read_constraints("constraints.txt")) - set(packages) == {"torch"}
    assert {one: packages[one] for one in read_lock("image.txt") if one in packages}.items() <= packages.items()


def test_torch_is_in_the_files_of_its_builds_only() -> None:
    for name in ("image.txt", "development.txt"):
        assert [one for one in read_lock(name) if OF_CUDA.fullmatch(one)] == []
    assert set(read_lock("torch-cpu.txt")) == {"torch"}
    assert {"torch", "triton"} < set(read_lock("torch-cuda.txt"))
    common, cuda = split_cuda(["a==1 \\", "    --hash=x", "triton==2 \\", "    --hash=y", "b==3 \\"])
    assert common == ["a==1 \\", "    --hash=x", "b==3 \\"]
    assert cuda == ["triton==2 \\", "    --hash=y"]


def test_what_is_not_looked_up_is_not_reported_as_audited(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]},
        {"name": "b", "version": "1", "vulns": []},
        {"name": "c", "version": "1", "skip_reason": "Dependency not found on PyPI and could not be audited: c (1)"},
    ]
    assert show("x.txt", read_audit(json.dumps({"dependencies": found})))
    assert capsys.readouterr().out.splitlines() == [
        "SKIPPED: 1 packages of x.txt were not audited: Dependency not found on PyPI and could not be audited",
        "x.txt: 2 packages looked up, 1 known vulnerabilities",
        "  a 1: PYSEC-1, corrected in 2",
    ]
    assert not show("x.txt", read_audit(json.dumps({"dependencies": found[2:]})))
    assert "looked up" not in capsys.readouterr().out


def test_an_audit_that_fails_is_reported_as_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "pip-audit"
    broken.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('the index does not answer')\n")
    broken.chmod(0o755)
    assert not show("x.txt", audit(str(broken), LOCKS / "image.txt"))
    assert capsys.readouterr().out == "SKIPPED: x.txt was not audited: the index does not answer\n"
