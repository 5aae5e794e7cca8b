"""Replayed tools answer what was recorded for their arguments, say so when nothing was, and call nothing live."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments import (
    Environment,
    FixtureMiss,
    Fixtures,
    ReplayEnvironment,
    ToolError,
    answer,
    execute,
    replayed,
    tool,
    tool_call,
)
from sparring.environments.tools import tools_of
from sparring.errors import DataError, InfrastructureError, UsageError
from sparring.run_folders.inputs import recorded_inputs
from sparring.types import Message, Task

ROWS = [
    {"tool": "find", "arguments": {"title": "Emma", "floor": 1}, "result": "B3"},
    {"tool": "find", "arguments": {"title": "Emma", "floor": 2}, "result": None},
    {"tool": "shelves", "arguments": {}, "result": {"B": ["B1", "B3"], "A": []}},
]


class LiveLibrary(Environment):
    """Counts its calls in `num_calls`."""

    num_calls = 0

    def reset(self, task: Task) -> None:
        self.is_open = True

    @tool
    async def find(self, title: str, floor: int = 1) -> str | None:
        """Shelf of a book.

        Args:
            title: as printed
        """
        assert self.is_open
        type(self).num_calls += 1
        return "B3" if (title, floor) == ("Emma", 1) else None

    @tool
    def shelves(self) -> dict[str, list[str]]:
        """All shelves."""
        return {"B": ["B1", "B3"], "A": []}

    @tool
    def visitors(self) -> int:
        """How many came in."""
        type(self).num_calls += 1
        return self.num_calls

    @tool
    def fail(self) -> None:
        """Fails."""
        raise OSError("no route")

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return [tool_call("find", title=task.fields["title"]), answer("done")]


class Library(ReplayEnvironment, replays=LiveLibrary):
    fixtures = Fixtures(ROWS)


TASK = Task(id="t", messages=({"role": "user", "content": "where?"},), fields={"title": "Emma"})


def call_tool(environment: Environment, name: str, **arguments: Any) -> tuple[str, ToolError | None]:
    result = asyncio.run(execute(environment, name, arguments))
    return result.content, result.error


def test_replayed_tools_have_the_schemas_of_the_live_ones_and_answer_what_was_recorded() -> None:
    LiveLibrary.num_calls = 0
    assert Library.tool_schemas() == LiveLibrary.tool_schemas()
    assert call_tool(Library(), "find", title="Emma", floor=2) == ("null", None)
    assert call_tool(Library(), "find", floor=1, title="Emma") == ("B3", None)
    assert call_tool(Library(), "shelves") == ('{"B":["B1","B3"],"A":[]}', None)
    assert LiveLibrary.num_calls == 0


def test_an_argument_left_at_its_default_is_found_whether_it_was_recorded_or_not() -> None:
    class Brief(ReplayEnvironment, replays=LiveLibrary):
        fixtures = Fixtures([{"tool": "find", "arguments": {"title": "Emma"}, "result": "B3"}])

    for environment in (Library(), Brief()):
        assert call_tool(environment, "find", title="Emma") == ("B3", None)
        assert call_tool(environment, "find", title="Emma", floor=1) == ("B3", None)
    assert call_tool(Brief(), "find", title="Emma", floor=2)[1] is ToolError.FIXTURE_MISS


class Hotel(Environment):
    @tool
    def price(self, city: str, cls: str = "standard", nights: int = 1, late: bool | int = 1) -> float:
        """Price of a room."""
        raise AssertionError("a replayed tool never runs")


def hotel(*rows: tuple[dict[str, Any], Any]) -> ReplayEnvironment:
    class Recorded(ReplayEnvironment, replays=Hotel):
        fixtures = Fixtures({"tool": "price", "arguments": asked, "result": result} for asked, result in rows)

    Recorded.tools()
    return Recorded()


given_arguments = st.fixed_dictionaries(
    {"city": st.sampled_from(["Rome", "Oslo"])},
    optional={"cls": st.sampled_from(["standard", "suite"]), "nights": st.integers(1, 2)},
)


@given(given_arguments, given_arguments)
def test_a_call_is_found_exactly_when_all_its_arguments_are_those_recorded(
    recorded: dict[str, Any], asked: dict[str, Any]
) -> None:
    defaults = {"cls": "standard", "nights": 1}
    is_same = {**defaults, **recorded} == {**defaults, **asked}
    environment = hotel((recorded, 80))
    assert call_tool(environment, "price", **asked)[1] is (None if is_same else ToolError.FIXTURE_MISS)


def test_a_conflict_through_a_default_is_an_error_that_names_both_rows() -> None:
    rows = (({"city": "Rome"}, 80), ({"city": "Rome", "nights": 1.0}, 90))
    with pytest.raises(
        DataError, match=r'row 2: price\({"city":"Rome","nights":1,.*}\) was answered differently than in row 1'
    ):
        hotel(*rows)
    assert call_tool(hotel(({"city": "Rome"}, 80), ({"city": "Rome", "nights": 1}, 80)), "price", city="Rome") == (
        "80",
        None,
    )


def test_true_is_not_the_default_one() -> None:
    environment = hotel(({"city": "Rome"}, 80))
    assert call_tool(environment, "price", city="Rome", late=1) == ("80", None)
    assert call_tool(environment, "price", city="Rome", late=True)[1] is ToolError.FIXTURE_MISS
    with pytest.raises(FixtureMiss):
        environment.price("Rome", late=True)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"tool": "prices", "arguments": {"city": "Rome"}},
            "row 1: Recorded has no tool 'prices'; its tools are price. Correct",
        ),
        ({"tool": "price", "arguments": {"town": "Rome"}}, "row 1: price has no argument 'town'; it takes city, cls"),
        (
            {"tool": "price", "arguments": {"cls": "suite"}},
            "row 1: price: argument 'city' is missing, so this call is never",
        ),
        (
            {"tool": "price", "arguments": {"city": "Rome", "nights": True}},
            "row 1: .*'nights' must be integer, got true",
        ),
    ],
)
def test_a_row_that_no_call_can_ask_for_is_an_error_before_the_first_episode_and_when_reset_sets_it(
    row: dict[str, Any], message: str
) -> None:
    fixtures_ = Fixtures([{**row, "result": 80}])

    class Recorded(ReplayEnvironment, replays=Hotel):
        fixtures = fixtures_

    with pytest.raises(DataError, match=message):
        Recorded.tool_schemas()
    with pytest.raises(DataError, match=message):
        call_tool(Recorded(), "price", city="Rome")  # never an answer to the policy

    class ByTask(ReplayEnvironment, replays=Hotel):
        def reset(self, task: Task) -> None:
            self.fixtures = fixtures_

    with pytest.raises(DataError, match=message.replace("Recorded", "ByTask")):
        ByTask().reset(TASK)


def test_cells_of_a_table_have_the_types_of_the_tool(tmp_path: Path) -> None:
    class Registry(ReplayEnvironment):
        @replayed
        def released(self, version: str, build: int = 1, beta: bool = False) -> str:
            """Day of release."""

    def loaded(content: str) -> ReplayEnvironment:
        Registry.fixtures = Fixtures.load(written(tmp_path / "released.csv", content))
        Registry.tools()
        return Registry()

    registry = loaded("version,build,beta,result\n1.10,1.0,,May\n1.1,,False,June\n007,2,True,July\n")
    assert call_tool(registry, "released", version="1.10") == ("May", None)
    assert call_tool(registry, "released", version="1.1", build=1) == ("June", None)
    assert call_tool(registry, "released", version="007", build=2, beta=True) == ("July", None)
    with pytest.raises(DataError, match=r"row 1 \(line 2\): .*'build' must be integer, got \"True\""):
        loaded("version,build,result\n1.1,True,June\n")
    with pytest.raises(DataError, match=r"row 2 \(line 3\): .* answered differently than in .*row 1 \(line 2\)"):
        loaded("version,build,result\n1.1,,May\n1.1,1,June\n")


def test_a_miss_is_reported_with_the_nearest_call_and_counted_and_nothing_live_is_called() -> None:
    LiveLibrary.num_calls = 0
    session = ScriptedSession(tool_call("find", title="Ema"), tool_call("visitors"), answer("B3"))
    result = asyncio.run(EnvironmentAgent(Library, max_turns=3).play(TASK, session))
    assert [message["content"] for message in result.messages if message["role"] == "tool"] == [
        'error: find has no answer for {"title":"Ema","floor":1}; the nearest it knows is {"floor":1,"title":"Emma"}',
        "error: visitors has no answer for {}",
    ]
    assert [transition["error"] for transition in result.transitions] == ["fixture_miss", "fixture_miss"]
    assert (result.metrics["tool_errors"], result.metrics["tool_errors/fixture_miss"]) == (2, 2)
    assert LiveLibrary.num_calls == 0


def test_wrong_types_are_refused_before_anything_is_looked_up() -> None:
    assert call_tool(Library(), "find", title=3)[1] is ToolError.WRONG_TYPE


def test_a_miss_may_be_answered_as_the_live_tool_would() -> None:
    class Polite(Library):
        def miss(self, error: FixtureMiss) -> Any:
            return {"error": f"{error.arguments['title']} not found"}

    assert call_tool(Polite(), "find", title="Ulysses") == ('{"error":"Ulysses not found"}', None)


def test_fixtures_of_a_task_work_together_with_tools_that_run() -> None:
    class Desk(ReplayEnvironment):
        def reset(self, task: Task) -> None:
            self.fixtures = Fixtures(task.fields["rows"])

        @replayed
        def grade(self, part: str) -> str:
            """Grade of a part."""

        @tool
        def add(self, a: int, b: int) -> int:
            """Sum."""
            return a + b

    task = Task(
        id="t",
        messages=TASK.messages,
        fields={"rows": [{"tool": "grade", "arguments": {"part": "N1"}, "result": "red"}]},
    )
    desk = Desk()
    desk.reset(task)
    assert list(tools_of(Desk)) == ["grade", "add"]
    assert call_tool(desk, "grade", part="N1") == ("red", None)
    assert desk.grade("N1") == "red"
    assert call_tool(desk, "add", a=1, b=2) == ("3", None)
    with pytest.raises(InfrastructureError, match="Desk has no fixtures"):
        call_tool(Desk(), "grade", part="N1")


def test_a_subclass_may_take_over_how_tools_are_described() -> None:
    class Terse(LiveLibrary):
        describe_tools = "prompt"

    class Replayed(ReplayEnvironment, replays=Terse):
        fixtures = Fixtures(ROWS)

    assert Replayed.offered_tools() == ()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(min_size=1), json_values, max_size=4)


@given(arguments, json_values)
def test_equal_arguments_are_found_in_any_order_of_keys(asked: dict[str, Any], result: Any) -> None:
    fixtures = Fixtures([{"tool": "t", "arguments": asked, "result": result}])
    again = json.loads(json.dumps(dict(reversed(asked.items()))))
    assert fixtures.answer("t", **again) == json.loads(json.dumps(result))


@pytest.mark.parametrize(
    ("asked", "is_found"),
    [
        ({"x": 1}, True),
        ({"x": 1.0}, True),
        ({"x": True}, False),
        ({"x": "1"}, False),
        ({"x": 1, "y": None}, False),
        ({}, False),
    ],
)
def test_arguments_are_compared_as_json(asked: dict[str, Any], is_found: bool) -> None:
    fixtures = Fixtures([{"tool": "t", "arguments": {"x": 1}, "result": "yes"}])
    if is_found:
        assert fixtures.answer("t", **asked) == "yes"
        return
    with pytest.raises(FixtureMiss):
        fixtures.answer("t", **asked)


def test_what_a_caller_does_to_an_answer_reaches_no_other() -> None:
    fixtures = Fixtures(ROWS)
    fixtures.answer("shelves")["B"].clear()
    assert fixtures.answer("shelves") == {"B": ["B1", "B3"], "A": []}


def test_a_file_that_is_loaded_from_anywhere_is_noted_for_the_manifest_with_its_content(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n")
    Fixtures.load(path)
    assert recorded_inputs()[str(path.resolve())] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_hash_is_of_what_was_recorded_and_not_of_how_it_was_given() -> None:
    fixtures = Fixtures(ROWS)
    assert fixtures.sha256 == Fixtures([*reversed(ROWS), ROWS[0] | {"seconds": 0.2}]).sha256
    assert fixtures.sha256 != Fixtures([*ROWS[:2], ROWS[2] | {"result": {"B": ["B1"], "A": []}}]).sha256
    assert list(Fixtures(fixtures)) == list(fixtures)
    assert len(fixtures) == 3


def written(path: Path, content: str) -> Path:
    path.write_text(content, "utf-8")
    return path


def test_json_lines_and_tables_with_json_arguments_are_read(tmp_path: Path) -> None:
    lines = written(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    table = written(
        tmp_path / "b.csv", 'tool,arguments,result\nfind,"{""title"": ""Persuasion"", ""floor"": 1}","[""C1""]"\n'
    )
    fixtures = Fixtures.load(lines, table)
    assert list(fixtures) == [
        ROWS[0],
        {"tool": "find", "arguments": {"title": "Persuasion", "floor": 1}, "result": '["C1"]'},
        ROWS[1],
        ROWS[2],
    ]


def test_a_table_with_a_column_an_argument_is_read_and_empty_cells_were_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "find.csv", "title,floor,rare,result\nEmma,1.0,,B3\n1984,,True,C1\n007,2,false,\n")
    fixtures = Fixtures.load(path)
    assert fixtures.answer("find", title="Emma", floor=1) == "B3"
    assert fixtures.answer("find", title="1984", rare=True) == "C1"
    assert fixtures.answer("find", title="007", floor=2, rare=False) == ""
    with pytest.raises(FixtureMiss):
        fixtures.answer("find", title="7", floor=2, rare=False)


def test_parquet_is_read_with_the_types_of_its_columns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"tool": ["find", "find"], "title": ["Emma", "7"], "floor": [1, None], "result": ["B3", "C1"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    structs = {
        "tool": ["grade", "shelves"],
        "arguments": [{"part": "N1"}, {"floor": 2}],
        "result": [{"a": 1}, {"a": 2}],
    }
    parquet.write_table(pyarrow.table(structs), tmp_path / "b.parquet")
    fixtures = Fixtures.load(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert fixtures.answer("find", title="Emma", floor=1) == "B3"
    assert fixtures.answer("find", title="7") == "C1"
    assert fixtures.answer("grade", part="N1") == {"a": 1}
    assert fixtures.answer("shelves", floor=2) == {"a": 2}
    with pytest.raises(FixtureMiss):
        fixtures.answer("find", title=7)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"tool": "t", "arguments": {}, "result": 1}\n{"tool": "t", "argu',
            "line 2: the last line is incomplete",
        ),
        ("a.jsonl", '{"tool": "t", "result": 1}\n', "line 1: there are no 'arguments'"),
        ("a.jsonl", '{"tool": "t", "arguments": [], "result": 1}\n', r"line 1: arguments = \[\] is not an object"),
        ("a.jsonl", '{"tool": "t", "arguments": {}}\n', "line 1: there is no 'result'"),
        ("a.jsonl", '{"tool": 3, "arguments": {}, "result": 1}\n', "line 1: tool = 3 is not the name"),
        ("a.jsonl", '{"tool": "t", "arguments": {}, "result": NaN}\n', "line 1: .*NaN is not JSON"),
        ("a.jsonl", '{"tool": "t", "arguments": {}, "result": "\\ud800"}\n', "line 1: .*surrogates"),
        ("a.jsonl", '{"tool": "t", "arguments": {"x": NaN}, "result": 1}\n', "line 1: .*NaN is not JSON"),
        (
            "a.jsonl",
            '{"tool": "t", "arguments": {"x": 1}, "result": 1}\n{"tool": "t", "arguments": {"x": 1.0}, "result": 2}\n',
            r'a.jsonl, line 2: t\({"x":1}\) was answered differently than in .*a.jsonl, line 1',
        ),
        ("a.jsonl", '{"tool": "t", "arguments": {"x": 1, "x": 2}, "result": 1}\n', "line 1: .* 'x' more than once"),
        ("a.jsonl", '{"tool": "t", "arguments": {}, "result": 1, "result": 2}\n', "line 1: .* 'result' more than once"),
        ("a.csv", 'tool,arguments,result\nt,"{""x"":1,""x"":2}",1\n', "row 1 .*: .* 'x' more than once"),
        ("a.csv", 'tool,arguments,result\nt,{"x",1\n', r"row 1 \(line 2\): the arguments .* are not JSON"),
        ("a.csv", "tool,result\nt\n", r"row 1 \(line 2\): the row does not have the 2 cells"),
        ("a.csv", "tool,x\nt,1\n", r"row 1 \(line 2\): there is no 'result'"),
        ("a.csv", "tool,x,result\n,1,2\n", r"row 1 \(line 2\): tool = '' is not the name"),
        ("a.csv", "tool,result\n", "contains no rows"),
        ("a.parquet", "PAR1", "cannot be read as parquet"),
        ("a.txt", "x", "files with '.txt' cannot be read"),
        ("missing.jsonl", None, "does not exist; keep it in the `fixtures` folder next to the recipe"),
    ],
)
def test_a_torn_or_odd_row_is_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        written(tmp_path / name, content)
    with pytest.raises(DataError, match=message):
        Fixtures.load(tmp_path / name)


def test_live_tools_are_recorded_once_sorted_with_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "fixtures" / "library.jsonl"
    calls = [("shelves", {}), ("find", {"title": "Ulysses", "floor": 2}), ("find", {"title": "Emma"})]
    fixtures = Fixtures.record(LiveLibrary, path, calls=calls, tasks=[TASK])
    assert path.read_text("utf-8").splitlines() == [
        '{"tool": "find", "arguments": {"floor": 1, "title": "Emma"}, "result": "B3"}',
        '{"tool": "find", "arguments": {"floor": 2, "title": "Ulysses"}, "result": null}',
        '{"tool": "shelves", "arguments": {}, "result": {"B": ["B1", "B3"], "A": []}}',
    ]
    assert [file.name for file in path.parent.iterdir()] == ["library.jsonl"]
    assert Fixtures.load(path).sha256 == fixtures.sha256

    class Recorded(ReplayEnvironment, replays=LiveLibrary):
        fixtures = Fixtures.load(path)

    for name, arguments in calls:
        live = LiveLibrary()
        live.reset(TASK)
        assert call_tool(Recorded(), name, **arguments) == call_tool(live, name, **arguments)


class Unset(LiveLibrary):
    def reset(self, task: Task) -> None:
        raise OSError("no such host")


class Odd(Environment):
    @tool
    def ratio(self) -> float:
        """No number."""
        return float("nan")


@pytest.mark.parametrize(
    ("make", "calls", "message"),
    [
        (LiveLibrary, [("visitors", {}), ("visitors", {})], r"visitors\({}\) was answered differently than in"),
        (LiveLibrary, [("lend", {})], r"lend\({}\) cannot be recorded: there is no tool 'lend'"),
        (LiveLibrary, [("find", {"title": 3})], "argument 'title' must be string"),
        (LiveLibrary, [("shelves", {}), ("fail", {})], r"fail\({}\) failed: OSError\('no route'\)"),
        (Unset, [("shelves", {})], "no such host.*Nothing was recorded"),
        (Odd, [("ratio", {})], "NaN is not JSON"),
    ],
)
def test_what_cannot_be_replayed_is_not_written(
    tmp_path: Path, make: Callable[[], Environment], calls: list[Any], message: str
) -> None:
    path = written(tmp_path / "a.jsonl", "as before")
    with pytest.raises(DataError, match=message):
        Fixtures.record(make, path, calls=calls)
    assert path.read_text() == "as before"
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_recording_needs_calls_and_a_name_for_json_lines(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no calls to record"):
        Fixtures.record(LiveLibrary, tmp_path / "a.jsonl")
    with pytest.raises(UsageError, match=r"ends in \.jsonl"):
        Fixtures.record(LiveLibrary, tmp_path / "a.csv", calls=[("shelves", {})])


def test_the_nearest_call_is_found_among_many() -> None:
    rows = [{"tool": "t", "arguments": {"id": f"A{number:05}"}, "result": number} for number in range(20_000)]
    with pytest.raises(FixtureMiss) as missed:
        Fixtures(rows).answer("t", id="A01234x")
    assert missed.value.nearest[0] == {"id": "A01234"}


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ({"title": "Ema", "floor": 1}, {"title": "Emma", "floor": 1}),
        ({"title": "persuasion ", "floor": 2}, {"title": "Persuasion", "floor": 2}),
        ({"title": "Persuasion", "floor": 7}, {"title": "Persuasion", "floor": 2}),
        ({"title": "Ulysses", "floor": 3}, None),
    ],
)
def test_the_nearest_call_shares_most_of_its_values(asked: dict[str, Any], nearest: dict[str, Any] | None) -> None:
    known = [{"title": "Emma", "floor": 1}, {"title": "Persuasion", "floor": 2}]
    with pytest.raises(FixtureMiss) as missed:
        Fixtures([{"tool": "find", "arguments": one, "result": ""} for one in known]).answer("find", **asked)
    assert (missed.value.nearest or (None,))[0] == nearest
