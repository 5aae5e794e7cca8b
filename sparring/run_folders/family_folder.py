"""Runs of one recipe that differ only in their seed, and the folder that lists them.

family.json     format, recipe, settings, hashes of the recipe's files, and the runs by seed; the run folders are next
to this one report.html     written by `sparring report` lock            locked by the process that trains the family
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from sparring.config import PLACE_KEYS, Config
from sparring.errors import DataError, UsageError
from sparring.run_folders.formats import require_format
from sparring.run_folders.locks import hold_lock
from sparring.run_folders.recipe_files import RecipeFiles, list_files, sha256
from sparring.run_folders.run_folder import FAMILY, RunFolder, write_json
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import create_folder
from sparring.types import Json

FORMAT = 1
MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The properties that all runs of a family have in common."""

    recipe: Path
    config: Mapping[str, Any]
    """All settings except those of `run`."""
    files: Mapping[str, str]
    """The sha256 of the files in the recipe's folder, without the recipe itself."""
    weights: str | None = None
    """The hash of the checkpoint whose weights the runs start from (`hash_checkpoint`), or None for the recipe's model."""

    @classmethod
    def of_recipe(cls, recipe: Path, config: Config, *, weights: str | None = None) -> Self:
        files = _digests(list_files(recipe, Path(config.run.runs_dir)), recipe.name)
        return cls(recipe=recipe.absolute(), config=_settings(config), files=files, weights=weights)

    @classmethod
    def of_run(cls, run: RunFolder) -> Self:
        recipe = Path(str(run.manifest().get("recipe", "recipe.toml")))
        files = {name: digest for name, digest in run.files().items() if name != recipe.name}
        weights = (run.origin() or {}).get("sha256")
        return cls(recipe=recipe, config=_settings(run.config()), files=files, weights=weights)

    def differences(self, other: Self) -> list[str]:
        """Return the names of the settings and files that differ between this origin and another, and `--model-weights`
        if the weights differ. Settings that describe one machine or cluster (those of a place file) are ignored."""
        old, new = _flat(self.config), _flat(other.config)
        settings = [key for key in sorted({*old, *new} - PLACE_KEYS) if old.get(key) != new.get(key)]
        weights = [] if self.weights == other.weights else ["--model-weights"]
        files = [one for one in {*self.files, *other.files} if self.files.get(one) != other.files.get(one)]
        return [*weights, *settings, *sorted(files)]


@final
class FamilyFolder:
    """An existing family. Raises DataError if `path` is not a family, or is damaged."""

    def __init__(self, path: Path) -> None:
        if not self.is_family(path):
            what = "contains no family.json, so it is not a family of runs" if path.is_dir() else "does not exist"
            raise DataError(f"{path} {what}; specify a folder that `sparring train RECIPE --seeds 3` wrote.")
        self.path = path
        try:
            content = parse_json((path / FAMILY).read_text("utf-8"))
            require_format(path / FAMILY, content["format"], FORMAT)
            self.origin = Origin(
                recipe=Path(content["recipe"]),
                config=dict(content["config"]),
                files=dict(content["files"]),
                weights=content.get("weights"),
            )
            self.created = float(content["created"])
            self.runs: dict[int, Path] = {int(one["seed"]): path.parent / one["run"] for one in content["runs"]}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path / FAMILY} cannot be read ({error!r}); restore it.") from error

    @staticmethod
    def is_family(path: Path) -> bool:
        return (path / FAMILY).is_file()

    @classmethod
    def create(cls, path: Path, origin: Origin) -> Self:
        """Create a family without runs. Raises DataError if the path exists, or if the folder cannot be created."""
        if path.exists():
            what = "a run" if RunFolder.is_run(path) else "not a family of runs"
            raise DataError(f"{path} exists and is {what}; give the family another name (--name).")
        content = {
            "format": FORMAT,
            "created": time.time(),
            "recipe": str(origin.recipe),
            "config": dict(origin.config),
            "files": dict(origin.files),
            **({} if origin.weights is None else {"weights": origin.weights}),
            "runs": [],
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            create_folder(path)
            write_json(path / FAMILY, content)
        except OSError as error:
            raise DataError(
                f"the family cannot be created in {path}: {error}; set run.runs_dir to a writable folder."
            ) from error
        return cls(path)

    def run_path(self, seed: int) -> Path:
        """Return the folder of a seed's run, which may not exist yet."""
        return self.runs.get(seed, self.path.parent / f"{self.path.name}-seed-{seed}")

    def add(self, seeds: Sequence[int]) -> None:
        """Add seeds to the family."""
        self.runs = dict(sorted({**{seed: self.run_path(seed) for seed in seeds}, **self.runs}.items()))
        content: Json = parse_json((self.path / FAMILY).read_text("utf-8"))
        content["runs"] = [{"seed": seed, "run": run.name} for seed, run in self.runs.items()]
        write_json(self.path / FAMILY, content)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the family, so that only one process trains it at a time. Raises UsageError if another process has the
        lock."""
        with hold_lock(
            self.path,
            UsageError(f"{self.path} is already being trained; wait for that process, or stop it with Ctrl-C."),
        ):
            yield


def join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _settings(config: Config) -> dict[str, Json]:
    return {name: section for name, section in config.model_dump(mode="json").items() if name != "run"}


def _flat(config: Mapping[str, Any]) -> dict[str, Json]:
    return {
        f"{section}.{key}" if key else section: value
        for section, values in config.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    }


def _digests(files: RecipeFiles, recipe: str) -> dict[str, str]:
    return {str(path): sha256(files.folder / path) for path in files.copied if str(path) != recipe}
