"""Write and verify the manifest of an exported policy, `sparring.json`. It contains the origin of the policy, and the
files with their hashes. This module does not import torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sparring.errors import ServiceError
from sparring.run_folders.formats import require_format
from sparring.runtime.json_values import parse_json
from sparring.types import Json

FORMAT = 1
MANIFEST = "sparring.json"
GGUF_FILE = "model.gguf"
ADAPTER, MERGED, GGUF = "adapter", "merged model", "GGUF model"
"""The kinds of exports."""

GgufPrecision: TypeAlias = Literal["f32", "f16", "bf16", "q8_0"]
"""The precision of the matrices in a GGUF file, by the names of llama.cpp."""

_LOADED = frozenset({".json", ".safetensors", ".jinja", ".txt", ".model", ".bin", ".pt", ".py", ".gguf"})
"""The suffixes of files that are read when a model is loaded."""


def is_export(folder: Path) -> bool:
    """Return whether a folder contains an exported policy."""
    return (folder / MANIFEST).is_file()


def write_manifest(folder: Path, content: Mapping[str, Json]) -> None:
    """Write the manifest of an export. All other files must exist already."""
    files = {name: _sha256(folder / name) for name in _files(folder)}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, **content, "files": files}, indent=1) + "\n", "utf-8")


def verify(folder: Path) -> dict[str, Any]:
    """Verify an export and return its manifest. Raises ServiceError, which names the first missing, damaged or unlisted
    file, or a link that leads out of the export."""
    try:
        manifest = parse_json((folder / MANIFEST).read_text("utf-8"))
        known, files = manifest["format"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServiceError(f"{folder / MANIFEST} cannot be read ({error!r}); export the policy again.") from error
    require_format(folder, known, FORMAT, otherwise="export the policy again", error=ServiceError)
    for name, expected in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ServiceError(
                f"{path} leads out of the export, so it is not followed; put the file itself there, or export the policy again."
            )
        if not path.is_file():
            raise ServiceError(f"{folder} lacks {name}, which its {MANIFEST} lists; export the policy again.")
        if _sha256(path) != expected:
            raise ServiceError(
                f"{path} does not have the hash that {MANIFEST} lists: the file was changed or damaged, so the policy would not "
                f"be {_policy(manifest)}. Copy the file again, or export the policy again."
            )
    added = [name for name in _files(folder) if name not in files and Path(name).suffix in _LOADED]
    if added:
        raise ServiceError(
            f"{folder} contains {added[0]}, which its {MANIFEST} does not list but which may be read when the model is loaded; "
            f"move the file elsewhere, or delete {MANIFEST} if this is now another model."
        )
    return manifest


def _policy(manifest: Mapping[str, Any]) -> str:
    return f"step {manifest.get('step')} of {manifest.get('run')}"


def _files(folder: Path) -> list[str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [str(path.relative_to(folder)) for path in paths if path != folder / MANIFEST]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
