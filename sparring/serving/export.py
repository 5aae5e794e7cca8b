"""Export a trained policy: as an adapter for peft and vLLM, merged weights for transformers and vLLM, or a GGUF file for
llama.cpp and Ollama."""

from __future__ import annotations

import shutil
from pathlib import Path

from sparring.assembly import load_policy
from sparring.chat import create_chat
from sparring.errors import DataError, UsageError
from sparring.evaluation.policies import checkpoint_of, named_checkpoint
from sparring.models.export import save_adapter, save_base, save_merged
from sparring.models.export_files import ADAPTER, GGUF, GGUF_FILE, MERGED, GgufPrecision, write_manifest
from sparring.models.gguf_weights import check_gguf, save_gguf
from sparring.models.model_card import RECIPE_FILE, model_card
from sparring.models.ollama import modelfile
from sparring.models.policy import Policy
from sparring.models.pretrained import BASE_FOLDER
from sparring.run_folders import RunFolder
from sparring.runtime.redaction import mask_secrets
from sparring.serving.origin import describe_base, describe_origin, describe_verdict, list_evaluations
from sparring.training import checkpoints
from sparring.types import Json


def export(
    run: str | Path,
    destination: str | Path,
    *,
    merge: bool = False,
    gguf: GgufPrecision | None = None,
    license_id: str | None = None,
) -> Path:
    """Write a checkpoint, its tokenizer, a manifest (`sparring.json`), a model card (`README.md`) and the recipe into a new
    folder. Return the folder.

    The checkpoint is the newest unless `run` is RUN@STEP or RUN@best. An adapter needs its base model; `merge` writes a
    complete model for transformers and vLLM, and `gguf` one for llama.cpp and Ollama in the given precision. `license_id`
    is the license in the model card, as the hub abbreviates it; None is that of the base model, if it is known.

    Raises DataError if the destination exists or if the checkpoint is damaged or missing. Raises UsageError if there is no
    adapter (the run trained all weights, or it is a baseline, which trains no weights), or if the model cannot be written
    as GGUF.
    """
    kind = MERGED if merge else ADAPTER if gguf is None else GGUF
    if merge and gguf is not None:
        raise UsageError("a GGUF file is always merged; leave out merge (`--merge`), or leave out gguf (`--gguf`).")
    target = Path(destination)
    _check_target(target)
    folder, step = named_checkpoint(run)
    config = folder.trained_config()
    if kind == ADAPTER and config.model.trained_weights == "full":
        raise UsageError(f"{run} trained every weight, so there is no adapter; export with merge (`--merge`).")
    checkpoint = checkpoint_of(folder, step)
    policy = load_policy(config, folder.code)
    if gguf is not None:
        check_gguf(policy)
    initial = policy.snapshot()
    weights = checkpoints.load_weights(checkpoint, policy)
    policy.restore(weights.tensors)
    parts = target.with_name(f".{target.name}.part")
    shutil.rmtree(parts, ignore_errors=True)
    try:
        base = describe_base(config, policy, initial)
        _write_weights(parts, policy, folder, base, gguf=gguf, merge=merge)
        manifest = {
            "kind": kind,
            **describe_origin(folder, checkpoint, policy, weights),
            "license": license_id or base.get("license"),
            **({"lora_rank": config.model.lora_rank} if kind == ADAPTER else {}),
            "base": base,
            "verdict": describe_verdict(folder, weights.fingerprint),
            "evaluations": list(list_evaluations(folder, weights.fingerprint)),
        }
        (parts / RECIPE_FILE).write_text(mask_secrets(folder.recipe.read_text("utf-8")), "utf-8")
        (parts / "README.md").write_text(model_card(manifest), "utf-8")
        write_manifest(parts, manifest)
        _share_weights(parts)
        parts.replace(target)
    except BaseException:
        shutil.rmtree(parts, ignore_errors=True)
        raise
    return target


def _share_weights(parts: Path) -> None:
    """Give weights the mode of the other files, which the umask determines. safetensors writes files for their owner only."""
    mode = (parts / "README.md").stat().st_mode & 0o777
    for file in parts.rglob("*.safetensors"):
        file.chmod(mode)


def _check_target(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} exists and is not empty, but export needs a new folder; specify another folder.")
    for above in target.absolute().parents:
        if above.exists() and not above.is_dir():
            raise DataError(f"{target} cannot be created, because {above} is a file; specify another folder.")


def _write_weights(
    parts: Path, policy: Policy, folder: RunFolder, base: dict[str, Json], *, gguf: GgufPrecision | None, merge: bool
) -> None:
    """Write the model's files. Set the `path` of a base that only the recipe's code creates."""
    if gguf is not None:
        _write_gguf(parts, policy, folder, gguf)
    elif merge:
        save_merged(policy, parts)
    else:
        if base["path"] is None:
            save_base(policy, parts / BASE_FOLDER)
            base["path"] = BASE_FOLDER
        save_adapter(policy, parts, base_model=str(base["path"]))


def _write_gguf(parts: Path, policy: Policy, folder: RunFolder, precision: GgufPrecision) -> None:
    config = folder.config()
    stop_ids = create_chat(policy.tokenizer, config.model.name).stop_ids
    stops = [policy.tokenizer.decode([one], skip_special_tokens=False) for one in sorted(stop_ids)]
    save_gguf(policy, parts / GGUF_FILE, precision=precision, name=folder.path.name, stop_ids=stop_ids)
    temperature = config.serving_temperature
    text = modelfile(policy.tokenizer, weights=GGUF_FILE, stops=stops, temperature=temperature)
    (parts / "Modelfile").write_text(text, "utf-8")
