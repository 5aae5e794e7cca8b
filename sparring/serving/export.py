"""Export a trained policy as an adapter that peft loads, or as merged weights that transformers loads."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparring.assembly import load_policy
from sparring.config import Config
from sparring.errors import DataError, UsageError
from sparring.evaluation.policies import checkpoint_of, named_checkpoint
from sparring.models import smollm2
from sparring.models.export import save_adapter, save_base, save_merged
from sparring.models.export_files import write_manifest
from sparring.models.model_card import model_card
from sparring.models.policy import Policy
from sparring.models.pretrained import BASE_FOLDER, is_adapter
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import MANIFEST, describe_machine
from sparring.training import checkpoints
from sparring.types import Json, Weights


def export(run: str | Path, destination: str | Path, *, merge: bool = False) -> Path:
    """Write a checkpoint, its tokenizer, a manifest (`sparring.json`) and a README into a new folder. Return the folder.

    The checkpoint is the newest unless `run` is RUN@STEP or RUN@best. An adapter needs its base model; `merge` writes a
    complete model. Raises DataError if the destination exists or if the checkpoint is damaged or missing. Raises
    UsageError if there is no adapter. This is the case if the run trained all weights, or if it is a baseline, which
    trains no weights.
    """
    target = Path(destination)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} exists and is not empty, but export needs a new folder; specify another folder.")
    for above in target.absolute().parents:
        if above.exists() and not above.is_dir():
            raise DataError(f"{target} cannot be created, because {above} is a file; specify another folder.")
    folder, step = named_checkpoint(run)
    config = folder.trained_config()
    if not merge and config.model.trained_weights == "full":
        raise UsageError(f"{run} trained every weight, so there is no adapter; export with merge (`--merge`).")
    checkpoint = checkpoint_of(folder, step)
    policy = load_policy(config, folder.code)
    initial = policy.snapshot()
    weights = checkpoints.load_weights(checkpoint, policy)
    policy.restore(weights.tensors)
    parts = target.with_name(f".{target.name}.part")
    shutil.rmtree(parts, ignore_errors=True)
    try:
        base = _base(config, policy, initial)
        if merge:
            save_merged(policy, parts)
        else:
            if base["path"] is None:
                save_base(policy, parts / BASE_FOLDER)
                base["path"] = BASE_FOLDER
            save_adapter(policy, parts, base_model=str(base["path"]))
        manifest = {
            "kind": "merged model" if merge else "adapter",
            **_origin(folder, checkpoint, policy, weights),
            "base": base,
            "evaluations": list(_evaluations(folder, weights.fingerprint)),
        }
        (parts / "README.md").write_text(model_card(manifest), "utf-8")
        write_manifest(parts, manifest)
        parts.replace(target)
    except BaseException:
        shutil.rmtree(parts, ignore_errors=True)
        raise
    return target


def _base(config: Config, policy: Policy, initial: Weights) -> dict[str, Json]:
    """Describe the base model and where to load it from. `path` is None if only the recipe's code creates the model."""
    name = config.model.name
    described: dict[str, Json] = {"name": name, "fingerprint": policy.base_fingerprint(initial)}
    if name == smollm2.NAME:
        source = f"{smollm2.GGUF} (sha256 {smollm2.SHA256}) of {smollm2.PACKAGE} on the Python package index"
        return {
            **described,
            "path": str(smollm2.ensure_converted()),
            "source": source,
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


def _origin(folder: RunFolder, checkpoint: Path, policy: Policy, weights: Weights) -> dict[str, Json]:
    template = str(policy.tokenizer.chat_template)
    return {
        "created": time.time(),
        "run": str(folder.path.absolute()),
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


def _evaluations(folder: RunFolder, fingerprint: str) -> Iterator[dict[str, Json]]:
    """Yield the evaluations of exactly these weights, whatever their step."""
    kept = ("name", "split", "temperature", "group_size", "scorer", "score", "success")
    for path in sorted(folder.evaluations.glob("*.json")):
        try:
            content: Any = json.loads(path.read_text("utf-8"))
            rows: list[Mapping[str, Json]] = content.get("evaluations", [content])
            found = [row for row in rows if row.get("fingerprint") == fingerprint]
            for row in found:
                yield {"file": path.name, **{key: row.get(key) for key in kept}, "tasks": len(row.get("tasks", ()))}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise DataError(f"{path} is not an evaluation ({error!r}); delete it, or restore it.") from error
