"""The code that a worker loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from sparring.types import Json


class Code(TypedDict):
    """The code that a worker loads. Names are written as in a recipe, and parts that do not exist are None."""

    folder: str
    """The recipe's folder."""
    target: str | None
    options: Mapping[str, Json]
    reward: str | None
    scorer: str | None
