"""The base class of all sections of a recipe."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen table of settings. Types are strict; unknown keys are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
