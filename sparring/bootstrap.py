"""Collect demonstrations from a teacher: episodes of another policy that the recipe's scorer accepts.

    bootstrap/
        lock                    locked by the process that adds episodes
        demonstrations.jsonl    one accepted conversation per line, which `warm_start.demonstrations` reads
        episodes.jsonl          one finished episode per line, accepted or not
        usage.jsonl             one request to an endpoint per line

Each episode is written when it finishes, so nothing is lost when the command is stopped. Running it again adds episodes
of the tasks without an accepted one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from sparring.assembly import EvaluationParts, build_main_policy, load_evaluated_engine, load_evaluation_parts
from sparring.config import Config, load_config
from sparring.errors import DataError, UsageError
from sparring.evaluation.policies import HAS_WEIGHTS, PolicyKind, read_policy
from sparring.ledger import Ledger
from sparring.metering.budget import Budget
from sparring.metering.usage import EndpointUsage, meter_usage, read_usage
from sparring.protocols import DeltaCallback, MessageEngine
from sparring.rollouts import GroupPlan, MainPolicy
from sparring.run_folders.encode import encode_line
from sparring.run_folders.recipe_files import find_code_folder
from sparring.run_folders.stored import read_rows
from sparring.runtime import interrupts
from sparring.runtime.private_files import create_folder, open_private
from sparring.runtime.text_rules import build_redactor, redact_json
from sparring.tracking import Console
from sparring.tracking.console import ProgressCallback
from sparring.types import EngineCapabilities, Json, MessageAnswer, MessageRequest, Sampling, Task, Trajectory

DEMONSTRATIONS, EPISODES, DURING = "demonstrations.jsonl", "episodes.jsonl", "bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSettings:
    """The teacher, and how many of its episodes are run and kept."""

    teacher: str
    """A policy without weights, in the notation of `sparring eval --policy`: `openai:MODEL@URL`, a script or the
    expert."""
    api_key_env: str | None = None
    threshold: float = 1.0
    """The least score of an episode that is kept."""
    max_kept: int | None = None
    """The number of demonstrations, earlier ones included, at which no new episode starts."""
    max_episodes: int | None = None
    """The number of episodes of this call."""
    max_cost: float | None = None
    """The money for all requests in the folder, earlier ones included."""
    attempts: int = 1
    """The most episodes of a task, earlier ones included."""
    temperature: float | None = None
    """The sampling temperature; by default the recipe's serving temperature."""
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """What the folder contains after a call, and what the call added."""

    folder: Path
    num_kept: int
    """The number of demonstrations in the folder."""
    num_new: int
    """The number of these that this call added."""
    num_episodes: int
    """The number of finished episodes of this call."""
    num_lost: int
    """The number of episodes of this call that were lost to failures. They are not counted above."""
    num_tasks: int
    """The number of training tasks."""
    endpoints: tuple[EndpointUsage, ...]
    """The requests of all calls."""
    limit: str | None
    """The limit that ended the call, or None if all tasks were tried."""

    @property
    def demonstrations(self) -> Path:
        """The file of the demonstrations."""
        return self.folder / DEMONSTRATIONS


@final
class _Folder:
    """The files of a bootstrap, locked by this process. Lines are appended whole, and an incomplete last line of a crash is
    removed."""

    def __init__(self, path: Path) -> None:
        """Read what earlier calls left. Raises DataError, with the line, for a damaged file, and UsageError if the folder
        cannot be written or another process uses it."""
        self.path = path
        try:
            create_folder(path, parents=True, exist_ok=True)
            self._lock = open_private(path / "lock", "w")
        except OSError as error:
            raise UsageError(f"{path} cannot be used as a folder: {error}; give another one with --out.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UsageError(f"another `sparring bootstrap` writes to {path}; wait until it has finished.") from error
        for name in (DEMONSTRATIONS, EPISODES):
            _drop_incomplete_line(path / name)
        kept = list(read_rows(path / DEMONSTRATIONS)) if (path / DEMONSTRATIONS).exists() else []
        tried = list(read_rows(path / EPISODES)) if (path / EPISODES).exists() else []
        self.kept = [_key(row, "task_id", where) for where, row in kept]
        self.kept_tasks = set(self.kept)
        self.num_tried = Counter(_key(row, "task_id", where) for where, row in tried)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def add(
        self,
        episode: Trajectory,
        *,
        teacher: str,
        tools: Sequence[Json] | None,
        threshold: float,
        redact: Callable[[str], str],
    ) -> bool:
        """Store a finished episode with its messages redacted, and return whether it is a demonstration."""
        assert episode.score is not None, "bootstrap requires a scorer"
        is_kept = episode.score >= threshold
        about: dict[str, Json] = {"task_id": episode.task.id, "teacher": teacher, "score": episode.score}
        if is_kept:
            row = {"messages": redact_json(episode.messages, redact), **about}
            _append(self.path / DEMONSTRATIONS, row if tools is None else {**row, "tools": list(tools)})
            self.kept.append(episode.task.id)
            self.kept_tasks.add(episode.task.id)
        outcome = {"outcome": episode.outcome.value, "turns": len(episode.turns) + len(episode.other_turns)}
        _append(self.path / EPISODES, {**about, **outcome, "kept": is_kept})
        self.num_tried[episode.task.id] += 1
        return is_kept


@final
class _SeenTools:
    """A message engine that remembers the tools of each session, because agents with their own loop choose their tools."""

    def __init__(self, engine: MessageEngine) -> None:
        self._engine = engine
        self.of_session: dict[str, Sequence[Json]] = {}

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        self.of_session[request.session_id] = request.tools
        return await self._engine.answer(request, on_delta)

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._engine.capabilities

    @property
    def fingerprint(self) -> str:
        return self._engine.fingerprint

    async def close(self) -> None:
        await self._engine.close()


def bootstrap(
    recipe: Path,
    folder: Path,
    settings: BootstrapSettings,
    *,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> Bootstrapped:
    """Run the teacher on the training tasks of a `recipe.toml`, and add its accepted episodes to a folder.

    Raises UsageError for a teacher that is not possible, and DataError for damaged files in the folder.
    """
    config = load_config(recipe, overrides)
    if config.reward.scorer is None:
        raise UsageError(
            f"{recipe} has no scorer, so nothing decides which episodes are good; set reward.scorer to a `module:function`."
        )
    if settings.max_cost is not None and not settings.prices:
        raise UsageError("a limit of the cost needs prices; give --price MODEL:read=AMOUNT and MODEL:sample=AMOUNT.")
    policy = read_policy(settings.teacher)
    if policy.kind in HAS_WEIGHTS or policy.kind is PolicyKind.CONSTANT:
        raise UsageError(f"{settings.teacher!r} cannot teach; give openai:MODEL@URL, script:MODULE:FUNCTION or expert.")
    code = find_code_folder(recipe)
    engine = load_evaluated_engine(policy, config, code, api_key_env=settings.api_key_env)
    files = _Folder(folder)
    try:
        with meter_usage(folder, during=DURING):
            return interrupts.run(_teach(config, code, settings, files, engine, Console(quiet=quiet)))
    finally:
        files.close()


async def _teach(
    config: Config,
    code: Path,
    settings: BootstrapSettings,
    files: _Folder,
    engine: MessageEngine,
    console: Console,
) -> Bootstrapped:
    async with Ledger() as ledger:
        parts = load_evaluation_parts(config, code, ledger, engine=engine, announce=console.announced)
        try:
            if not parts.tasks.train:
                raise DataError("the recipe has no training task; set data.train.")
            return await _Teaching(config, settings, files, engine, console).run(parts)
        finally:
            await parts.collector.aclose()
            await engine.close()


@final
class _Teaching:
    """One call: it starts episodes until every task is done or a limit is reached, and stores each when it finishes."""

    def __init__(
        self,
        config: Config,
        settings: BootstrapSettings,
        files: _Folder,
        engine: MessageEngine,
        console: Console,
    ) -> None:
        self._settings, self._files, self._engine, self._console = settings, files, _SeenTools(engine), console
        self._policy = MainPolicy(self._engine, introduce=build_main_policy(engine).introduce)
        self._has_own_tools = config.agent.is_foreign
        self._redact = build_redactor(config.tracking.redact)
        self._num_workers = min(config.rollout.rollout_max_concurrency, config.engine.max_running)
        temperature = config.serving_temperature if settings.temperature is None else settings.temperature
        self._sampling = Sampling(temperature=temperature, max_tokens=config.sampling.sampling_max_tokens)
        self._started = str(time.time_ns())
        self._budget = Budget(settings.max_cost, endpoint_cost=self._cost)
        self._num_started = self._num_episodes = self._num_lost = 0
        self._num_before = len(files.kept)
        self._limit: str | None = None

    async def run(self, parts: EvaluationParts) -> Bootstrapped:
        plans = self._plans(parts.tasks.train)
        total = sum(1 for _ in self._plans(parts.tasks.train))
        with self._console.steps("bootstrap", min(total, self._settings.max_episodes or total)) as progress:
            workers = [asyncio.ensure_future(self._work(parts, plans, progress)) for _ in range(self._num_workers)]
            try:
                await asyncio.gather(*workers)
            finally:
                for one in workers:
                    one.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return Bootstrapped(
            folder=self._files.path,
            num_kept=len(self._files.kept),
            num_new=len(self._files.kept) - self._num_before,
            num_episodes=self._num_episodes,
            num_lost=self._num_lost,
            num_tasks=len(parts.tasks.train),
            endpoints=tuple(read_usage(self._files.path, during=DURING)),
            limit=self._limit,
        )

    def _plans(self, tasks: Sequence[Task]) -> Iterator[GroupPlan]:
        """Yield the next episode to start: each task once, then those without an accepted episode again."""
        for attempt in range(self._settings.attempts):
            for index, task in enumerate(tasks):
                # Earlier calls may have tried some tasks more often than others.
                if self._files.num_tried[task.id] <= attempt and task.id not in self._files.kept_tasks:
                    yield GroupPlan(
                        task=task,
                        position=index + attempt * len(tasks),
                        group_size=1,
                        sampling=self._sampling,
                        split="validation",  # a split whose groups may have one member
                        label=f"{attempt}@{self._started}",
                        policy=self._policy,
                    )

    async def _work(self, parts: EvaluationParts, plans: Iterator[GroupPlan], progress: ProgressCallback) -> None:
        while not self._is_over():
            plan = next(plans, None)
            if plan is None:
                return
            self._num_started += 1
            group = await parts.collector.play_group(plan)
            self._num_lost += group.num_lost
            for episode in group.trajectories:
                self._num_episodes += 1
                tools = self._engine.of_session.get(episode.id) if self._has_own_tools else None
                self._files.add(
                    episode,
                    teacher=self._engine.fingerprint,
                    tools=tools,
                    threshold=self._settings.threshold,
                    redact=self._redact,
                )
            self._budget.add(0.0)
            progress({})

    def _is_over(self) -> bool:
        settings = self._settings
        if settings.max_kept is not None and len(self._files.kept) >= settings.max_kept:
            self._limit = f"{settings.max_kept} demonstrations"
        elif settings.max_episodes is not None and self._num_started >= settings.max_episodes:
            self._limit = f"{settings.max_episodes} episodes"
        elif self._budget.is_used_up:
            self._limit = f"a cost of {settings.max_cost:g}"
        return self._limit is not None

    def _cost(self) -> float:
        total = 0.0
        for one in read_usage(self._files.path, during=DURING):
            cost = one.cost(self._settings.prices)
            if cost is None and one.requests > one.failed:
                raise UsageError(
                    f"the cost of {one.endpoint} is unknown, because it has no price or reports no tokens, so its limit cannot "
                    "be kept; give --price for this model, or limit --episodes instead."
                )
            total += cost or 0.0
        return total


def _key(row: Mapping[str, Json], name: str, where: str) -> str:
    if not isinstance(row.get(name), str):
        raise DataError(f"{where}: there is no {name!r}, so `sparring bootstrap` did not write it; give another --out.")
    return row[name]


def _drop_incomplete_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))


def _append(path: Path, row: Mapping[str, Json]) -> None:
    """Append a line that is on the disk when this returns."""
    with open_private(path, "ab") as file:
        file.write(encode_line(row))
        file.flush()
        os.fsync(file.fileno())
