"""Sparring's side: trains the recipe with `MultiTurnRLTrainer` and takes the measurements from the files of the run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.sides.measured import Measured, num_trained, peak_memory_gib
from sparring.assembly import load_policy
from sparring.models.precision import resolve_precision
from sparring.trainer import MultiTurnRLTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    # The recipe is not checked, because the check refuses the random rewards with which every group trains.
    trainer = MultiTurnRLTrainer(arguments.recipe, check=False, quiet=True)
    trainer.load()
    result = trainer.train()
    assert result is not None
    peak = peak_memory_gib()
    metrics = [json.loads(line)["metrics"] for line in (result.run / "metrics.jsonl").read_text("utf-8").splitlines()]
    played = [
        json.loads(line)
        for file in sorted((result.run / "trajectories").glob("train-*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    Measured(
        num_trajectories=len(played),
        step_seconds=[step["timing_s/step"] for step in metrics],
        num_sampled_tokens=sum(len(turn["token_ids"]) for episode in played for turn in episode["turns"]),
        num_trained_tokens=sum(int(step["training/trainable_token_positions"]) for step in metrics),
        # Not by counting embedded tokens: the learner's pass begins above the layers that the engine has computed.
        num_computed_tokens=sum(int(step["rollout/tokens/computed"] + step["training/tokens"]) for step in metrics),
        num_turns=[len(episode["turns"]) for episode in played],
        prompts=[episode["turns"][0]["prompt_ids"] for episode in played],
        num_adapter_parameters=num_trained(load_policy(trainer.config, trainer.recipe.parent).module),
        precision=resolve_precision(trainer.config.model.precision, "cpu"),
        peak_memory_gib=peak,
        computed_per_distinct={
            "rollout": max(step["rollout/tokens/computed_per_distinct"] for step in metrics),
            "training": max(step["training/computed_per_distinct"] for step in metrics),
        },
    ).write(arguments.output)


if __name__ == "__main__":
    main()
