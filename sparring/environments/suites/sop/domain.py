"""The common parts of all domains in the suite. Each case becomes a task; an expert solves it, and the reward and the
scorer grade it.

A domain is a module with a `Desk` (tools and expert), a function that draws a `Case`, and a `SopDomain` that defines
the procedure. The generator chooses an outcome and builds a case that leads to it. The expert never sees this outcome:
like a policy, it sees only the request and the results of the tools. If both agree, the task can be solved from what
the policy sees.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, final

from sparring.environments.base import Environment, opened, reset
from sparring.environments.calls import execute
from sparring.environments.demonstrations import answer
from sparring.environments.execution import ExecutionEnvironment
from sparring.environments.fixtures import FixtureMiss, Fixtures
from sparring.environments.replayed_tools import ReplayEnvironment
from sparring.environments.stateful import StatefulEnvironment
from sparring.environments.suites.sop.entities import Draw, Split
from sparring.environments.tools import tool, tools_of
from sparring.errors import DataError, UsageError
from sparring.protocols import RewardFunction, Scorer
from sparring.rewards import json_fields
from sparring.sandbox import SqlDatabase
from sparring.sandbox.sql import Table
from sparring.scorers import json_exact
from sparring.types import Json, Message, Task, ToolSchema

TAG = "final_output"
REWARD, SCORER = json_fields(TAG), json_exact(TAG)

Script: TypeAlias = Generator[Message, Any, None]
"""A running expert. It yields assistant messages and receives the result of the called tool, parsed from JSON."""

Method = TypeVar("Method", bound=Callable[..., Any])

_DISTRACTOR = "_sop_distractor"
_NO_FIXTURES = Fixtures(())


def distractor(method: Method) -> Method:
    """Mark a tool that answers correctly but is not needed in any step of the procedure."""
    tool(method)
    setattr(method, _DISTRACTOR, True)
    return method


def replies(tool_name: str, result: Json, /, **arguments: Json) -> dict[str, Json]:
    """Return one recorded result of a read-only tool as a row of fixtures."""
    return {"tool": tool_name, "arguments": arguments, "result": result}


def final_output(**fields: Json) -> Message:
    """Return the message that ends an episode."""
    return answer(f"<{TAG}>{json.dumps(fields, separators=(',', ':'))}</{TAG}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """An additional step of a procedure, and the tools that only this step needs."""

    text: str
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The content from which a task is built."""

    request: str
    """The user's message. It contains every value of `given`."""
    given: Mapping[str, Json]
    """The facts in the request, for the expert."""
    state: Json
    """The state of the environment, which the tools read."""
    answer: Mapping[str, Json]
    checks: tuple[str, ...] = ()
    """The steps that determine the result of this case. An agent that skips one of them, and no other step, answers
    incorrectly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """The difficulty of tasks. `missing` is the share of tasks with missing data."""

    distractors: int = 0
    missing: float = 0.0
    longer: int = 0


class SopDesk(Environment):
    """The base class of all desks, which are the environments of the domains. The prompt lists the tools in a short
    form, which takes few tokens. `SopDomain.schema_desk` passes their schemas to the chat template instead."""

    describe_tools = "prompt"
    offered: ClassVar[frozenset[str]] = frozenset()
    """The tools whose schemas are passed to the chat template."""

    def reset(self, task: Task) -> Sequence[Message] | None:
        self.prepare(task)
        if self.describe_tools == "prompt":
            return None
        return [{"role": "system", "content": task.fields["briefing"]}, *task.messages[1:]]

    def prepare(self, task: Task) -> None:
        """Prepare the state."""
        raise NotImplementedError

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        """Work on one case, using only the facts in its request and the results of the tools. The procedure has
        `longer` additional clauses, and the expert skips the checks in `skipped`."""
        raise NotImplementedError

    def demonstrate(self, task: Task) -> Sequence[Message]:
        # This runs in a separate thread, because the caller may run inside an event loop.
        with ThreadPoolExecutor(max_workers=1) as executor:
            conversation = executor.submit(asyncio.run, worked(type(self)(), task)).result()
        return [message for message in conversation if message["role"] == "assistant"]

    @classmethod
    def offered_tools(cls) -> tuple[ToolSchema, ...]:
        return tuple(read.schema for name, read in tools_of(cls).items() if name in cls.offered)


class ReplayDesk(ReplayEnvironment, SopDesk):
    """A service desk whose tools answer from the records of the task."""

    def prepare(self, task: Task) -> None:
        self.fixtures = Fixtures(task.fields["world"])

    def miss(self, error: FixtureMiss) -> Json:
        # The nearest records would reveal whom to ask about.
        raise FixtureMiss(error.tool, error.arguments, _NO_FIXTURES)


class StatefulDesk(StatefulEnvironment, SopDesk):
    """A service desk whose tools change the records."""

    def slip(self, action: str, *facts: Json) -> str:
        """Return the number of a booking. The number depends on the task and on what is booked, so only an agent that
        makes the correct booking can quote it."""
        return slip(self._salt, action, *facts)

    def prepare(self, task: Task) -> None:
        self._salt = task.fields["world"]["salt"]
        self.open(task.fields["world"], self.state.database)

    def open(self, state: Mapping[str, Json], database: sqlite3.Connection) -> None:
        """Fill the episode's database."""
        raise NotImplementedError


class SqlDesk(ExecutionEnvironment, SopDesk):
    """A desk that answers queries over the tables of the task. The desk's other tools look up facts by key."""

    def prepare(self, task: Task) -> None:
        self._facts: Mapping[str, Mapping[str, Json]] = task.fields["world"]["facts"]
        self._tables: Mapping[str, Table] = task.fields["world"]["tables"]

    def database(self) -> SqlDatabase:
        return SqlDatabase(self._tables)

    async def rows(self, query: str) -> Json:
        """Return the result of a query with each column named only once. This takes fewer tokens than repeating the
        name for every value."""
        found = await self.sql(query)
        return {"columns": list(found[0]) if found else [], "rows": [list(row.values()) for row in found]}

    def fact(self, kind: str, key: str) -> Json:
        """Return the facts about a key. Raises LookupError."""
        if key not in self._facts[kind]:
            raise LookupError(f"not found: {key}")
        return self._facts[kind][key]


def slip(salt: str, action: str, *facts: Json) -> str:
    """Return a number for a booking. The number cannot be guessed, and equal bookings get the same number."""
    digest = hashlib.blake2b(json.dumps([salt, action, *facts]).encode(), digest_size=4).digest()
    return f"B{int.from_bytes(digest, 'big') % 900 + 100}"


async def worked(desk: SopDesk, task: Task, skipped: frozenset[str] = frozenset()) -> list[Message]:
    """Return the whole conversation of the desk's expert. Raises DataError if one of its calls fails."""
    async with opened(desk, task):
        messages = await reset(desk, task)
        script = desk.expert(task.fields["given"], task.fields["longer"], skipped)
        message = next(script)
        while True:
            calls = [{**call, "id": f"call_{len(messages)}"} for call in message.get("tool_calls", ())]
            messages.append({**message, "tool_calls": calls} if calls else message)
            if not calls:
                return messages
            function = calls[0]["function"]
            result = await execute(desk, function["name"], function["arguments"])
            if result.error is not None:
                raise DataError(
                    f"Task {task.id}: the expert makes an invalid call of {function['name']} ({result.content})."
                )
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": result.content})
            message = script.send(json.loads(result.content))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SopDomain:
    """A business domain: its procedure, its cases, its tools with their expert, and its grading."""

    name: str
    role: str
    """The start of the prompt, such as "You release aircraft."."""
    idea: str
    """The idea that its decisions depend on. It differs from that of every other domain."""
    pattern: Literal["replay", "stateful", "execution"]
    desk: type[SopDesk]
    draw_case: Callable[[Draw, bool, int], Case]
    """A function that draws a case, with or without missing data, for a procedure with the given number of additional
    clauses."""
    steps: tuple[str, ...]
    if_missing: str
    """The clause about missing data."""
    clauses: tuple[Clause, ...]
    """Additional steps. The first `longer` of them are used."""
    answer_form: Mapping[str, Json]
    """The fields of an answer with empty values of their types, as the prompt shows them."""
    reward: RewardFunction = REWARD
    scorer: Scorer = SCORER

    def train_tasks(
        self, num: int = 512, seed: int = 0, distractors: int = 0, missing: float = 0.0, longer: int = 0
    ) -> list[Task]:
        return self.tasks("train", num, seed, distractors=distractors, missing=missing, longer=longer)

    def validation_tasks(
        self, num: int = 64, seed: int = 0, distractors: int = 0, missing: float = 0.0, longer: int = 0
    ) -> list[Task]:
        return self.tasks("validation", num, seed, distractors=distractors, missing=missing, longer=longer)

    def held_out_tasks(
        self, num: int = 128, seed: int = 0, distractors: int = 0, missing: float = 0.0, longer: int = 0
    ) -> list[Task]:
        return self.tasks("held_out", num, seed, distractors=distractors, missing=missing, longer=longer)

    def tasks(
        self, split: Split, num: int, seed: int, *, distractors: int = 0, missing: float = 0.0, longer: int = 0
    ) -> list[Task]:
        """Return generated tasks. Tasks of different splits share no entity. Raises UsageError for a value that is out
        of range."""
        difficulty = self._checked(Difficulty(distractors=distractors, missing=missing, longer=longer))
        return [self._task(split, index, seed, difficulty) for index in range(num)]

    def clerk_log(self, num: int = 192, seed: int = 0, careful_share: float = 0.35) -> list[list[Message]]:
        """Return conversations of simulated clerks on tasks from the training split. A share of `careful_share` of the
        clerks makes no mistakes; the others skip a check that determines the result. A perfect imitator therefore
        scores `careful_share`, which leaves something to learn from rewards.
        """
        rng = random.Random(f"{self.name}-clerks-{seed}")
        plans = []
        # These tasks have a different seed from the tasks for training.
        for task in self.tasks("train", num, seed + 1):
            is_careful = rng.random() < careful_share or not task.fields["checks"]
            plans.append((task, frozenset[str]() if is_careful else frozenset({rng.choice(task.fields["checks"])})))

        async def log() -> list[list[Message]]:
            return [await worked(self.desk(), task, skipped) for task, skipped in plans]

        with ThreadPoolExecutor(max_workers=1) as executor:
            return executor.submit(asyncio.run, log()).result()

    def schema_desk(self, distractors: int = 0, longer: int = 0) -> type[SopDesk]:
        """Return the desk for models that get JSON schemas through their chat template. The prompt then lists no
        tools."""
        names = self.tool_names(self._checked(Difficulty(distractors=distractors, longer=longer)))
        body = {"describe_tools": "schema", "offered": frozenset(names), "__module__": self.desk.__module__}
        return type("SchemaDesk", (self.desk,), {**body, "__doc__": self.desk.__doc__})

    def tool_names(self, difficulty: Difficulty) -> tuple[str, ...]:
        """Return the tools that a prompt of this difficulty names, in order of definition."""
        later = {name for clause in self.clauses[difficulty.longer :] for name in clause.tools}
        distractors = [name for name in tools_of(self.desk) if hasattr(getattr(self.desk, name), _DISTRACTOR)]
        hidden = later | set(distractors[difficulty.distractors :])
        return tuple(name for name in tools_of(self.desk) if name not in hidden)

    def briefing(self, difficulty: Difficulty) -> str:
        """Return the procedure and the form of the answer."""
        texts = [*self.steps, *(clause.text for clause in self.clauses[: difficulty.longer])]
        texts += [self.if_missing] if difficulty.missing else []
        steps = "\n".join(f"{number}. {text}" for number, text in enumerate(texts, start=1))
        form = json.dumps(self.answer_form, separators=(",", ":"))
        return f"{self.role} Procedure:\n{steps}\nEnd with your answer alone:\n<{TAG}>{form}</{TAG}>"

    def prompt(self, difficulty: Difficulty) -> str:
        """Return a prompt that lists the tools, followed by the briefing."""
        read = tools_of(self.desk)
        names = self.tool_names(difficulty)
        lines = [f"{name}({', '.join(read[name].hints)}): {_description(read[name].schema)}" for name in names]
        example = {"name": names[0], "arguments": dict.fromkeys(read[names[0]].hints, "")}
        return (
            f"Tools, one call at a time, as <tool_call>{json.dumps(example, separators=(',', ':'))}</tool_call>:\n"
            + "\n".join(lines)
            + f"\n{self.briefing(difficulty)}"
        )

    def _checked(self, difficulty: Difficulty) -> Difficulty:
        most = len(self.tool_names(replace(difficulty, distractors=99))) - len(
            self.tool_names(replace(difficulty, distractors=0))
        )
        bounds = {"distractors": most, "missing": 1, "longer": len(self.clauses)}
        for name, bound in bounds.items():
            value = getattr(difficulty, name)
            if not 0 <= value <= bound:
                raise UsageError(f"{name} = {value} is out of range for {self.name}; choose 0 to {bound}.")
        return difficulty

    def _task(self, split: Split, index: int, seed: int, difficulty: Difficulty) -> Task:
        # Each task has its own generator, so the first tasks are the same for any number of tasks.
        rng = random.Random(f"{self.name}-{split}-{seed}-{index}")
        draw = Draw(rng, split)
        case = self.draw_case(draw, rng.random() < difficulty.missing, difficulty.longer)
        return Task(
            id=f"{self.name}-{split}-{seed}-{index}",
            messages=(
                {"role": "system", "content": self.prompt(difficulty)},
                {"role": "user", "content": case.request},
            ),
            fields={
                "domain": self.name,
                "given": dict(case.given),
                "world": case.state,
                "answer": dict(case.answer),
                "checks": list(case.checks),
                "entities": draw.entities,
                "longer": difficulty.longer,
                "briefing": self.briefing(difficulty),
            },
            seed=rng.getrandbits(31),
        )


def _description(schema: ToolSchema) -> str:
    return schema["function"]["description"].rstrip(".")
