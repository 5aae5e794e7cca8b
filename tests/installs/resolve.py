"""Ask pip, from an environment that has nothing, whether everything that can be installed here can be installed.

python tests/installs/resolve.py            # all of it; `make resolve`
python tests/installs/resolve.py mlflow     # the lines that hold this text

Installs nothing from an index (`pip install --dry-run`), and exits with 1 when a line has no solution. Without arguments, it
then collects the package without extras in a wheelhouse, installs it from there without an index, and runs it.

The lines are found, not listed: all extras of pyproject.toml together, what every make target installs, and what each tested
client requires. Versions that solve all extras together solve every combination of them, so no combination has a line of its
own. What must not meet in one environment stands with its own requirements (`.clients/`), never as an extra.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINED = ("--constraint", "constraints.txt")
EXTRAS = re.compile(r"(?:\bsparring|(?<![\w/])\.)\[([a-z][a-z0-9,-]*)\]")
"""`sparring[train,data]` or `.[train,data]`."""
SECONDS = 600
"""For one line. It takes seconds where packages and their metadata are near."""


def lines() -> list[tuple[str, ...]]:
    """Arguments of `pip install`, each line once; "." is the project."""
    clients = sorted(ROOT.glob("tests/clients/*/requirements.txt"))
    made_alone = (line for line in made() if not is_combination(line))
    required = (("--requirement", str(file.relative_to(ROOT))) for file in clients)
    return list(dict.fromkeys([(*CONSTRAINED, f".[{','.join(declared_extras())}]"), *made_alone, *required]))


def is_combination(line: tuple[str, ...]) -> bool:
    """Whether a line installs only extras of the project, within the constraints."""
    return line[:2] == CONSTRAINED and len(line) == 3 and EXTRAS.fullmatch(line[2]) is not None


def declared_extras() -> tuple[str, ...]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return tuple(sorted(project["optional-dependencies"]))


def documented_combinations() -> set[tuple[str, ...]]:
    """The extras that are named together in a page, a template or a message."""
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/**/*.md")]
    files += [
        file
        for file in ROOT.glob("sparring/**/*")
        if file.suffix == ".py" or ("templates" in file.parts and file.is_file() and file.suffix != ".pyc")
    ]
    return {sorted_extras(names) for file in files for names in EXTRAS.findall(file.read_text("utf-8"))}


def made() -> list[tuple[str, ...]]:
    """What the targets of the Makefile install, as `make` itself prints it, except for SkyRL, which needs another Python."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = next(line for line in makefile.splitlines() if line.startswith(".PHONY:")).split()[1:]
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", *targets]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs = [line.partition(" -m pip install ")[2] for line in printed.splitlines() if "/skyrl/" not in line]
    return [normalized(shlex.split(line)) for line in installs if line]


def normalized(arguments: list[str]) -> tuple[str, ...]:
    """Without what does not change the solution, and with extras in one order."""
    kept = [
        each
        for each in arguments
        if each not in ("--quiet", "--disable-pip-version-check", "--no-build-isolation", "--editable")
    ]
    return tuple(EXTRAS.sub(lambda found: f".[{','.join(sorted_extras(found[1]))}]", each) for each in kept)


def sorted_extras(names: str) -> tuple[str, ...]:
    return tuple(sorted(set(names.split(","))))


def resolve(python: Path, line: tuple[str, ...], wheel: Path) -> tuple[float, str]:
    """Seconds, and why there is no solution, "" when there is one."""
    arguments = [f"{wheel}{each[1:]}" if each.startswith(".[") else each for each in line]
    command = [python, "-m", "pip", "install", "--dry-run", "--disable-pip-version-check", *arguments]
    began = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return SECONDS, f"no answer in {SECONDS} seconds"
    seconds, printed = time.monotonic() - began, done.stdout + done.stderr
    if done.returncode == 0:
        return seconds, ""
    _, _, cause = printed.partition("The conflict is caused by:\n")
    return seconds, cause.partition("\n\n")[0] or "\n".join(printed.splitlines()[-15:])


def install_without_index(python: Path, wheel: Path, folder: Path) -> tuple[float, str]:
    """Install the package from a wheelhouse, as docs/installation.md describes, and run it. Return the seconds, and why it
    does not work, "" when it does."""
    wheels, offline, began = folder / "wheelhouse", folder / "offline", time.monotonic()
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    venv.create(offline, with_pip=True)
    for command in (
        [python, *pip, "wheel", *CONSTRAINED, "--wheel-dir", wheels, wheel],
        [offline / "bin" / "python", *pip, "install", "--no-index", "--find-links", wheels, "sparring"],
        [offline / "bin" / "sparring", "init", folder / "recipe"],
        [offline / "bin" / "sparring", "config", "batch.group_size"],
        [offline / "bin" / "sparring", "doctor"],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode != 0:
            printed = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            return time.monotonic() - began, f"{shlex.join(map(str, command))}\n{printed}"
    return time.monotonic() - began, ""


def main() -> int:
    wanted = [line for line in lines() if all(text in " ".join(line) for text in sys.argv[1:])]
    failures = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        venv.create(Path(folder) / "venv", with_pip=True)
        python = Path(folder) / "venv" / "bin" / "python"
        # The pip of Python 3.11 takes more than twice as long for each line.
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "pip"])
        # Built once: pip would build the project anew for each line, in its own folder.
        build = [
            python,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--wheel-dir",
            folder,
            ".",
        ]
        subprocess.run(build, cwd=ROOT, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        for line, (seconds, why) in zip(
            wanted, pool.map(lambda line: resolve(python, line, wheel), wanted), strict=True
        ):
            print(f"{seconds:5.1f} s  pip install {shlex.join(line)}{': NO SOLUTION' if why else ''}", flush=True)
            if why:
                failures += 1
                print(why, flush=True)
        if len(sys.argv) == 1:
            seconds, why = install_without_index(python, wheel, Path(folder))
            print(
                f"{seconds:5.1f} s  from a wheelhouse, without an index{': FAILED' if why else ''}\n{why}", flush=True
            )
            failures += bool(why)
    print(f"{len(wanted) - failures} passed, {failures} failed")
    return 1 if failures or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
