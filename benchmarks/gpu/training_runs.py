"""Complete runs on the device: pointer_chase learns asynchronously, and a large shape trains while it samples."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks.gpu.models import build_model
from sparring import MultiTurnRLEvaluator, MultiTurnRLTrainer
from sparring.config import load_config
from sparring.planning.calibration import gpu_bytes
from sparring.planning.devices import this_machine
from sparring.planning.plan import Plan, changes, make_plan
from sparring.planning.shapes import shape_from_config

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase"
ASYNCHRONOUS = ("rollout.max_steps_off_policy=2", "engine.deterministic=false")


def measure_learning(runs: str, device: str, settings: Sequence[str]) -> list[dict[str, Any]]:
    """Train pointer_chase with weight publication during rollouts, and return the success before and after training, at
    temperature 1."""
    began = time.perf_counter()
    run = _train("learning", runs, [f"model.device={device}", *ASYNCHRONOUS, *settings])
    found = MultiTurnRLEvaluator(run, policies=["warm_start", "tuned"], quiet=True).evaluate()
    sampled = {one.name: one.success.mean for one in found.evaluations if one.temperature != 0}
    return [
        {
            "shape": "pointer_chase",
            "what": "asynchronous learning",
            "warm start": sampled["warm start"],
            "tuned": sampled["tuned"],
            "seconds": time.perf_counter() - began,
            **_of_steps(run),
        }
    ]


def measure_job(shape: str, builder: str, runs: str, device: str, settings: Sequence[str]) -> list[dict[str, Any]]:
    """Train a LoRA adapter of this shape for several asynchronous steps, with sampler and learner on one device.

    Rewards are random, so that a model with random weights has a learning signal. Rates and memory do not depend on
    what is learned.
    """
    began = time.perf_counter()
    overrides = [
        f"model.name={builder}",
        f"model.device={device}",
        "model.precision=auto",
        "model.trained_weights=lora",
        "model.lora_rank=16",
        "model.lora_alpha=32",
        "reward.reward=environment:shuffled_reward",
        "warm_start.steps=1",
        "warm_start.num_demonstrations=32",
        "evaluation.allow_zero_baseline=true",
        "evaluation.val_num_tasks=4",
        "schedule.val_every=0",
        "schedule.save_every=0",
        *ASYNCHRONOUS,
        *settings,
    ]
    plan = _plan(shape, device, overrides)
    fitting = [] if plan.chosen is None else changes(plan.asked, plan.chosen)
    print(f"{shape}: the plan changes {', '.join(fitting) or 'nothing'}: {plan.as_json()['tables']}", file=sys.stderr)
    run = _train(f"job-{shape}", runs, [*overrides, *fitting])
    peak = max(
        (row["system/memory_device_bytes"] for row in _rows(run) if "system/memory_device_bytes" in row), default=0
    )
    memory = {"peak memory, GB": peak / 1e9, "peak / plan": peak / plan.fullest.bytes} if peak else {}
    return [
        {
            "shape": shape,
            "what": "LoRA run, sampler and learner on one device",
            "seconds": time.perf_counter() - began,
            "planned memory, GB": plan.fullest.bytes / 1e9,
            **memory,
            **_of_steps(run),
        }
    ]


def _plan(shape: str, device: str, overrides: Sequence[str]) -> Plan:
    """Return the plan of a job. A function builds the model of a job, so its sizes come from its config."""
    with torch.device("meta"):
        sizes = build_model(shape, "meta", torch.bfloat16).config.to_dict()
    machine = this_machine(flops=1.0, bandwidth=1.0, is_cuda=device == "cuda", gpu_bytes=gpu_bytes(device))
    return make_plan(load_config(RECIPE, overrides), shape_from_config(shape, sizes), machine)


def _train(name: str, runs: str, settings: Sequence[str]) -> Path:
    overrides = [f"run.runs_dir={runs}", *settings]
    with MultiTurnRLTrainer(RECIPE, overrides=overrides, name=name, check=False) as trainer:
        result = trainer.train()
    if result is None or result.status != "completed":
        print(f"{name}: the run ended as {result and result.status}", file=sys.stderr)
        raise SystemExit(1)
    return result.run


def _rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def _of_steps(run: Path) -> dict[str, float]:
    """Return the rates of the run's steps after the first, and the age of the oldest trained token."""
    steps = [row for row in _rows(run) if "training/trained_tokens" in row and "timing_s/step" in row]
    later = steps[1:] or steps
    return {
        "steps": len(steps),
        "seconds a step": median(row["timing_s/step"] for row in later),
        "tokens a step": fmean(row["training/tokens"] for row in later),
        "trained tokens/s": fmean(row["training/trained_tokens"] / row["timing_s/step"] for row in later),
        "oldest weights, steps": max(row.get("training/staleness_max", 0.0) for row in steps),
    }
