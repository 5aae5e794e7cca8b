"""The files of a recipe's folder in a run: copies with their sha256, links to large files, and checks of the links.

They are in the run's folder `recipe/`, so that the recipe's code finds the files that it expects next to itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.errors import DataError
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import OWNER_ONLY, create_folder

RUN_RECIPE = "run.toml"
FOLDER = "recipe"
FOLDER_SCHEMES = ("hf://.", "hf:///")
"""The beginnings of an address of a data set in a folder on this machine."""
LARGE_BYTES = 64 * 2**20
"""Files of at least this size are linked instead of copied."""
MOST_FILES, MOST_BYTES = 10_000, 2**30
"""A subfolder with more files than this is linked as a whole."""
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFiles:
    """The files of a recipe's folder that belong to a run, as sorted paths relative to the folder."""

    folder: Path
    copied: Sequence[Path]
    linked: Sequence[Path]
    """The large files, and the subfolders with too many files."""

    def __contains__(self, path: Path) -> bool:
        """Return whether a run contains a file or folder. `path` is relative to the recipe's folder."""
        return any(one.is_relative_to(path) for one in self.copied) or any(
            path.is_relative_to(one) for one in self.linked
        )

    def reference(self, file: str) -> str:
        """Return the path that a run's own recipe uses for a file, or for the folder of a data set (`hf://./FOLDER?…`). The
        path is relative if the run contains the file, and absolute otherwise."""
        if file.startswith(FOLDER_SCHEMES):
            path, mark, query = file.removeprefix("hf://").partition("?")
            found = self.reference(path)
            return f"hf://{found if Path(found).is_absolute() else f'./{found}'}{mark}{query}"
        folder = self.folder.absolute()
        relative = Path(os.path.relpath(folder / file, folder))
        return str(relative) if relative in self else str((folder / file).resolve())


def find_code_folder(recipe: Path) -> Path:
    """Return the folder with a recipe's code and files. For the recipe of a run, this is the run's copy."""
    copy = recipe.parent / FOLDER
    is_of_run = recipe.name == RUN_RECIPE and (recipe.parent / "manifest.json").is_file()
    return copy if is_of_run and copy.is_dir() else recipe.parent


def list_files(recipe: Path, runs_dir: Path) -> RecipeFiles:
    """Return the regular files in a recipe's folder at any depth. Symlinks are followed. Hidden files, caches, virtual
    environments, run folders, `runs_dir` and unreadable files are left out."""
    folder = find_code_folder(recipe)
    runs = runs_dir.resolve()
    copied: list[Path] = []
    linked: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if _is_left_out(entry, runs):
            continue
        files = _files_below(entry, runs) if entry.is_dir() else [entry]
        if files is None:
            linked.append(entry)
            continue
        for file in files:
            if file.is_file() and os.access(file, os.R_OK):
                (linked if file.stat().st_size >= LARGE_BYTES else copied).append(file)
    return RecipeFiles(
        folder=folder,
        copied=[path.relative_to(folder) for path in copied],
        linked=[path.relative_to(folder) for path in linked],
    )


def copy_files(files: RecipeFiles, target: Path) -> dict[str, Any]:
    """Copy and link files into a folder. Return the entries for the manifest.

    `files` contains the sha256 of each copy. `linked` contains the `path` of each link, and for a file also its
    `bytes`, its `modified` (nanoseconds since 1970) and its `sha256`."""
    create_folder(target)
    for file in (*files.copied, *files.linked):
        create_folder((target / file).parent, parents=True, exist_ok=True)
    for file in files.copied:
        _copy(files.folder / file, target / file)
    linked: dict[str, Any] = {}
    for file in files.linked:
        source = (files.folder / file).resolve()
        (target / file).symlink_to(source)
        linked[str(file)] = {"path": str(source), **(_identity(source) if source.is_file() else {})}
    return {"files": {str(file): sha256(target / file) for file in files.copied}, "linked": linked}


def check_links(folder: Path) -> None:
    """Raise DataError if a large file to which a run's folder `recipe` links is missing or has changed.

    For a linked subfolder, only its presence is checked. In a folder outside of a run, there is nothing to check.
    """
    path = folder.parent / "manifest.json"
    if folder.name != FOLDER or not path.is_file():
        return
    try:
        linked: Mapping[str, Any] = parse_json(path.read_text("utf-8")).get("linked", {})
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} is not a JSON object ({error}); restore it, or specify another run.") from error
    for name, entry in linked.items():
        file = folder / name
        what = f"{file} is a link to {entry['path']}, which was too large for a copy in the run"
        if not file.exists():
            raise DataError(f"{what} and is now missing; restore it, or put the file or a link to it at {file}.")
        if "sha256" not in entry or file.stat().st_mtime_ns == entry["modified"]:
            continue
        if file.stat().st_size != entry["bytes"] or sha256(file) != entry["sha256"]:
            raise DataError(
                f"{what}, and its content has changed since then; restore the content with sha256 "
                f"{entry['sha256'][:12]}..., or train the recipe again with the current file."
            )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: Path, target: Path) -> None:
    shutil.copy2(source, target)
    target.chmod(target.stat().st_mode & OWNER_ONLY)


def _identity(path: Path) -> dict[str, Any]:
    stat = path.stat()
    return {"bytes": stat.st_size, "modified": stat.st_mtime_ns, "sha256": sha256(path)}


def _files_below(folder: Path, runs: Path) -> list[Path] | None:
    """Return the sorted files below a folder, or None if there are more than may be copied."""
    found: list[Path] = []
    num_bytes = 0
    for root, folders, names in os.walk(folder, followlinks=True):
        here = Path(root)
        folders[:] = sorted(name for name in folders if not _is_left_out(here / name, runs))
        files = [path for name in names if not _is_left_out(path := here / name, runs) and path.is_file()]
        sizes = [path.stat().st_size for path in files]
        num_bytes += sum(size for size in sizes if size < LARGE_BYTES)
        found += files
        if len(found) > MOST_FILES or num_bytes > MOST_BYTES:
            return None
    return sorted(found)


def _is_left_out(path: Path, runs: Path) -> bool:
    if path.name.startswith(".") or path.name in _LEFT_OUT or path.suffix == ".pyc":
        return True
    if not path.is_dir():
        return False
    if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
        # A link to a folder that contains the link would never end.
        return True
    return (path / "pyvenv.cfg").is_file() or (path / RUN_RECIPE).is_file() or path.resolve() == runs
