"""How right answers are written is read off several of them; the fields of a task that graders read are recorded."""

from __future__ import annotations

import json

import pytest

from sparring.checks.evidence.answer_forms import (
    AnswerForm,
    ReadFields,
    canonical,
    detect_answer_form,
    find_tagged,
    write_answers,
)
from sparring.environments import answer, tool_call
from sparring.types import Message, Task


@pytest.mark.parametrize(
    ("answers", "form", "parts"),
    [
        (
            [answer('<out>{"a": 1}</out>'), answer('<out>{"a": 2}</out>')],
            AnswerForm(tags=("out",), is_json=True),
            {"a": 1},
        ),
        ([answer("Total: 11"), answer("Total: 12")], AnswerForm(before="Total: "), {"": "11"}),
        (
            [answer("It is 5 euros."), answer("It is 70 euros.")],
            AnswerForm(before="It is ", after=" euros."),
            {"": "5"},
        ),
        ([answer('{"a": 1}'), answer('{"a": 3}')], AnswerForm(is_json=True), {"a": 1}),
        (
            [answer("<kind>low</kind><why>x</why>"), answer("<kind>high</kind><why>y</why>")],
            AnswerForm(tags=("kind", "why")),
            {"kind": "low", "why": "x"},
        ),
        ([answer("Hence <v>no</v>"), answer("Hence <v>yes</v>")], AnswerForm(tags=("v",), before="Hence "), {"": "no"}),
        ([tool_call("submit", a=1), tool_call("submit", a=2)], AnswerForm(tool="submit"), {"a": 1}),
    ],
)
def test_a_form_is_read_and_written_back(answers: list[Message], form: AnswerForm, parts: dict[str, object]) -> None:
    found = detect_answer_form(answers)
    assert found == form
    assert found.parts(answers[0]) == parts
    assert found.parts(found.message(parts)) == parts


def test_what_is_not_in_the_form_has_no_parts() -> None:
    form = AnswerForm(tags=("out",), is_json=True)
    assert form.parts(answer('{"a": 1}')) is None
    assert form.parts(answer("<out>[1]</out>")) is None
    assert form.parts(answer('Well: <out>{"a": 1}</out>')) is None
    assert AnswerForm(tool="submit").parts(answer("done")) is None


def test_equal_values_have_one_text_and_others_do_not() -> None:
    assert canonical({"b": 1.0, "a": [2]}) == canonical({"a": [2.0], "b": 1})
    assert len({canonical(value) for value in (1, True, "1", None, [1])}) == 5


def test_tags_inside_tags_are_seen_and_tool_calls_are_not() -> None:
    text = '<sop>Do it. <out>{"a": ""}</out></sop><tool_call>{}</tool_call>'
    assert [tag for tag, _ in find_tagged(text)] == ["sop", "out"]


def test_fields_note_what_is_read_and_what_is_missed() -> None:
    fields = ReadFields({"answer": {"a": 1, "b": 2}, "records": {"x": {}}, "id": "7"})
    assert fields["answer"]["a"] == 1
    assert fields.get("anwser") is None
    with pytest.raises(KeyError):
        fields["records"]["y"]
    assert fields.read == {("answer",), ("answer", "a"), ("records",)}
    assert fields.missed == {("anwser",), ("records", "y")}


@pytest.mark.parametrize(
    "read_whole", [dict, json.dumps, lambda value: value == {"a": 1, "b": 2}, lambda value: {**value}]
)
def test_reading_a_whole_field_reads_all_of_it(read_whole: object) -> None:
    assert callable(read_whole)
    fields = ReadFields({"answer": {"a": 1, "b": 2}})
    read_whole(fields["answer"])
    assert {("answer", "a"), ("answer", "b")} <= fields.read


@pytest.mark.parametrize(
    ("prompt", "right"),
    [
        ("Finish with a line `PRICE: <cents>`.", "PRICE: 12"),
        ("End with: LEADER <club>", "LEADER 12"),
        ("Reply HOUSE and its id, as in HOUSE H1203.", "HOUSE 12"),
        ("Answer with <dose>X mg</dose>.", "<dose>12 mg</dose>"),
        ("Reply as in `31.5 hours`.", "12 hours"),
        ("Write the name in double brackets, like [[Jo Doe]].", "[[12]]"),
        ("The total stands on the last line, for example:\n  tax: 5\n  total: 24", "total: 12"),
        ("Give it between ``` and ```.", "```\n12\n```"),
    ],
)
def test_the_answer_is_written_in_the_form_that_the_prompt_shows(prompt: str, right: str) -> None:
    task = Task(id="0", messages=({"role": "user", "content": prompt},), fields={"answer": 12})
    assert right in [one["content"] for _, one in write_answers(task, prompt)]


def test_a_spelling_of_several_that_count_is_an_answer() -> None:
    task = Task(id="0", messages=(), fields={"accepted": ["Hg", "mercury"]})
    assert "Hg" in [one["content"] for _, one in write_answers(task, "")]


def test_an_answer_is_written_in_the_same_way_for_every_task() -> None:
    """Also where the first list is empty, and has no spelling."""
    tasks = [Task(id="0", messages=(), fields={"fit": []}), Task(id="1", messages=(), fields={"fit": ["Ben", "Jo"]})]
    first, second = (dict(write_answers(task, "<out>x</out>")) for task in tasks)
    way = next(way for way, message in first.items() if message["content"] == "<out>[]</out>")
    assert second[way]["content"] == '<out>["Ben", "Jo"]</out>'


@pytest.mark.parametrize(
    ("prompt", "right"),
    [
        ("<think>why</think> then <answer>x</answer>", "<think>I have looked it up.</think>\n<answer>ops</answer>"),
        ('As {"team": "sales", "level": 3}.', '{"team": "ops", "level": 2}'),
        ("<team>sales</team> and <level>3</level>", "<team>ops</team>\n<level>2</level>"),
        ('As {"team": "sales"}.', '{"team": "ops"}'),
    ],
)
def test_an_answer_of_several_parts_takes_each_from_the_field_of_its_name(prompt: str, right: str) -> None:
    task = Task(id="0", messages=(), fields={"team": "ops", "wanted": {"true_level": 2}})
    assert right in [one["content"] for _, one in write_answers(task, prompt)]


def test_thoughts_that_are_always_the_same_stand_before_the_answer() -> None:
    form = detect_answer_form([answer(f"<think>I know.</think>\n<out>{one}</out>") for one in ("a", "b")])
    assert (form.tags, form.before) == (("out",), "<think>I know.</think>\n")
    form = detect_answer_form([answer(f"<think>It is {one}.</think>\n<out>{one}</out>") for one in ("a", "b")])
    assert form.tags == ("think", "out")
