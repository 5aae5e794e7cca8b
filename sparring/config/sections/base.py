"""The base of all sections of a recipe."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen table of settings. Types are strict, and unknown keys are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
