"""Changed answers are what their names say: others, and wrong where they claim to be."""

from __future__ import annotations

from sparring.checks.evidence.answer_forms import AnswerForm, get_text
from sparring.checks.evidence.changed_answers import Kind, mutate_answer
from sparring.environments import answer, tool_call
from sparring.scorers import json_exact
from sparring.types import Message, Outcome, Task, Trajectory

RIGHT = {"grade": "silver", "count": 3, "ok": True}
LABELS = {"grade": ["silver", "red", "blue"], "count": [3, 4, 3], "ok": [True, False, True]}
FORM = AnswerForm(tags=("final_output",), is_json=True)


def score(message: Message) -> float:
    scorer = json_exact("final_output")
    value = scorer(
        Trajectory(
            id="t",
            task=Task(id="1", messages=(), fields={"answer": RIGHT}),
            attempt=0,
            turns=(),
            messages=(message,),
            outcome=Outcome.FINISHED,
            reward=None,
            score=None,
        )
    )
    return float(value)  # type: ignore[arg-type]


def test_the_strict_scorer_pays_for_the_same_answer_and_for_no_other() -> None:
    right = FORM.message(RIGHT)
    assert score(right) == 1.0
    changed = list(mutate_answer(FORM, right, LABELS))
    assert len(changed) > 40
    for one in changed:
        paid = score(one.message)
        if one.kind is Kind.SAME:
            assert paid == 1.0, one.name
        if one.kind in (Kind.WRONG, Kind.FORM):
            assert paid == 0.0, one.name


def test_no_change_is_the_answer_itself_or_comes_twice() -> None:
    for form, right in (
        (FORM, FORM.message(RIGHT)),
        (AnswerForm(before="Total: "), answer("Total: 11")),
        (AnswerForm(tool="submit"), tool_call("submit", grade="silver", count=3)),
    ):
        labels = {"": ["11", "12"], "grade": ["silver", "red"], "count": [3, 4]}
        changed = [str(one.message) for one in mutate_answer(form, right, labels)]
        assert len(changed) == len(set(changed)) > 3
        assert str(right) not in changed


def test_every_label_is_named_and_wrong_answers_surround_the_right_one() -> None:
    form = AnswerForm(before="Total: ")
    texts = {
        one.name: get_text(one.message) for one in mutate_answer(form, answer("Total: 11"), {"": ["11", "12", "13"]})
    }
    assert texts["every label named"] == "Total: 11, 12, 13"
    # The first line or the last one may count, and no other.
    assert texts["the right answer between wrong ones"] == "Total: 12\nTotal: 11\nTotal: 12"
    assert texts["text before each value"] == "Total: un11"


def test_no_change_is_the_right_answer_in_another_spelling() -> None:
    # Half of "7" is "7", and digits have no look-alikes: written with other spaces such a change seems to be another answer.
    form = AnswerForm(tags=("final_output",), is_json=True)
    right = answer('<final_output>{"row":"7","seat":"3"}</final_output>')
    labels = {"row": ["7", "8"], "seat": ["3", "4"]}
    wrong = [one for one in mutate_answer(form, right, labels) if one.kind is Kind.WRONG]
    right_ones = {one.name for one in wrong if form.parts(one.message) == {"row": "7", "seat": "3"}}
    assert right_ones == {"a key twice, wrong first"}
    assert {"every value another one", "text after each value"} <= {one.name for one in wrong}


def test_a_number_as_text_gets_another_sign_and_digits_after_the_point() -> None:
    form = AnswerForm(tags=("answer",))
    right = form.message({"": "18"})
    changes = {
        one.name: get_text(one.message)
        for one in mutate_answer(form, right, {"": ["18", "7.5"]})
        if one.kind is Kind.WRONG
    }
    assert changes["digits after the point of each whole number"] == "<answer>18.9</answer>"
    assert changes["the sign of each number changed"] == "<answer>-18</answer>"
    zero = form.message({"": "0"})
    assert "the sign of each number changed" not in {one.name for one in mutate_answer(form, zero, {"": ["0", "7"]})}
