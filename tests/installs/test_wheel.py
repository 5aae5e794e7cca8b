"""The wheel works without the repository. It is built from the source distribution, as package indexes have it."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sparring.cli.quickstart import FILES

ROOT = Path(__file__).parents[2]
CHASE = ROOT / "recipes" / "pointer_chase"
BUILD = "import sys, setuptools.build_meta as build; print(getattr(build, 'build_' + sys.argv[1])(sys.argv[2]))"
SMALL = (
    "schedule.max_steps=1",
    "schedule.val_every=1",
    "evaluation.val_num_tasks=2",
    "evaluation.eval_num_tasks=2",
    "evaluation.allow_zero_baseline=true",
    "warm_start.num_demonstrations=8",
    "warm_start.steps=4",
    "warm_start.control_steps=4",
    "batch.global_batch_size=2",
    "batch.group_size=2",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel, without its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("sparring", "recipes/pointer_chase"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    packed = build("sdist", source, folder)
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheel = build("wheel", unpacked, folder)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        folder / "site",
    ]
    subprocess.run([*install, wheel], check=True, timeout=120)
    return folder / "site"


def build(kind: str, source: Path, into: Path) -> Path:
    """Build the `sdist` or the `wheel`."""
    command = [sys.executable, "-c", BUILD, kind, str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return into / done.stdout.splitlines()[-1]


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_wheel_has_every_file_of_the_package(installed: Path) -> None:
    package, missing = ROOT / "sparring", []
    for path in package.rglob("*"):
        name = path.relative_to(package)
        if path.is_file() and "__pycache__" not in name.parts and not (installed / "sparring" / name).is_file():
            missing.append(str(name))
    assert missing == []
    written = installed / "sparring" / "templates" / "quickstart"
    assert {name: (written / name).read_bytes() for name in FILES} == {n: (CHASE / n).read_bytes() for n in FILES}


def test_the_quickstart_runs_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    found = run(installed, tmp_path, "-c", "import sparring; print(sparring.__file__)")
    assert found.stdout.strip() == str(installed / "sparring" / "__init__.py")

    done = run(installed, tmp_path, "-m", "sparring", "quickstart", *SMALL)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "wrote quickstart/recipe.toml, quickstart/environment.py, quickstart/model.py" in done.stdout
    folder = tmp_path / "runs" / "quickstart-001"
    report = json.loads((folder / "evaluations" / "held_out-001.json").read_text())
    names = [one["name"] for one in report["evaluations"]]
    assert list(dict.fromkeys(names)) == ["base", "warm start", "warm start continued", "tuned"]
    for name in names:
        assert name in done.stdout
    assert str(ROOT) not in (folder / "manifest.json").read_text()
