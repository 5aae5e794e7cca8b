"""Write the files of locks/: each package with its version of constraints.txt and the hashes of all its files.

python tests/installs/lock.py UV    # `make lock`; UV is the command of uv

uv solves for every system and Python version at once. Its answer has no addresses, so the files fit any index that has the
same files. torch is a choice of the installation (CPU or CUDA): it and the libraries of CUDA have files of their own. Only
`torch-cpu.txt` is written by hand, because the package index has no such build.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "locks"
CONSTRAINTS = ("constraints.txt", "deploy/constraints.txt")
IMAGE_EXTRAS = ("train", "data", "cluster")
"""The extras of the images; they also have `ray[default]`, whose agents KubeRay expects."""
PYTHON = "3.11.5"
"""The oldest version that every package of constraints.txt accepts."""
OF_CUDA = re.compile(r"torch|triton|nvidia-.+|cuda-.+")
"""The packages that differ between the builds of torch."""
HEADER = "# Written by `make lock`. {what}\n"


def solve(
    uv: str, requirements: list[str], *, constraints: tuple[str, ...] = CONSTRAINTS, given: str = ""
) -> list[str]:
    """Return the lines of a lock: for each package, a requirement and its hashes. Raises CalledProcessError if the versions
    do not fit together."""
    command = [
        uv,
        "pip",
        "compile",
        "--quiet",
        "--no-config",
        "--generate-hashes",
        "--universal",
        "--no-header",
        "--no-annotate",
    ]
    command += ["--python-version", PYTHON, *requirements]
    command += [word for file in constraints for word in ("--constraint", file)]
    done = subprocess.run([*command], cwd=ROOT, input=given, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def split_cuda(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines of the packages that every build of torch needs, and those of torch and CUDA."""
    parts: tuple[list[str], list[str]] = ([], [])
    part = parts[0]
    for line in lines:
        if not line.startswith(" "):
            part = parts[OF_CUDA.fullmatch(line.partition("==")[0]) is not None]
        part.append(line)
    return parts


def write(name: str, what: str, lines: list[str]) -> None:
    text = HEADER.format(what=what) + "\n".join(lines) + "\n"
    (LOCKS / name).write_text(text, "utf-8")
    packages = sum(not line.startswith(" ") for line in lines)
    print(f"locks/{name}: {packages} packages, {text.count('--hash=')} hashes")


def main() -> None:
    (uv,) = sys.argv[1:]
    extras = [word for extra in IMAGE_EXTRAS for word in ("--extra", extra)]
    image, cuda = split_cuda(solve(uv, ["pyproject.toml", *extras, "-"], given="ray[default]\n"))
    write(
        "image.txt",
        f"The images of deploy/Containerfile, without torch: [{','.join(IMAGE_EXTRAS)}] and ray[default].",
        image,
    )
    write("torch-cuda.txt", "torch for CUDA, and what only this build needs.", cuda)
    everything, _ = split_cuda(solve(uv, ["pyproject.toml", "--all-extras"]))
    write("development.txt", "All extras together, without torch: what `make locked` installs.", everything)
    write("tools.txt", "The tools of releases (tools.in).", solve(uv, ["locks/tools.in"], constraints=()))


if __name__ == "__main__":
    main()
