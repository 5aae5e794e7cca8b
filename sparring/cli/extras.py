"""The extras of the package, read from its metadata: `pip install 'sparring[train]'`."""

from __future__ import annotations

import importlib.metadata
import re

FOR_DEVELOPERS = ("dev", "docs", "benchmarks")


def required_by_extra() -> dict[str, list[str]]:
    """Return the requirements of each extra that users may install, in the order of `pyproject.toml`."""
    required: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("sparring") or ():
        requirement, _, marker = line.partition(";")
        _, _, extra = marker.partition("extra == ")
        name = extra.strip().strip("\"'")
        if name and name not in FOR_DEVELOPERS:
            required.setdefault(name, []).append(requirement.strip())
    return required


def name_of(requirement: str) -> str:
    """Return `moto` for `moto[s3]>=5`."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def find_extra(module: str) -> str | None:
    """Return the first extra that installs a module, or None if no extra does."""
    name = module.partition(".")[0].replace("_", "-").lower()
    for extra, requirements in required_by_extra().items():
        if name in (name_of(one).replace("_", "-").lower() for one in requirements):
            return extra
    return None
