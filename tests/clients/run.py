"""Install real agent clients, each in an environment of its own, and play through the gateway with every one.

python tests/clients/run.py                     # all of them, below .clients/
python tests/clients/run.py openai strands      # these
python tests/clients/run.py --only-ci           # those that are few and small enough for every change

Clients in JavaScript need node and npm. Prints what was measured; exits with pytest's status:
0 when every client did what `measured.toml` states.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = list(tomllib.loads((HERE / "measured.toml").read_text("utf-8")))
MTRL = "mtrl"
"""AWS's own packages, with a test of their own."""
CLIENTS = [*dict.fromkeys(program.split("/")[0] for program in PROGRAMS), MTRL]
ONLY_CI = ("openai", "strands", "langgraph", "openai-agents")


def main() -> int:
    arguments = _arguments()
    names = arguments.names or (ONLY_CI if arguments.only_ci else CLIENTS)
    for name in names:
        print(f"{name}: {_install(arguments.venvs / name, HERE / name)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        test = f"{HERE / 'test_clients.py'}::test_a_client_plays_and_every_sampled_token_is_kept"
        chosen = [f"{test}[{program}]" for program in PROGRAMS if program.split("/")[0] in names]
        chosen += [str(HERE / "test_mtrl.py")] * (MTRL in names)
        status = subprocess.run(
            [sys.executable, "-m", "pytest", f"--junitxml={report}", "-o", "junit_family=xunit1", *chosen],
            cwd=ROOT,
            env={**os.environ, "CLIENT_VENVS": str(arguments.venvs)},
        ).returncode
        Console(width=180).print(_table(report))
    return status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"clients, by default all: {', '.join(CLIENTS)}")
    parser.add_argument("--venvs", type=lambda path: Path(path).absolute(), default=ROOT / ".clients", metavar="FOLDER")
    parser.add_argument("--only-ci", action="store_true", help=f"{', '.join(ONLY_CI)} only")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(CLIENTS))
    if unknown:
        parser.error(f"no client is named {', '.join(unknown)}; use {', '.join(CLIENTS)}")
    return arguments


def _install(environment: Path, client: Path) -> str:
    """Make an environment with what is required; one that has it already stays as it is."""
    package = client / "package.json"
    requirements = package if package.exists() else client / "requirements.txt"
    wanted, installed = requirements.read_text("utf-8"), environment / "installed.txt"
    if installed.exists() and installed.read_text("utf-8") == wanted:
        return "installed already"
    if requirements == package:
        environment.mkdir(parents=True, exist_ok=True)
        shutil.copy(package, environment)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
        if subprocess.run(npm, cwd=environment).returncode != 0:
            sys.exit(f"npm could not install {package}: the reason is above; run this again when that is corrected.")
        installed.write_text(wanted, "utf-8")
        return "installed"
    venv.create(environment, with_pip=True, clear=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--requirement", requirements]).returncode != 0:
        sys.exit(f"pip could not install {requirements}: the reason is above; run this again when that is corrected.")
    installed.write_text(wanted, "utf-8")
    return "installed"


def _table(report: Path) -> Table:
    """What the tests measured, passed or not."""
    table = Table()
    for heading in ("program", "version", "endpoint", "streams", "turns", "sequences", "branches", "keeps", "test"):
        table.add_column(heading)
    for case in ElementTree.parse(report).iter("testcase"):
        if not case.attrib["name"].startswith("test_a_client_plays"):
            continue  # of MTRL
        measured = json.loads(next((each.attrib["value"] for each in case.iter("property")), "{}"))
        program = case.attrib["name"].partition("[")[2].removesuffix("]")
        outcome = next((each.tag for each in case if each.tag in ("failure", "error", "skipped")), "passed")
        cells = [measured.get(key, "") for key in ("version", "endpoint", "streams", "turns", "sequences")]
        lists = [", ".join(measured.get(key, ())) for key in ("branches", "keeps")]
        table.add_row(program, *map(str, cells), *lists, outcome)
    return table


if __name__ == "__main__":
    sys.exit(main())
