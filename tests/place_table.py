"""The table of the keys that are places in docs/places.md: `python -m tests.place_table` prints it."""

from __future__ import annotations

import sys

from sparring.config import PLACES, Config
from sparring.config.sections import section_class

HEAD = ["| in a place file | in a recipe | meaning |", "| --- | --- | --- |"]


def place_table() -> str:
    """Return the table, from the descriptions of the settings."""
    return (
        "\n".join([*HEAD, *(f"| `{key}` | `{recipe}` | {meaning(recipe)} |" for key, recipe in PLACES.items())]) + "\n"
    )


def meaning(key: str) -> str:
    section, _, name = key.partition(".")
    return str(section_class(Config.model_fields[section].annotation).model_fields[name].description)


if __name__ == "__main__":
    sys.stdout.write(place_table())
