"""Trains a model for the comparison: the recipe's warm start without RL, saved with a merged adapter."""

from __future__ import annotations

import sys
from pathlib import Path

from sparring.serving.export import export
from sparring.trainer import MultiTurnRLTrainer


def main(recipe: Path, destination: Path, *overrides: str) -> None:
    result = MultiTurnRLTrainer(recipe, overrides=["schedule.max_steps=0", *overrides]).train()
    assert result is not None
    export(result.run, destination, merge=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
