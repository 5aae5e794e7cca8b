"""Describe where an exported policy comes from: its run, its base model, its evaluations and the claim that they support."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparring.config import Config
from sparring.errors import DataError
from sparring.evaluation.evaluation import Evaluation, interval_json
from sparring.evaluation.of_run import claim_of_run, evaluated
from sparring.models import smollm2
from sparring.models.policy import Policy
from sparring.models.pretrained import is_adapter
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import MANIFEST, describe_machine
from sparring.runtime.json_values import parse_json
from sparring.types import Json, Weights


def describe_base(config: Config, policy: Policy, initial: Weights) -> dict[str, Json]:
    """Describe the base model and where to load it from. `path` is None if only the recipe's code creates the model."""
    name = config.model.name
    described: dict[str, Json] = {"name": name, "fingerprint": policy.base_fingerprint(initial)}
    if name == smollm2.NAME:
        source = f"{smollm2.GGUF} (sha256 {smollm2.SHA256}) of {smollm2.PACKAGE} on the Python package index"
        return {
            **described,
            "path": str(smollm2.ensure_converted()),
            "source": source,
            "license": smollm2.LICENSE,
            "command": "python -m sparring.models.smollm2",
        }
    local = Path(name).expanduser()
    if ":" in name or is_adapter(local):
        return {
            **described,
            "path": None,
            "source": "created by the recipe's code or from an adapter; `--merge` includes it",
        }
    if local.is_dir():
        return {**described, "path": str(local.resolve()), "source": "a folder on the machine that exported it"}
    revision = getattr(policy.base.config, "_commit_hash", None)
    return {**described, "path": name, "source": "the Hugging Face hub", "revision": revision}


def describe_origin(folder: RunFolder, checkpoint: Path, policy: Policy, weights: Weights) -> dict[str, Json]:
    """Describe the run, the checkpoint and the versions of the libraries."""
    template = str(policy.tokenizer.chat_template)
    return {
        "created": time.time(),
        "run": folder.path.absolute().name,
        "seed": folder.config().run.seed,
        "step": int(checkpoint.name) if checkpoint.name.isdigit() else 0,
        "checkpoint": checkpoint.name,
        "fingerprint": weights.fingerprint,
        "versions": describe_machine()["versions"],
        "chat_template": hashlib.sha256(template.encode()).hexdigest(),
        "recipe": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (folder.recipe, folder.path / MANIFEST)
            if path.is_file()
        },
    }


def describe_verdict(folder: RunFolder, fingerprint: str) -> dict[str, Json]:
    """Return the claim that the run's evaluations support, and the policies that it compares, with the trained policy last.

    `is_about_these_weights` is whether the claim is about the weights with this fingerprint.
    """
    claim = claim_of_run(folder, evaluated(folder))
    compared = [*(one.before for one in reversed(claim.against)), *(() if claim.tuned is None else (claim.tuned,))]
    return {
        **{key: value for key, value in claim.as_json().items() if key != "findings"},
        "is_about_these_weights": claim.tuned is not None and claim.tuned.fingerprint == fingerprint,
        "policies": [_describe_row(one) for one in compared],
    }


def _describe_row(one: Evaluation) -> dict[str, Json]:
    return {
        "name": one.name,
        "split": one.split,
        "temperature": one.temperature,
        "group_size": one.group_size,
        "tasks": len(one.task_ids),
        "success": interval_json(one.success),
        "score": interval_json(one.score),
        "scorer": one.criterion.scorer,
    }


def list_evaluations(folder: RunFolder, fingerprint: str) -> Iterator[dict[str, Json]]:
    """Yield the evaluations of exactly these weights, whatever their step. Raises DataError if a file is damaged."""
    kept = ("name", "split", "temperature", "group_size", "scorer", "score", "success")
    for path in sorted(folder.evaluations.glob("*.json")):
        try:
            content: Any = parse_json(path.read_text("utf-8"))
            rows: list[Mapping[str, Json]] = content.get("evaluations", [content])
            found = [row for row in rows if row.get("fingerprint") == fingerprint]
            for row in found:
                yield {"file": path.name, **{key: row.get(key) for key in kept}, "tasks": len(row.get("tasks", ()))}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise DataError(f"{path} is not an evaluation ({error!r}); delete it, or restore it.") from error
