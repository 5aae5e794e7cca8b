"""An environment whose tools answer as they did in logged conversations."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sparring.chat.messages import canonical_json
from sparring.environments.base import Environment
from sparring.environments.calls import ToolFailure
from sparring.environments.fixtures import FixtureMiss, Fixtures
from sparring.environments.schema_tools import SchemaTool
from sparring.environments.tools import ToolLike
from sparring.errors import DataError, UsageError
from sparring.protocols import SessionLike
from sparring.runtime.json_values import parse_json
from sparring.runtime.plugins import call
from sparring.types import Json, Message, Task


class LoggedEnvironment(Environment):
    """Answers each call with its logged result: first with that of the task's own conversation, then with that of any.

        class Desk(LoggedEnvironment):
            tools_file = Path(__file__).parent / "tools.json"
            shared = Fixtures.load(Path(__file__).parent / "fixtures" / "calls.jsonl")

    `tools_file` lists the tools in the OpenAI format. A tool with `"writes": true` changes something. Its call succeeds
    only if the task's own conversation has it, and is then a part of `final_state`. Define a method with the tool's name
    to run a tool instead of replaying it.

    The task's field `log` has the messages of its conversation after the opening. The user's messages in it are sent in
    order, whatever the policy answers. If it has a call several times, each repetition gets the next result.
    """

    tools_file: ClassVar[Path]
    shared: ClassVar[Fixtures] = Fixtures(())
    """The calls that are answered in every task."""

    def reset(self, task: Task) -> None:
        log = task.fields.get("log", ())
        self._rounds = _rounds(log, {name: tool for name, (tool, _) in _read_tools(self.tools_file).items()})
        self._num_asked = Counter[str]()
        self._replies = [one["content"] for one in log if one["role"] == "user"]
        self._written: list[Mapping[str, Json]] = []

    def reply(self, messages: Sequence[Message], session: SessionLike) -> str | None:
        """Return the next logged message of the user, or None after the last one."""
        return self._replies.pop(0) if self._replies else None

    def final_state(self) -> Json:
        """Return the successful calls of tools that write, in order."""
        return {"writes": self._written}

    def demonstrate(self, task: Task) -> list[Message]:
        """Return the assistant's messages in the log."""
        return [one for one in task.fields["log"] if one["role"] == "assistant"]

    @classmethod
    def tools(cls) -> Mapping[str, ToolLike]:
        """Return the tools of the file, keyed by name. Raises DataError for a file that is not a list of tools."""
        return {name: tool for name, (tool, _) in _read_tools(cls.tools_file).items()}

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> Json:
        """Run the class's own method with the tool's name, or return the logged result. Raises FixtureMiss for a call
        that is not in the log."""
        method = self._own_method(name)
        tool, writes = _read_tools(self.tools_file)[name]
        complete = {**_defaults(tool), **arguments}
        result = self._answer(name, complete, writes) if method is None else await call(method, **arguments)
        if writes:
            self._written.append({"tool": name, "arguments": dict(arguments)})
        return result

    def _own_method(self, name: str) -> functools.partial[Json] | None:
        for one in type(self).__mro__:
            if one is LoggedEnvironment:
                return None
            if name in vars(one):
                return functools.partial(vars(one)[name], self)
        return None

    def _answer(self, name: str, arguments: Mapping[str, Json], writes: bool) -> Json:
        key = canonical_json([name, arguments])
        last = min(self._num_asked[key], len(self._rounds) - 1)
        self._num_asked[key] += 1
        for fixtures in (*reversed(self._rounds[: last + 1]), *(() if writes else (self.shared,))):
            try:
                return fixtures.answer(name, **arguments)
            except FixtureMiss:
                continue
        if writes:
            raise ToolFailure(f"{name} cannot do this")
        raise FixtureMiss(name, arguments, self.shared)


def _rounds(log: Sequence[Message], tools: Mapping[str, SchemaTool]) -> list[Fixtures]:
    """Return the first results of all calls, then the results of their first repetitions, and so on."""
    results = {one["tool_call_id"]: one["content"] for one in log if one["role"] == "tool"}
    rounds: list[list[Mapping[str, Json]]] = []
    num_seen = Counter[str]()
    for one in (one for message in log for one in message.get("tool_calls", ())):
        name, arguments = one["function"]["name"], one["function"]["arguments"]
        if name in tools:
            arguments = {**_defaults(tools[name]), **arguments}
        key = canonical_json([name, arguments])
        if num_seen[key] == len(rounds):
            rounds.append([])
        rounds[num_seen[key]].append({"tool": name, "arguments": arguments, "result": results[one["id"]]})
        num_seen[key] += 1
    return [Fixtures(one) for one in rounds]


def _defaults(tool: SchemaTool) -> dict[str, Json]:
    properties = tool.parameters.get("properties", {})
    return {name: one["default"] for name, one in properties.items() if isinstance(one, Mapping) and "default" in one}


@functools.cache
def _read_tools(path: Path) -> Mapping[str, tuple[SchemaTool, bool]]:
    """Return the tools of a file, and whether each writes. Raises DataError."""
    try:
        rows = parse_json(path.read_text("utf-8"))
        functions = [(row["function"], bool(row.get("writes"))) for row in rows]
        return {
            one["name"]: (SchemaTool(one["name"], one.get("description", ""), one["parameters"]), writes)
            for one, writes in functions
        }
    except (OSError, ValueError, LookupError, TypeError, UsageError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); give a list of {{'type': 'function', 'function': {{'name', 'description', "
            "'parameters'}}}}."
        ) from error
