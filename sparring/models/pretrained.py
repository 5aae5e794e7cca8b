"""Load a causal LM and its tokenizer from the embedded model, a folder, an exported adapter, or the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from sparring.errors import ServiceError, SparringError
from sparring.models import export_files, smollm2
from sparring.models.architectures.loading import load_model
from sparring.models.export import untie_adapted_head
from sparring.models.load_errors import describe_load_error, refuse_pickles
from sparring.models.policy import DTYPES, fingerprint
from sparring.runtime.json_values import parse_json

BASE_FOLDER = "base_model"
"""The subfolder of an exported adapter that contains its base model, if the base model is not available elsewhere."""


def load_pretrained(name: str, *, precision: str | None = "fp32") -> tuple[Any, Any]:
    """Load a causal LM and its tokenizer. `name` is the name of the embedded model, a local folder or a Hugging Face
    id. An adapter is merged into its base.

    If `precision` is None, the precision of the files is used. A model with a merged adapter is always in fp32, since
    bf16 would round the adapter's changes away.

    Raises ServiceError, which describes what was tried, if the model is not available, and for a damaged export.
    """
    path = str(smollm2.ensure_converted()) if name == smollm2.NAME else name
    folder = Path(path).expanduser()
    if ("/" not in path or path.startswith((".", "/", "~"))) and not folder.is_dir():
        raise ServiceError(
            f"model.name = {name!r} is neither {smollm2.NAME!r}, nor a folder on this machine, nor an 'owner/name' "
            "of the Hugging Face hub. Check the spelling, or give the path of a folder saved with save_pretrained."
        )
    try:
        manifest = export_files.verify(folder) if export_files.is_export(folder) else {}
        if manifest.get("kind") == export_files.GGUF:
            raise ServiceError(
                f"{name} is a GGUF export, which llama.cpp and Ollama load (its README.md shows how), but Sparring does not. "
                "Export the run with --merge for Sparring."
            )
        refuse_pickles(folder)
        if is_adapter(folder):
            model = _adapted(folder, manifest.get("base", {}))
        else:
            model = load_model(folder if folder.is_dir() else path, dtype=DTYPES.get(precision or "", "auto"))
        tokenizer = AutoTokenizer.from_pretrained(folder if folder.is_dir() else path, trust_remote_code=False)
    except SparringError:
        raise
    except Exception as error:
        # A damaged file may raise any exception of its reader.
        raise ServiceError(f"model.name = {name!r} could not be loaded: {describe_load_error(error)}") from error
    return model, tokenizer


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter."""
    return (folder / "adapter_config.json").is_file()


def _adapted(folder: Path, exported: dict[str, Any]) -> Any:
    """Load an exported adapter and merge it into the base that the export names. Raises ServiceError if that base model
    has changed."""
    named = str(parse_json((folder / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"])
    if (folder / BASE_FOLDER).is_dir():
        named = str(folder / BASE_FOLDER)
    elif exported.get("name") == smollm2.NAME:
        named = smollm2.NAME
    try:
        base, _ = load_pretrained(named)
    except ServiceError as error:
        source = f" It was {exported['source']}." if exported else ""
        raise ServiceError(f"the base model of the adapter in {folder} cannot be loaded: {error}{source}") from error
    if exported and fingerprint(dict(base.named_parameters())) != exported["fingerprint"]:
        raise ServiceError(
            f"{named} is not the base model that the adapter in {folder} was trained on: its weights have a different hash. "
            "Restore that model, or export the run again with --merge."
        )
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(base, folder)
    untie_adapted_head(adapted.get_base_model())
    # peft has frozen the base weights.
    return adapted.merge_and_unload().requires_grad_(True)
