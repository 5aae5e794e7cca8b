"""The recipe that is checked, with its environment, tasks and graders, and the episodes that scripted policies run in
it."""

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
from sparring.assembly import Tasks, TrainingParts, load_environment, load_graders, load_tasks
from sparring.checks.evidence.answer_forms import get_opening
from sparring.checks.evidence.user_source import OwnCode
from sparring.checks.running.deadlines import Watch, timeout_in
from sparring.checks.running.time_budget import OutOfTimeError, TimedOutError, Timing, UndecidedError
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
from sparring.run_folders.inputs import recorded_revisions
from sparring.run_folders.recipe_files import find_code_folder
from sparring.scorers.score import evaluate_score
from sparring.types import Json, Message, Task, ToolSchema, Trajectory

NUM_SAMPLED = 8
"""The number of training tasks in which episodes run. Each rule runs few policies on them."""
NUM_LOOKED_AT = 512
"""The number of training tasks whose data is read, without episodes."""
_SHARE_FOR_VERDICTS = 0.9
"""The share of a call's time that an LLM judge may use. In the rest of the time, it can report why its model did not
answer."""
EXPERT = "expert"
GraderName: TypeAlias = Literal["reward", "scorer"]


class GradingFailedError(UndecidedError):
    """Raised when the reward or the scorer returns no usable number for an episode."""

    def __init__(self, failure: str, *, grader: GraderName) -> None:
        super().__init__(failure)
        self.grader: GraderName = grader


class GradingOutageError(UndecidedError):
    """Raised when a service that the reward or the scorer calls (a model, a sandbox) does not answer. This is not a
    grade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInputs:
    """The inputs that the user passed in addition to the recipe, as loaded values."""

    production: tuple[Mapping[str, Json], ...] | None = None
    """Rows of a sample of production logs."""
    schemas: Mapping[str, ToolSchema] | None = None
    """The production tools, keyed by name."""
    reference: tuple[str, ...] = ()
    """Addresses of reference endpoints, `URL#MODEL`."""
    reviewer: tuple[str, ...] = ()
    """The address of the model that reviews the recipe, or an empty text."""
    run: Path | None = None
    """A stored run whose trajectories count as the baseline."""


@final
class Subject:
    """One recipe under check.

    Values are computed on first use. Random choices come from `rng(name)`, seeded by the recipe.
    """

    def __init__(
        self,
        config: Config,
        recipe: Path,
        *,
        overrides: Sequence[str] = (),
        user_inputs: UserInputs | None = None,
        watch: Watch | None = None,
        timing: Timing | None = None,
        parts: TrainingParts | None = None,
        runs_baseline: bool = True,
    ) -> None:
        """Create a subject. `parts` are the objects of a training run with the loaded model, if any. Raises UsageError
        and DataError if the recipe cannot be loaded."""
        self.config = config
        self.recipe = recipe
        self.folder = find_code_folder(recipe)
        self.overrides = tuple(overrides)
        self.user_inputs = user_inputs or UserInputs()
        self.watch = watch or Watch()
        self.parts = parts
        self.runs_baseline = runs_baseline
        self.timing = timing or Timing()
        self.shared: dict[str, Any] = {}
        """Values that rules share with each other, keyed by name."""
        self._episodes: dict[tuple[str, str, int], Trajectory | UndecidedError] = {}
        self._experts: dict[str, ScriptedPolicy] = {}
        self._graded: dict[tuple[str, str, int], Trajectory] = {}
        self._openings: dict[str, list[Message]] = {}
        self._outages: dict[GraderName, GradingOutageError] = {}
        self._is_answered = False
        self._make_environment: Callable[[], Environment] | None = None
        self.environment_class: type[Environment] | None = None
        with self.watch.loading("importing the recipe's code"):
            if config.environment.target is not None and not config.agent.is_foreign:
                self._make_environment, self.environment_class = load_environment(config, self.folder)
            graders: tuple[RewardFunction | None, Scorer | None] = load_graders(config, self.folder)
            self.reward, self.scorer = graders
        with self.watch.loading("loading the tasks"):
            self.tasks: Tasks = load_tasks(config, self.folder, is_trained=config.data.train is not None)

    def rng(self, name: str) -> random.Random:
        """Return a random generator for one purpose. Its numbers are the same in every check of the recipe."""
        return random.Random(f"{self.config.run.seed}/{name}")

    @property
    def own_tasks(self) -> tuple[Task, ...]:
        """The training tasks, or the held-out tasks if the recipe only evaluates."""
        return self.tasks.train or self.tasks.held_out

    @cached_property
    def sample(self) -> tuple[Task, ...]:
        """The tasks in which episodes run: at most NUM_SAMPLED, in the dataset's order."""
        return _sample(self.own_tasks, NUM_SAMPLED, self.rng("sample"))

    @cached_property
    def looked_at(self) -> tuple[Task, ...]:
        """The tasks whose data is read: at most NUM_LOOKED_AT."""
        return _sample(self.own_tasks, NUM_LOOKED_AT, self.rng("looked at"))

    @cached_property
    def model_judges(self) -> tuple[ModelJudge, ...]:
        """The LLM judges that the reward and the scorer use."""
        graders = [one for one in (self.reward, self.scorer) if one is not None]
        found = {id(one): one for grader in graders for one in objects_reached(grader, ModelJudge)}
        return tuple(found.values())

    @cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The tools, keyed by name, in order of definition. There are none without an environment."""
        return {
            name: tool if isinstance(tool, Tool) else _typed(name, tool.schema) for name, tool in self._offered.items()
        }

    @cached_property
    def _offered(self) -> Mapping[str, ToolLike]:
        return {} if self.environment_class is None else self.environment_class.tools()

    def problem_with(self, tool: str, arguments: Mapping[str, Json]) -> str | None:
        """Return the reason why arguments do not fit the schema of a tool, or None if they fit."""
        return self._offered[tool].problem_with(arguments)

    @property
    def tool_schemas(self) -> tuple[ToolSchema, ...]:
        """The schemas of the tools, in order of definition."""
        return tuple(tool.schema for tool in self.tools.values())

    @property
    def chat(self) -> Chat | None:
        """The chat template of the model, or None without the model."""
        return None if self.parts is None else self.parts.chat

    def lacks(self, need: str) -> str | None:
        """Return the reason why a requirement of a rule is not met, or None if it is met."""
        if need == "environment":
            return None if self.environment_class else "the recipe's agent brings its own environment"
        if need == "agent":
            kind = self.config.agent.kind
            waits = "its workers are started by hand, so nothing can play it here (--production FILE: recorded conversations)"
            return "the recipe has an environment" if kind is None else waits if kind == "pull" else None
        if need == "conversations":
            recorded = any("messages" in row for row in self.user_inputs.production or ())
            return None if recorded and self.config.agent.is_foreign else self.lacks("agent")
        if need == "agent_code":
            is_here = self.config.agent.function is not None
            return None if is_here else "the agent runs in other processes, whose code cannot be observed"
        if need == "expert":
            has_expert = self.environment_class is not None and self.expert(self.sample[0]) is not None
            return self.lacks("environment") or (None if has_expert else "the environment has no `demonstrate`")
        there: dict[str, tuple[Any, str]] = {
            "reward": (self.reward, "the recipe does not set reward.reward"),
            "scorer": (self.scorer, "the recipe does not set reward.scorer"),
            "model": (self.parts, "it needs the model: --model"),
            "weights": (
                self.parts and self.parts.policy,
                "it needs the model's weights: it runs only in a process that contains the engine and the learner",
            ),
            "trained_weights": (
                self.parts if self.config.model.trained_weights == "lora" else self.parts and self.parts.policy,
                "it needs the trained weights, which are the whole model and are in other processes",
            ),
            "baseline": (self.runs_baseline or None, "the first validation of the run measures the baseline"),
            "production": (self.user_inputs.production, "it needs a sample of production logs: --production FILE"),
            "schemas": (self.user_inputs.schemas, "it needs the tool schemas of production: --schemas FILE"),
            "reference": (self.user_inputs.reference, "it needs a reference endpoint: --reference URL#MODEL"),
            "reviewer": (self.user_inputs.reviewer, "it needs a model that reads the recipe: --reviewer URL#MODEL"),
            "run": (self.user_inputs.run, "it needs a stored run: --run RUN"),
        }
        value, reason = there[need]
        return reason if value is None or value == () else None

    def make_environment(self, *, observed: bool = True) -> Environment:
        """Build an environment. Its calls run under the watch if `observed`."""
        if self._make_environment is None:
            raise UsageError("this recipe's agent brings its own environment, so there is none to check; see [agent].")
        with self.watch.calling(f"{self._name}.__init__"):
            environment = self._make_environment()
        if observed:
            _watch_calls(self.watch, environment, tuple(self.tools))
        return environment

    @cached_property
    def own_code(self) -> OwnCode:
        """The user's own code. This requires an environment."""
        assert self.environment_class is not None, "the rule needs an environment"
        return OwnCode(self.folder, [one.__module__ for one in self.environment_class.__mro__ if one is not object])

    @property
    def _name(self) -> str:
        return "environment" if self.environment_class is None else self.environment_class.__name__

    def expert(self, task: Task) -> ScriptedPolicy | None:
        """Return the environment's scripted expert for a task, or None if the environment has no expert.

        Raises UndecidedError if the expert fails.
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
            raise UndecidedError(f"{self._name}.demonstrate failed on task {task.id}: {_error_text(error)}") from error
        self._experts[task.id] = saying(EXPERT, script)
        return self._experts[task.id]

    async def run_episode(
        self, task: Task, policy: ScriptedPolicy, *, repeat: int = 0, graded: bool = True
    ) -> Trajectory:
        """Run an episode of a policy, and grade it with reward and score if `graded`.

        Each (policy name, task, repeat) runs once, through the real tool loop; later calls return the same episode. Raises
        UndecidedError when the environment or a grader fails.
        """
        key = (policy.name, task.id, repeat)
        if key not in self._episodes:
            try:
                self._episodes[key] = await self.run_new_episode(task, policy)
            except OutOfTimeError:
                raise
            except UndecidedError as error:
                self._episodes[key] = error
        episode = self._episodes[key]
        if isinstance(episode, UndecidedError):
            raise episode
        if not graded:
            return episode
        if key not in self._graded:
            self._graded[key] = await self.grade(episode)
        return self._graded[key]

    @asynccontextmanager
    async def opened(self, task: Task) -> AsyncIterator[Environment]:
        """Open an environment for a task without resetting it, close it at the end, and count its time.

        Raises OutOfTimeError if the rule has no time left for an episode, TimedOutError if a call did not return in time,
        and UndecidedError for any other failure.
        """
        self.timing.need()
        started = time.monotonic()
        try:
            async with opened(self.make_environment(), task) as environment:
                yield environment
        except UndecidedError:
            raise
        except Exception as error:
            timeout = timeout_in(error)
            if timeout is not None:
                raise TimedOutError(str(timeout)) from error
            raise UndecidedError(f"an episode of task {task.id} could not be run: {_error_text(error)}") from error
        finally:
            self.timing.count_episode(time.monotonic() - started)

    async def run_new_episode(self, task: Task, policy: ScriptedPolicy) -> Trajectory:
        """Run a new episode, without grades. Raises the same errors as `opened`."""
        session = PolicySession(policy, task, self.tool_schemas, self.config.policies)
        own, began = copy.deepcopy(task), time.monotonic()
        async with self.opened(own) as environment:
            result = await play(own, environment, session, max_turns=self.config.environment.max_turns)
        trajectory = Trajectory(
            id=session.id,
            task=task,
            attempt=0,
            turns=session.turns,
            messages=copy.deepcopy(tuple(result.messages)),
            outcome=result.outcome,
            reward=None,
            score=None,
            metrics=result.metrics,
            transitions=tuple(result.transitions),
            final_state=result.final_state,
            error=result.error,
            seconds=time.monotonic() - began,
        )
        self._openings.setdefault(task.id, get_opening(trajectory))
        return trajectory

    async def opening(self, task: Task) -> list[Message]:
        """Return the first messages of an episode for a task. They come from an earlier episode or, without one, from a
        new `reset`. Raises the same errors as `opened`."""
        if task.id not in self._openings:
            if self.environment_class is None:
                return list(task.messages)
            own = copy.deepcopy(task)
            async with self.opened(own) as environment:
                self._openings[task.id] = list(await reset(environment, own))
        return self._openings[task.id]

    async def grade(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with reward and score, if the recipe has them. Raises the same errors as
        `grade_with`."""
        reward = None if self.reward is None else await self.grade_with("reward", trajectory)
        score = None if self.scorer is None else await self.grade_with("scorer", trajectory)
        return replace(
            trajectory,
            reward=reward,
            score=None if score is None else score.value,
            score_parts={} if score is None else score.parts,
        )

    async def grade_ahead(self, trajectories: Sequence[Trajectory]) -> None:
        """If an LLM judge grades, grade these episodes concurrently, since each verdict takes seconds and is cached.
        Failures are ignored here, since they are raised again later. The first episode is graded alone, so that a
        rejected API key ends the check at once."""
        if not self.model_judges or not trajectories:
            return
        if not self._is_answered:
            with suppress(UndecidedError):
                await self.grade(trajectories[0])
            self._is_answered = True
        await asyncio.gather(*map(self.grade, trajectories), return_exceptions=True)

    async def grade_with(self, grader: GraderName, trajectory: Trajectory) -> Any:
        """Return the checked result of the reward or the scorer for an episode.

        Raises GradingFailedError if the result is not a usable number or takes too long. Raises GradingOutageError if a
        service that the grader calls does not answer; the grader is then not called again. A ServiceError (a rejected
        API key) is passed on and ends the check.
        """
        if grader in self._outages:
            raise self._outages[grader]
        evaluate, function = (evaluate_reward, self.reward) if grader == "reward" else (evaluate_score, self.scorer)

        async def evaluated() -> Any:
            try:
                return await evaluate(function, trajectory)  # type: ignore[arg-type]
            except InfrastructureError as error:
                self._outages[grader] = GradingOutageError(f"the {grader} gave no answer: {error}")
                raise self._outages[grader] from error

        try:
            with verdicts_due(time.monotonic() + _SHARE_FOR_VERDICTS * self.watch.seconds):
                return await self.watch.call(f"the {grader} of {trajectory.id}", evaluated)
        except (RewardError, InfrastructureError) as error:
            raise GradingFailedError(str(error), grader=grader) from error

    async def measured(self) -> dict[str, Json]:
        """Return the counts for the report."""
        return {
            "tasks": {split: len(getattr(self.tasks, split)) for split in ("train", "validation", "held_out")},
            "sampled_tasks": [task.id for task in self.sample],
            "tools": list(self.tools),
            "files": self._files_read(),
            "data_revisions": dict(recorded_revisions()),
            "episodes": len(self._episodes),
        }

    def _files_read(self) -> dict[str, str]:
        """Return content hashes of the files that the environment read, except Python's own and temporary files."""
        side_effects = self.shared.get("side_effects")
        seen = {one.what for one in side_effects.of("read")} if side_effects is not None else set()
        foreign = (sys.prefix, sys.base_prefix, tempfile.gettempdir(), "/proc", "/dev", "/sys", "/etc")
        paths = [Path(name) for name in sorted(seen) if not name.startswith(foreign) and not name.endswith(".pyc")]
        return {str(path): _sha256(path) for path in paths if path.is_file()}


_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def _typed(name: str, schema: ToolSchema) -> Tool:
    """Return a tool for a JSON Schema, with the types that the schema names."""
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


def write_transcript(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return a conversation as (role, text) lines for comparison. Calls are written as JSON without ids."""
    return [(str(message.get("role")), _line(message)) for message in messages]


def _line(message: Message) -> str:
    calls = [f"{one['function']['name']}({one['function']['arguments']})" for one in message.get("tool_calls") or ()]
    return " ".join([str(message.get("content") or ""), *calls]).strip()


def find_first_difference(first: Sequence[tuple[str, str]], second: Sequence[Sequence[str]]) -> dict[str, Json] | None:
    """Return where two conversations first differ, with the text of each at that place, or None if they are equal."""
    for index in range(max(len(first), len(second))):
        one = list(first[index]) if index < len(first) else None
        other = list(second[index]) if index < len(second) else None
        if one != other:
            return {"message": index, "first": _cut_around(one, other), "second": _cut_around(other, one)}
    return None


def _cut_around(line: Sequence[str] | None, other: Sequence[str] | None) -> Json:
    """Return a message with only the part of its text that differs from another message."""
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


def _sample(tasks: Sequence[Task], most: int, rng: random.Random) -> tuple[Task, ...]:
    chosen = sorted(rng.sample(range(len(tasks)), min(most, len(tasks))))
    return tuple(tasks[index] for index in chosen)


def _error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, SparringError) else repr(error)


def _watch_calls(watch: Watch, environment: Environment, tools: Sequence[str]) -> None:
    """Make every call to the environment's methods run under the watch. To do so, set instance attributes that hide the
    methods of the class."""
    name = type(environment).__name__

    def guarded(method_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            shown = ", ".join(f"{key}={value!r:.80}" for key, value in options.items())
            return watch.call(f"{name}.{method_name}({shown})", method, *arguments, **options)

        return call

    by_name = type(environment).call_tool is Environment.call_tool
    for method_name in ("reset", "reply", "close", *(tools if by_name else ("call_tool",))):
        with suppress(AttributeError):  # a class with __slots__ is not watched
            object.__setattr__(environment, method_name, guarded(method_name, getattr(environment, method_name)))
