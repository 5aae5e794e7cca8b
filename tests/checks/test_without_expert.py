"""A recipe without a scripted expert: the right answers are those fields that the scorer pays for, and rows have numbers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sparring.checks import CHECKS
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.subject import Subject
from sparring.config import load_config
from sparring.findings import Finding

ENVIRONMENT = '''
from sparring.environments import Environment, tool


class Desk(Environment):
    @tool
    def look(self, word: str) -> str:
        """Look a word up."""
        return word


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and last["content"] == f"<answer>{trajectory.task.fields['label']}</answer>")


def scorer(trajectory):
    text = str(trajectory.messages[-1].get("content"))
    return float(text.startswith("<answer>") and text[8:] == trajectory.task.fields["label"] + "</answer>")
'''
RECIPE = """
[data]
train = "tasks.jsonl"

[environment]
target = "environment:Desk"

[reward]
reward = "environment:reward"
scorer = "environment:scorer"
"""


def recipe(folder: Path, rows: list[dict[str, object]], environment: str = ENVIRONMENT) -> Subject:
    (folder / "environment.py").write_text(environment, "utf-8")
    (folder / "recipe.toml").write_text(RECIPE, "utf-8")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return Subject(load_config(folder / "recipe.toml"), folder / "recipe.toml")


def rows() -> list[dict[str, object]]:
    return [
        {"prompt": f"Is case C{number} high or low? Answer in <answer></answer>.", "label": ("high", "low")[number % 2]}
        for number in range(40)
    ]


def found(subject: Subject, name: str) -> list[Finding]:
    return list(asyncio.run(CHECKS[name].function(subject)))  # type: ignore[arg-type]


def test_the_field_that_the_scorer_pays_for_is_the_right_answer(tmp_path: Path) -> None:
    subject = recipe(tmp_path, rows())
    references = asyncio.run(find_references(subject))
    assert references is not None
    assert not references.has_expert
    assert references.form.tag == "answer"
    assert set(references.labels()[""]) == {"high", "low"}
    assert references.read == {("label",)}
    assert list(references.by_task) == [task.id for task in subject.tasks.train]


def test_without_any_known_answer_there_is_only_a_note(tmp_path: Path) -> None:
    subject = recipe(tmp_path, [{**row, "label": {"deep": row["label"]}} for row in rows()])
    assert [(one.severity.value, one.rule) for one in found(subject, "policies.expert")] == [
        ("note", "policies.expert")
    ]
    assert found(subject, "reward.mutations") == found(subject, "data.imbalance") == found(subject, "prompt.tag") == []


def test_a_row_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    torn = rows()
    torn[6]["prompt"] = "Is case {label} high or low? Answer in <answer></answer>."
    del torn[11]["label"]
    subject = recipe(tmp_path, torn)
    (unfilled,) = found(subject, "data.rows")
    assert [one["row"] for one in unfilled.evidence["tasks"]] == [7]
    (missing,) = found(subject, "data.columns")
    assert (missing.severity.value, [one["row"] for one in missing.evidence["tasks"]]) == ("error", [12])


def test_one_answer_for_nine_tasks_in_ten_is_reported_with_its_score(tmp_path: Path) -> None:
    subject = recipe(
        tmp_path, [{**row, "label": "low" if number % 20 else "high"} for number, row in enumerate(rows())]
    )
    (one,) = found(subject, "data.imbalance")
    assert one.severity.value == "error"
    assert one.evidence["share"] > 0.9
    assert one.evidence["score"] > 0.9


CODES = """
class Desk(Environment):
    def reset(self, task):
        self.fields, self.num_lost = task.fields, 1 if "far" in task.fields else 0

    @tool
    def look(self, case: str) -> str:
        \"\"\"Look a case up.\"\"\"
        if case != self.fields["case"] + self.fields.get("behind", ""):
            return "no such case"
        self.num_lost -= 1
        return "..." if self.num_lost >= 0 else self.fields["riddle"]


"""


@pytest.mark.parametrize(
    ("label", "further", "num"),
    [
        ("kxwvqz", {}, 1),
        ("abcdef", {}, 0),
        ("dcba", {}, 0),
        ("bdac", {}, 0),
        ("ABCD-77", {}, 0),
        ("kxwvqz", {"note": "behind another call stands kxwvqz"}, 0),
        ("kxwvqz", {"behind": "-secret"}, 0),
        ("kxwvqz", {"far": True}, 0),
    ],
    ids=["drawn", "joined", "reversed", "in another order", "with a number", "in a field", "not found", "asked again"],
)
def test_an_answer_is_unknown_without_an_expert_only_where_tools_were_asked_for_all_that_they_say(
    tmp_path: Path, label: str, further: dict[str, object], num: int
) -> None:
    shift = [str.maketrans("abcdefkxvwqz", "abcdefkxvwqz"[n:] + "abcdefkxvwqz"[:n]) for n in range(12)]
    table = [
        {
            "prompt": f"What is the code of case C{n}? Answer in <answer></answer>.",
            "case": f"C{n}",
            "label": label.lower().translate(shift[n % 12]),
            "riddle": "abcd lies on ef".translate(shift[n % 12]),
            **{k: v.translate(shift[n % 12]) if k == "note" and isinstance(v, str) else v for k, v in further.items()},
        }
        for n in range(24)
    ]
    desk, graders = ENVIRONMENT.split("class Desk")[0], "def reward" + ENVIRONMENT.split("def reward")[1]
    subject = recipe(tmp_path, table, desk + CODES + graders)
    reported = found(subject, "data.unanswerable")
    assert [one.severity.value for one in reported] == ["warning"] * num, reported
