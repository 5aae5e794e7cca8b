"""What is checked: a recipe with its environment, tasks and judges, and the episodes that scripted policies play in it."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from sparring.agents.scripted import PolicySession, ScriptedPolicy, saying
from sparring.agents.tool_loop import play
from sparring.build import Parts, Tasks, environment_of, judges_of, load_tasks
from sparring.checks.answers import opening_of
from sparring.checks.own_code import OwnCode
from sparring.checks.registry import Need
from sparring.checks.timing import OutOfTimeError, TimedOutError, Timing, UndecidedError
from sparring.checks.watch import Watch, timeout_in
from sparring.config import Config
from sparring.environments import Environment, opened
from sparring.environments.base import reset
from sparring.environments.tools import Tool, ToolLike
from sparring.errors import InfrastructureError, RewardError, SparringError, UsageError
from sparring.evaluation.independence import objects_reached
from sparring.protocols import Chat, RewardFunction, Scorer
from sparring.rewards.judge import Judge as ModelJudge
from sparring.rewards.judge import verdicts_due
from sparring.rewards.rules import evaluate_reward
from sparring.scorers.score import evaluate_score
from sparring.tracking.recipe_files import folder_of
from sparring.types import Json, Message, Task, ToolSchema, Trajectory

NUM_SAMPLED = 8
"""Training tasks that are played; each rule plays them with few policies."""
NUM_LOOKED_AT = 512
"""Training tasks that are read for values."""
_SHARE_FOR_VERDICTS = 0.9
"""Of the time that a call may take: what is left lets a judge report why its model did not answer."""
EXPERT = "expert"
JudgeName: TypeAlias = Literal["reward", "scorer"]


class JudgeFailedError(UndecidedError):
    """The reward or the scorer gave no usable number for an episode."""

    def __init__(self, failure: str, *, judge: JudgeName) -> None:
        super().__init__(failure)
        self.judge: JudgeName = judge


class JudgeOutageError(UndecidedError):
    """What the reward or the scorer asks (a model, a sandbox) does not answer, which says nothing of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user named beside the recipe, read and ready."""

    production: tuple[Mapping[str, Json], ...] | None = None
    """Rows of a sample of production logs."""
    schemas: Mapping[str, ToolSchema] | None = None
    """Tools of production by name."""
    reference: tuple[str, ...] = ()
    """Addresses of reference endpoints, `URL#MODEL`."""
    run: Path | None = None
    """A stored run whose trajectories count as the baseline."""


@final
class Subject:
    """One recipe under check.

    Everything is made when first asked for. Random choices come from `rng(name)`, seeded by the recipe.
    """

    def __init__(
        self,
        config: Config,
        recipe: Path,
        *,
        overrides: Sequence[str] = (),
        given: Given | None = None,
        watch: Watch | None = None,
        timing: Timing | None = None,
        parts: Parts | None = None,
        plays_baseline: bool = True,
    ) -> None:
        """`parts` are the built objects where the model is at hand. Raises UsageError and DataError for what cannot be
        loaded."""
        self.config = config
        self.recipe = recipe
        self.folder = folder_of(recipe)
        self.overrides = tuple(overrides)
        self.given = given or Given()
        self.watch = watch or Watch()
        self.parts = parts
        self.plays_baseline = plays_baseline
        self.timing = timing or Timing()
        self.shared: dict[str, Any] = {}
        """What one rule saw and another may use, by name."""
        self._played: dict[tuple[str, str, int], Trajectory | UndecidedError] = {}
        self._experts: dict[str, ScriptedPolicy] = {}
        self._judged: dict[tuple[str, str, int], Trajectory] = {}
        self._openings: dict[str, list[Message]] = {}
        self._outages: dict[JudgeName, JudgeOutageError] = {}
        self._is_answered = False
        self._make_environment: Callable[[], Environment] | None = None
        self.environment_class: type[Environment] | None = None
        with self.watch.loading("importing the recipe's code"):
            if config.environment.target is not None and not config.agent.is_foreign:
                self._make_environment, self.environment_class = environment_of(config, self.folder)
            judges: tuple[RewardFunction | None, Scorer | None] = judges_of(config, self.folder)
            self.reward, self.scorer = judges
        with self.watch.loading("loading the tasks"):
            self.tasks: Tasks = load_tasks(config, self.folder, is_trained=config.data.train is not None)

    def rng(self, name: str) -> random.Random:
        """A generator of its own for each purpose, the same in every check of the recipe."""
        return random.Random(f"{self.config.run.seed}/{name}")

    @property
    def own_tasks(self) -> tuple[Task, ...]:
        """The training tasks; of a recipe that only evaluates, those that it holds out."""
        return self.tasks.train or self.tasks.held_out

    @cached_property
    def sample(self) -> tuple[Task, ...]:
        """The tasks that are played: at most NUM_SAMPLED, in the dataset's order."""
        return _some(self.own_tasks, NUM_SAMPLED, self.rng("sample"))

    @cached_property
    def looked_at(self) -> tuple[Task, ...]:
        """The tasks that are read and not played: at most NUM_LOOKED_AT."""
        return _some(self.own_tasks, NUM_LOOKED_AT, self.rng("looked at"))

    @cached_property
    def model_judges(self) -> tuple[ModelJudge, ...]:
        """The LLM judges that reward and scorer ask."""
        judges = [one for one in (self.reward, self.scorer) if one is not None]
        found = {id(one): one for judge in judges for one in objects_reached(judge, ModelJudge)}
        return tuple(found.values())

    @cached_property
    def tools(self) -> Mapping[str, Tool]:
        """By name, in order of definition; none without an environment."""
        return {
            name: tool if isinstance(tool, Tool) else _typed(name, tool.schema) for name, tool in self._offered.items()
        }

    @cached_property
    def _offered(self) -> Mapping[str, ToolLike]:
        return {} if self.environment_class is None else self.environment_class.tools()

    def problem_with(self, tool: str, arguments: Mapping[str, Json]) -> str | None:
        """What the schema of a tool has against arguments; None when they fit."""
        return self._offered[tool].problem_with(arguments)

    @property
    def tool_schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(tool.schema for tool in self.tools.values())

    @property
    def chat(self) -> Chat | None:
        """The model's template; None without the model."""
        return None if self.parts is None else self.parts.chat

    def lacks(self, need: Need) -> str | None:
        """Why something that a rule needs is not there; None when it is."""
        if need == "environment":
            return None if self.environment_class else "the recipe's agent brings its own world"
        if need == "expert":
            has_expert = self.environment_class is not None and self.expert(self.sample[0]) is not None
            return self.lacks("environment") or (None if has_expert else "the environment has no `demonstrate`")
        there: dict[str, tuple[Any, str]] = {
            "reward": (self.reward, "the recipe names no reward.reward"),
            "scorer": (self.scorer, "the recipe names no reward.scorer"),
            "model": (self.parts, "needs the model: --model"),
            "baseline": (self.plays_baseline or None, "the first validation of the run plays it"),
            "production": (self.given.production, "needs a sample of production logs: --production FILE"),
            "schemas": (self.given.schemas, "needs the production's tool schemas: --schemas FILE"),
            "reference": (self.given.reference, "needs a reference endpoint: --reference URL#MODEL"),
            "run": (self.given.run, "needs a stored run: --run RUN"),
        }
        value, reason = there[need]
        return reason if value is None or value == () else None

    def make_environment(self, *, observed: bool = True) -> Environment:
        """A fresh environment, its calls under the watch unless they are not to be `observed`."""
        if self._make_environment is None:
            raise UsageError(
                "this recipe's agent brings its own world, so there is no environment to check; see [agent]."
            )
        with self.watch.calling(f"{self._name}.__init__"):
            environment = self._make_environment()
        if observed:
            _put_under(self.watch, environment, tuple(self.tools))
        return environment

    @cached_property
    def own_code(self) -> OwnCode:
        """What counts as the user's own code. Needs an environment."""
        assert self.environment_class is not None, "the rule needs an environment"
        return OwnCode(self.folder, self.environment_class)

    @property
    def _name(self) -> str:
        return "environment" if self.environment_class is None else self.environment_class.__name__

    def expert(self, task: Task) -> ScriptedPolicy | None:
        """The environment's own scripted expert on a task; None when it has none.

        Raises UndecidedError when it fails.
        """
        cls = self.environment_class
        if cls is None or cls.demonstrate is Environment.demonstrate:
            return None
        if task.id in self._experts:
            return self._experts[task.id]
        try:
            environment = self.make_environment(observed=False)
            with self.watch.calling(f"{self._name}.demonstrate of task {task.id}"):
                script = list(environment.demonstrate(copy.deepcopy(task)))
        except Exception as error:
            raise UndecidedError(f"{self._name}.demonstrate failed on task {task.id}: {_told(error)}") from error
        self._experts[task.id] = saying(EXPERT, script)
        return self._experts[task.id]

    async def play(self, task: Task, policy: ScriptedPolicy, *, repeat: int = 0, judged: bool = True) -> Trajectory:
        """The episode that a policy plays, with reward and score unless not `judged`.

        Each (policy name, task, repeat) is played once, through the real tool loop. Raises UndecidedError when the world
        fails, or when a judge does.
        """
        key = (policy.name, task.id, repeat)
        if key not in self._played:
            try:
                self._played[key] = await self.episode(task, policy)
            except OutOfTimeError:
                raise
            except UndecidedError as error:
                self._played[key] = error
        played = self._played[key]
        if isinstance(played, UndecidedError):
            raise played
        if not judged:
            return played
        if key not in self._judged:
            self._judged[key] = await self.judge(played)
        return self._judged[key]

    @asynccontextmanager
    async def opened(self, task: Task) -> AsyncIterator[Environment]:
        """A fresh environment for a task, not reset yet; it is closed at the end, and its time counted.

        Raises OutOfTimeError when the rule has no time left for an episode, TimedOutError when a call did not return, and
        UndecidedError for whatever else fails in it.
        """
        self.timing.need()
        began = time.monotonic()
        try:
            async with opened(self.make_environment(), task) as environment:
                yield environment
        except UndecidedError:
            raise
        except Exception as error:
            timeout = timeout_in(error)
            if timeout is not None:
                raise TimedOutError(str(timeout)) from error
            raise UndecidedError(f"an episode of task {task.id} could not be played: {_told(error)}") from error
        finally:
            self.timing.played(time.monotonic() - began)

    async def episode(self, task: Task, policy: ScriptedPolicy) -> Trajectory:
        """Play anew, unjudged. Raises what `opened` raises."""
        session = PolicySession(policy, task, self.tool_schemas, self.config.policies)
        own = copy.deepcopy(task)
        async with self.opened(own) as environment:
            result = await play(own, environment, session, max_turns=self.config.environment.max_turns)
        played = Trajectory(
            id=session.id, task=task, attempt=0, turns=session.turns, messages=copy.deepcopy(tuple(result.messages)),
            outcome=result.outcome, reward=None, score=None, metrics=result.metrics,
            transitions=tuple(result.transitions), final_state=result.final_state, error=result.error,
        )  # fmt: skip
        self._openings.setdefault(task.id, opening_of(played))
        return played

    async def opening(self, task: Task) -> list[Message]:
        """The messages with which an episode of a task begins: as in one that was played, else what `reset` gives now. Raises
        what `opened` raises."""
        if task.id not in self._openings:
            if self.environment_class is None:
                return list(task.messages)
            own = copy.deepcopy(task)
            async with self.opened(own) as environment:
                self._openings[task.id] = list(await reset(environment, own))
        return self._openings[task.id]

    async def judge(self, trajectory: Trajectory) -> Trajectory:
        """With reward and score, as far as the recipe names them. Raises what `ask_judge` raises."""
        reward = None if self.reward is None else await self.ask_judge("reward", trajectory)
        score = None if self.scorer is None else await self.ask_judge("scorer", trajectory)
        return replace(
            trajectory,
            reward=reward,
            score=None if score is None else score.value,
            score_parts={} if score is None else score.parts,
        )

    async def judge_ahead(self, trajectories: Sequence[Trajectory]) -> None:
        """Where a model judges, ask about all of these at the same time: a verdict takes seconds, and is remembered. What
        fails fails again when it is asked for. The very first is asked for alone, and a refused key ends the check there."""
        if not self.model_judges or not trajectories:
            return
        if not self._is_answered:
            with suppress(UndecidedError):
                await self.judge(trajectories[0])
            self._is_answered = True
        await asyncio.gather(*map(self.judge, trajectories), return_exceptions=True)

    async def ask_judge(self, judge: JudgeName, trajectory: Trajectory) -> Any:
        """What the reward or the scorer returns for an episode, checked.

        Raises JudgeFailedError when that is no usable number or does not come in time, and JudgeOutageError when something
        that it asks does not answer, which is not asked again. ServiceError (a refused key) passes: it ends the check.
        """
        if judge in self._outages:
            raise self._outages[judge]
        evaluate, function = (evaluate_reward, self.reward) if judge == "reward" else (evaluate_score, self.scorer)

        async def evaluated() -> Any:
            try:
                return await evaluate(function, trajectory)  # type: ignore[arg-type]
            except InfrastructureError as error:
                self._outages[judge] = JudgeOutageError(f"the {judge} gave no answer: {error}")
                raise self._outages[judge] from error

        try:
            with verdicts_due(time.monotonic() + _SHARE_FOR_VERDICTS * self.watch.seconds):
                return await self.watch.call(f"the {judge} of {trajectory.id}", evaluated)
        except (RewardError, InfrastructureError) as error:
            raise JudgeFailedError(str(error), judge=judge) from error

    async def measured(self) -> dict[str, Json]:
        """What was counted, for the report."""
        return {
            "tasks": {split: len(getattr(self.tasks, split)) for split in ("train", "validation", "held_out")},
            "sampled_tasks": [task.id for task in self.sample],
            "tools": list(self.tools),
            "files": self._files_read(),
            "episodes": len(self._played),
        }

    def _files_read(self) -> dict[str, str]:
        """Content hashes of the files that the environment was seen to read, Python's own and temporary ones apart."""
        sightings = self.shared.get("sightings")
        seen = {one.what for one in sightings.of("read")} if sightings is not None else set()
        foreign = (sys.prefix, sys.base_prefix, tempfile.gettempdir(), "/proc", "/dev", "/sys", "/etc")
        paths = [Path(name) for name in sorted(seen) if not name.startswith(foreign) and not name.endswith(".pyc")]
        return {str(path): _sha256(path) for path in paths if path.is_file()}


_TYPES: Mapping[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "null": type(None),
}  # fmt: skip


def _typed(name: str, schema: ToolSchema) -> Tool:
    """A tool that is known by its JSON schema alone, with the types that the schema names."""
    parameters = schema["function"].get("parameters", {})
    hints = {key: _hint(value) for key, value in parameters.get("properties", {}).items()}
    return Tool(name=name, schema=schema, hints=hints, required=frozenset(parameters.get("required", ())))


def _hint(schema: Mapping[str, Json]) -> Any:
    choices = schema.get("enum")
    if isinstance(choices, list) and all(isinstance(one, str | int | bool | None) for one in choices):
        return Literal[tuple(choices)]
    named = schema.get("type")
    return _TYPES.get(named, str) if isinstance(named, str) else str


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def transcript(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """A conversation as (role, text) lines that can be compared: calls as JSON, ids left out."""
    return [(str(message.get("role")), _line(message)) for message in messages]


def _line(message: Message) -> str:
    calls = [f"{one['function']['name']}({one['function']['arguments']})" for one in message.get("tool_calls") or ()]
    return " ".join([str(message.get("content") or ""), *calls]).strip()


def first_difference(first: Sequence[tuple[str, str]], second: Sequence[Sequence[str]]) -> dict[str, Json] | None:
    """Where two conversations part, and what each says there."""
    for index in range(max(len(first), len(second))):
        one = list(first[index]) if index < len(first) else None
        other = list(second[index]) if index < len(second) else None
        if one != other:
            return {"message": index, "first": _around(one, other), "second": _around(other, one)}
    return None


def _around(line: Sequence[str] | None, other: Sequence[str] | None) -> Json:
    """A message with its text cut to where it differs from another."""
    if line is None:
        return "(no such message)"
    role, text = line
    differs = (
        index for index, (a, b) in enumerate(zip(text, "" if other is None else other[1], strict=False)) if a != b
    )
    same = next(differs, 0)
    begin = max(0, same - 40)
    cut = text[begin : same + 120]
    return f"{role}: {'...' if begin else ''}{cut}{'...' if same + 120 < len(text) else ''}"


def _some(tasks: Sequence[Task], most: int, rng: random.Random) -> tuple[Task, ...]:
    chosen = sorted(rng.sample(range(len(tasks)), min(most, len(tasks))))
    return tuple(tasks[index] for index in chosen)


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, SparringError) else repr(error)


def _put_under(watch: Watch, environment: Environment, tools: Sequence[str]) -> None:
    """Have the watch around every call of an object's own methods. Attributes of the object hide those of its class."""
    name = type(environment).__name__

    def guarded(method_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            shown = ", ".join(f"{key}={value!r:.80}" for key, value in options.items())
            return watch.call(f"{name}.{method_name}({shown})", method, *arguments, **options)

        return call

    by_name = type(environment).call_tool is Environment.call_tool
    for method_name in ("reset", "reply", "close", *(tools if by_name else ("call_tool",))):
        with suppress(AttributeError):  # a class with __slots__ is called as it is
            object.__setattr__(environment, method_name, guarded(method_name, getattr(environment, method_name)))
