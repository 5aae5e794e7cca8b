"""MultiTurnRLTrainer trains the policy of a recipe and writes a run folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, final

from sparring.assembly import close, load_training_parts, refuse_training
from sparring.config import Config, load_config, untrainable
from sparring.errors import UsageError
from sparring.ledger import Ledger
from sparring.planning.gate import refuse_too_large
from sparring.run import Run
from sparring.run_folders import RunFolder
from sparring.run_folders.recipe_files import find_code_folder
from sparring.runtime import event_loop
from sparring.runtime.interrupts import interrupts
from sparring.tracking import Console
from sparring.training_run import following
from sparring.training_run.lifecycle import TrainRequest, run_training
from sparring.training_run.loading import RunLoader
from sparring.training_run.run import TrainResult

__all__ = ["MultiTurnRLTrainer", "TrainResult"]


@final
class MultiTurnRLTrainer:
    """Trains the policy of a recipe by multi-turn RL.

        trainer = MultiTurnRLTrainer("recipes/quickstart/recipe.toml", overrides=["schedule.max_steps=20"])
        result = trainer.train()
        MultiTurnRLEvaluator(model=trainer).evaluate()

    `model_weights` continues from the weights of another run (a run folder or checkpoint) with a fresh optimizer.
    """

    def __init__(
        self,
        recipe: str | Path,
        *,
        overrides: Sequence[str] = (),
        name: str | None = None,
        model_weights: str | Path | None = None,
        check: bool = True,
        quiet: bool = False,
    ) -> None:
        """If `check` is true, `train` checks the recipe first, and does not train if a check finds an error.

        Raises ConfigError with every problem of the recipe at once.
        """
        path = Path(recipe)
        self.recipe = path / "recipe.toml" if path.is_dir() else path
        self.overrides = tuple(overrides)
        config = load_config(self.recipe, list(overrides))
        if not config.is_trainable:
            raise untrainable(config, str(self.recipe))
        self._is_checked = check
        self._model_weights = model_weights
        self._console = Console(quiet=quiet)
        self._loader = RunLoader(
            load_training_parts, self.recipe, config, console=self._console, name=name or config.run.name
        )
        """An evaluator of this trainer uses the same loader, so that the model is loaded once."""
        self._future: Future[TrainResult] | None = None
        self._stop = asyncio.Event()

    @classmethod
    def attach(cls, run: str | Path, *, overrides: Sequence[str] = (), quiet: bool = False) -> Self:
        """Return the trainer of an existing run, to resume, evaluate or follow it: while another process of this machine
        trains the run, `wait` waits for its end, `stop` stops it, and `status` and `log` show how it goes.

        Raises DataError if the folder is not a run, or if its manifest is missing or was written by a newer version."""
        folder = RunFolder(Path(run))
        folder.require_manifest()
        trainer = cls(folder.recipe, overrides=overrides, quiet=quiet)
        trainer._loader.use_folder(folder)
        return trainer

    @property
    def config(self) -> Config:
        return self._loader.config

    @property
    def folder(self) -> RunFolder | None:
        """The run folder, or None before it is created."""
        return self._loader.folder

    @property
    def run(self) -> Run:
        """The run with its metrics, episodes and plots. Raises UsageError before the run is created."""
        if self.folder is None:
            raise UsageError("there is no run yet; call train() or load() first.")
        return Run(self.folder.path)

    def load(self) -> RunFolder:
        """Create the run folder, load the model and return the folder. If this method is not called, `train` does this
        work. Raises ConfigError, DataError or ServiceError."""
        return event_loop.submit(self._loader.load()).result().folder

    def train(
        self, *, wait: bool = True, dry_run: bool = False, resume: bool = False, allow_changed: Collection[str] = ()
    ) -> TrainResult | None:
        """Train to the end. With `wait=False`, return at once; `wait` then returns the result. `dry_run` only checks
        the recipe, the environment, the data and the model, and runs no episodes. `resume` continues an attached run
        from its last checkpoint.

        Raises UsageError if the model, tokenizer, template, data or recipe of a resumed run has changed since the run
        was last trained, unless `allow_changed` names it.
        """
        if self._future is not None and not self._future.done():
            raise UsageError("this trainer is already training; wait until it has finished, or create another trainer.")
        refuse_training(self.config, find_code_folder(self.recipe))
        if self._is_checked:
            refuse_too_large(self.config)
        if dry_run:
            with Ledger() as ledger:
                # Servers that are already running are checked, and none is started.
                has_running = bool(self.config.engine.base_urls)
                parts = load_training_parts(
                    self.config, find_code_folder(self.recipe), ledger, uses_servers=has_running
                )
                event_loop.submit(close(parts)).result()
            return None
        request = TrainRequest(
            overrides=self.overrides,
            is_checked=self._is_checked,
            model_weights=self._model_weights,
            resume=resume,
            allow_changed=allow_changed,
        )
        self._stop = asyncio.Event()
        self._future = event_loop.submit(run_training(self._loader, request, self._console, self._stop))
        return self.wait() if wait else None

    def wait(self, timeout: float | None = None) -> TrainResult:
        """Wait for `train`. The first Ctrl-C requests a checkpoint and a stop; the second one cancels the run.

        If another process trains an attached run, wait for its end and print its steps. Ctrl-C then only ends the wait.
        The status of the result is that of the run, such as `completed` or `failed`.

        Raises TimeoutError after `timeout` seconds; the run then continues.
        """
        if self._future is None:
            if self.folder is None:
                raise UsageError("there is no training to wait for; call train() first.")
            return following.follow(self.folder, self._console, timeout)
        with interrupts(self.stop):
            deadline = None if timeout is None else time.monotonic() + timeout
            while True:
                # Wait in short intervals, because a signal handler only runs between them.
                with suppress(TimeoutError):
                    return self._future.result(timeout=0.2)
                if self._future.done():
                    return self._future.result()
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"the run has not finished after {timeout} s; it continues.")

    def stop(self) -> None:
        """Save a checkpoint and stop, after the current step if that step is nearly finished. Calling it again changes
        nothing. Raises UsageError for an attached run that no process trains."""
        if self._future is None and self.folder is not None:
            following.request_stop(self.folder)
        event_loop.call_soon(self._stop.set)

    def status(self) -> Mapping[str, Any]:
        """Return the status of the run (`status`, `step`, `reason` and others), or an empty mapping before the run is
        created."""
        return {} if self.folder is None else self.folder.status()

    def log(self, num_lines: int = 20) -> list[str]:
        """Return the last warnings and errors of the run."""
        return [] if self.folder is None else following.read_log(self.folder, num_lines)

    def close(self) -> None:
        """Close the model, the ledger, the gateway and everything else that was opened, and wait until they are
        closed."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._loader.__exit__(kind, *rest)
