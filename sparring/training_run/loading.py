"""Create a run's folder and load the run's objects when they are first needed."""

from __future__ import annotations

import asyncio
import shutil
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar, final

from sparring.assembly import RolloutParts, close, pin_checkpoints, pin_data
from sparring.assembly.run import Announce
from sparring.config import Config
from sparring.errors import DataError, UsageError
from sparring.ledger import Ledger
from sparring.metering.usage import meter_usage
from sparring.run_folders import RunFolder
from sparring.run_folders.lineage import record_weights
from sparring.run_folders.presence import explaining_loss
from sparring.run_folders.recipe_files import find_code_folder
from sparring.run_folders.run_folder import ENGINE, VOCABULARY
from sparring.runtime import event_loop
from sparring.tracking import Console
from sparring.training.checkpoint_files import hash_checkpoint

Parts_co = TypeVar("Parts_co", bound=RolloutParts, covariant=True)


class LoadParts(Protocol[Parts_co]):
    """Loads the parts of a run: `load_training_parts`, or `load_rollout_parts` without training."""

    def __call__(
        self, config: Config, recipe_dir: Path, ledger: Ledger, *, announce: Announce, folder: Path | None
    ) -> Parts_co: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun(Generic[Parts_co]):
    """A run folder with the objects that were loaded for it."""

    folder: RunFolder
    path: Path
    """The folder as the user wrote it, for messages."""
    recipe: Path
    parts: Parts_co


@final
class RunLoader(Generic[Parts_co]):
    """Creates a run's folder and loads the run's objects, once. A loader that is garbage-collected without `close`
    releases its model."""

    def __init__(
        self,
        load: LoadParts[Parts_co],
        recipe: Path,
        config: Config,
        *,
        console: Console,
        name: str | None = None,
    ) -> None:
        """Prepare a loader. If the loader creates a run folder, the folder is called `name`."""
        self.recipe, self.config, self.name = recipe, config, name
        self.folder: RunFolder | None = None
        self.model_weights: Path | None = None
        """The checkpoint whose weights a new run starts from. It is recorded when the run's folder is created."""
        self._path = Path()
        self._load, self._console = load, console
        self._loaded: LoadedRun[Parts_co] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    async def load(self) -> LoadedRun[Parts_co]:
        """Return the run's objects. The first call loads them.

        Raises the errors of loading, and DataError for a folder without a manifest. If the recipe or its data is wrong, a
        folder that this call created is deleted.
        """
        if self._loaded is None:
            is_new = self.folder is None
            if is_new:
                self.config = await asyncio.to_thread(pin_checkpoints, self.config)
            folder = await asyncio.to_thread(self.open_folder)
            folder.require_manifest()
            try:
                with explaining_loss(folder):
                    parts = await self._load_parts(folder)
            except (UsageError, DataError):
                if is_new:
                    # Nothing is in the folder that anybody needs, and its name is free again.
                    await asyncio.to_thread(shutil.rmtree, folder.path)
                    self.folder = None
                raise
            self._loaded = LoadedRun(folder=folder, path=self._path, recipe=self.recipe, parts=parts)
            finalizer = weakref.finalize(self, _close_later, parts)
            finalizer.atexit = False
            self._finalizer = finalizer
        return self._loaded

    def open_folder(self) -> RunFolder:
        """Return the run's folder, and create it if it does not exist. Raises DataError if it cannot be created, and the
        errors of `pin_data`."""
        if self.folder is None:
            self.config, commits = pin_data(self.config)
            for address, commit in commits.items():
                self._console.announced(f"{address} is read at commit {commit}")
            folder = RunFolder.create(self.config, self.recipe, name=self.name)
            if commits:
                folder.record_revisions(commits)
            if self.model_weights is not None:
                record_weights(folder, self.model_weights, hash_checkpoint(self.model_weights))
            return self.use_folder(folder)
        return self.folder

    def use_folder(self, folder: RunFolder) -> RunFolder:
        """Use an existing folder, and return it with an absolute path, so that changing the working directory does not
        affect it."""
        self.folder, self._path = folder.absolute(), folder.path
        return self.folder

    def close(self) -> None:
        """Close all loaded objects, and wait until they are closed. A later `load` loads them again."""
        if self._finalizer is not None and (ended := self._finalizer.detach()) is not None:
            self._loaded = self._finalizer = None
            _, _, (parts,), _ = ended
            event_loop.submit(close(parts)).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A second interrupt does not wait for a running computation.
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self.close()

    async def _load_parts(self, folder: RunFolder) -> Parts_co:
        ledger = Ledger(folder.ledger)
        try:
            with meter_usage(folder.path, during="loading"):
                parts = await asyncio.to_thread(
                    self._load,
                    self.config,
                    find_code_folder(self.recipe),
                    ledger,
                    announce=self._console.announced,
                    folder=folder.path / ENGINE,
                )
            if not (folder.path / VOCABULARY).exists():
                folder.write_vocabulary(await asyncio.to_thread(parts.model.vocabulary))
            return parts
        except BaseException:
            ledger.close()
            raise


def _close_later(parts: RolloutParts) -> None:
    event_loop.finish(close(parts))
