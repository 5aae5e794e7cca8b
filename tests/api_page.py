"""docs/api.md from docstrings: `python -m tests.api_page > docs/api.md`."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import typing

import sparring

MODULES = {
    "sparring.environments": "Environments",
    "sparring.rewards": "Rewards",
    "sparring.scorers": "Scorers",
    "sparring.agents": "Agents",
}
HEAD = """# API

The names that user code imports, with their docstrings. This page is generated: `python -m tests.api_page > docs/api.md`.
Seams for own engines, trackers and agents are the protocols of `sparring/protocols.py`, values are in `sparring/types.py`.
"""


def api_page() -> str:
    """Return the page: the names of `sparring` first, then those of each public module that are not among them."""
    parts = [HEAD, "## sparring\n", *(entry(name, getattr(sparring, name)) for name in sparring.__all__)]
    for module, title in MODULES.items():
        loaded = importlib.import_module(module)
        names = [name for name in sorted(loaded.__all__, key=str.lower) if name not in sparring.__all__]
        parts += [f"## {title}: `{module}`\n", *(entry(name, getattr(loaded, name)) for name in names)]
    return "\n".join(parts)


def entry(name: str, value: object) -> str:
    """Return one name: its signature, its docstring, and for a class its public methods."""
    if not callable(value) or typing.get_origin(value) is not None:
        return f"### {name}\n\nA type: `{value}`.\n"
    lines = [f"### {name}\n", f"```text\n{name}{signature(value)}\n```\n", f"{inspect.getdoc(value) or ''}\n"]
    if inspect.isclass(value):
        for method, function in vars(value).items():
            plain = getattr(function, "__func__", function)
            if not method.startswith("_") and inspect.isfunction(plain) and plain.__doc__:
                lines.append(f"- `{method}{signature(plain)}`: {' '.join(inspect.cleandoc(plain.__doc__).split())}")
        lines.append("")
    return "\n".join(lines)


def signature(value: object) -> str:
    """Return the signature as written, without addresses, or nothing where there is none."""
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value))).replace("'", "")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


if __name__ == "__main__":
    sys.stdout.write(api_page())
