"""The list of the files in a copy, and the names of the objects of a copy.

    owner.json                        who writes the copy
    0001-3f2a9c04/000017.json         a list of files; the newest complete one is the copy
    0001-3f2a9c04/blocks/9f86d0...    the content of files, in blocks that are named by their SHA-256

The folder `0001-3f2a9c04` is a generation: the objects of one run folder. A run that continues in another folder starts
a new generation, so that a machine that still writes the old one cannot damage the copy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sparring.copies.store import PART, Store
from sparring.run_folders.formats import require_format

FORMAT = 1
BLOCK_BYTES = 8 * 2**20
OWNER = "owner.json"
_GENERATION = r"\d{4}-[0-9a-f]{8}"
_MANIFEST = re.compile(rf"({_GENERATION})/(\d{{6,}})\.json")
_OBJECT = re.compile(rf"(?:{re.escape(OWNER)}|({_GENERATION})/(?:\d{{6,}}\.json|blocks/[0-9a-f]{{64}}))(?:{PART})?")
"""The names of all objects that a copy writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a run."""

    size: int
    """Length in bytes."""
    modified: int
    """Nanoseconds since 1970."""
    mode: int
    """Permission bits."""
    blocks: tuple[str, ...]
    """The SHA-256 of each block of BLOCK_BYTES; the last one may be shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyManifest:
    """The files of a run at one moment."""

    time: float
    """Seconds since 1970."""
    step: int
    """The step in the run's status."""
    files: Mapping[str, FileEntry]
    """The files by path in the run folder."""

    @property
    def blocks(self) -> frozenset[str]:
        return frozenset(block for entry in self.files.values() for block in entry.blocks)

    def encode(self) -> bytes:
        """Return the content of the object, with a checksum that shows whether it is complete."""
        content = {
            "time": self.time,
            "step": self.step,
            "files": {path: asdict(entry) for path, entry in self.files.items()},
        }
        text = json.dumps(content)
        return json.dumps({"format": FORMAT, "sha256": hash_block(text.encode()), "content": text}).encode()


def decode(content: bytes) -> CopyManifest:
    """Read a manifest. Raises ValueError if it is incomplete or damaged, and DataError for a newer format."""
    try:
        outer = json.loads(content)
        require_format("the copy", outer["format"], FORMAT, otherwise="use another copy")
        text = outer["content"]
        if hash_block(text.encode()) != outer["sha256"]:
            raise ValueError("the content does not match its checksum")
        inner = json.loads(text)
        files = {
            path: FileEntry(**{**entry, "blocks": tuple(entry["blocks"])}) for path, entry in inner["files"].items()
        }
        return CopyManifest(time=inner["time"], step=inner["step"], files=files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a manifest of a copy: {error!r}") from error


def list_manifests(store: Store, generation: str = "") -> list[str]:
    """Return the names of the manifests, oldest first."""
    return sorted((name for name in store.list(generation) if _MANIFEST.fullmatch(name)), key=parse_name)


def read_newest(store: Store, generation: str = "") -> tuple[str, CopyManifest] | None:
    """Return the newest complete manifest with its name, or None if there is none.

    Raises StoreError, and DataError for a newer format.
    """
    for name in reversed(list_manifests(store, generation)):
        content = store.read(name)
        if content is not None:
            try:
                return name, decode(content)
            except ValueError:
                continue  # It was being written when its process died.
    return None


def name_manifest(generation: str, number: int) -> str:
    return f"{generation}/{number:06d}.json"


def name_block(generation: str, block: str) -> str:
    return f"{generation}/blocks/{block}"


def parse_name(name: str) -> tuple[str, int]:
    """Return the generation and the number of a manifest."""
    found = _MANIFEST.fullmatch(name)
    assert found is not None, name
    return found[1], int(found[2])


def is_foreign(name: str) -> bool:
    """Return whether an object has a name that no copy writes."""
    return _OBJECT.fullmatch(name) is None


def is_part_of_owner(name: str) -> bool:
    """Return whether an object is what a write of `owner.json` left that never ended."""
    return re.fullmatch(re.escape(OWNER) + PART, name) is not None


def find_generation(name: str) -> str | None:
    """Return the generation of an object, or None if it is in no generation or foreign."""
    found = _OBJECT.fullmatch(name)
    return found[1] if found is not None else None


def hash_block(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
