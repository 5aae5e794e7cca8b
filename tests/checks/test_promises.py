"""What a prompt, a context or a group of episodes promises and playing shows otherwise is named, and not once it is put right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.source import rules
from sparring.config import load_config
from tests.checks.rule_runner import run_rules

SET = Path(__file__).parents[2] / "benchmarks" / "blind_environments" / "fourth"
ALONE = 'Path(tempfile.gettempdir()) / f"greenhouse-{task.id}"\n        self.folder.mkdir(exist_ok=True)'
CASES = {
    # name: environment, rule, a part of its symptom, edits that plant a defect, edits that take it out
    "one_guess_less": ("hidden_number", "environment.described", "over after 5 calls of guess", (), ("turn >= G", "turn > G")),
    "one_guess_more": (
        "hidden_number", "environment.described", "over after 7 calls of guess",
        ("turn >= G", "turn > 1 + G"), ("turn > 1 + G", "turn > G"),
    ),
    "one_guess_refused": (
        "hidden_number", "environment.described", "over after 5 calls of guess",
        ("or self.turn >= GUESSES", "", "if self.is_done:\n            return \"the game is over\"\n        self.turn",
         "if self.turn >= GUESSES:\n            return \"no guesses left\"\n        self.turn"),
        ("if self.turn >= G", "if self.turn > G"),
    ),
    "file_of_a_task": (
        "greenhouse", "environment.isolation", "another episode of the same task", (),
        (ALONE, 'Path(tempfile.mkdtemp(prefix="greenhouse-"))'),
    ),
    "looking_costs": (
        "warehouse_search", "reward.order", "earns no more than an episode without an answer", (), ("COST = 0.15", "COST = 0.02"),
    ),
    "long_results": ("server_logs", "budgets.context", "one result of latest", (), ("LINES = 400", "LINES = 12")),
}  # fmt: skip
SILENT = {
    "newest_one": ("server_logs", "environment.described"),
    "shelf_names": ("warehouse_search", "environment.computed"),
}


def written(folder: Path, environment: str, *edits: str) -> Path:
    shutil.copytree(SET / environment, folder)
    file = folder / "environment.py"
    text = file.read_text("utf-8")
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, "utf-8")
    return folder


def test_a_broken_promise_is_named_and_a_kept_one_is_not(tmp_path: Path) -> None:
    asked = []
    for name, (environment, rule, _, planted, right) in CASES.items():
        for kind, edits in (("wrong", planted), ("right", (*planted, *right))):
            folder = written(tmp_path / f"{name}_{kind}", environment, *edits)
            asked.append({"folder": str(folder), "rule": rule, "options": {}})
    asked += [{"folder": str(SET / case), "rule": rule, "options": {}} for case, rule in SILENT.values()]
    verdicts = run_rules(asked)
    for index, (name, (_, _, part, _, _)) in enumerate(CASES.items()):
        wrong, right = verdicts[2 * index : 2 * index + 2]
        assert [part in json.dumps(one) for one in wrong["findings"]] == [True], (name, wrong)
        assert (right["state"], right["findings"]) == ("decided", []), (name, right)
    for name, verdict in zip(SILENT, verdicts[2 * len(CASES) :], strict=True):
        assert (verdict["state"], verdict["findings"]) == ("decided", []), (name, verdict)


@pytest.mark.parametrize(
    ("code", "is_named"),
    [
        ("round(cents * rate / 100)", True),
        ("int(Decimal(cents * rate).quantize(Decimal(100)) / 100)", True),
        ("(cents * rate + 50) // 100", False),
        ("int((cents * rate / 100) + 0.5)", False),
        ("round(random.uniform(1, rate) * cents)", False),
        ("round(cents * 100)", False),
    ],
)
def test_reference_answers_are_rounded_as_the_prompt_states(code: str, is_named: bool, tmp_path: Path) -> None:
    recipe = (
        written(
            tmp_path / "case",
            "vat_invoices",
            "import random\n",
            "import random\nfrom decimal import Decimal\n",
            "round(cents * rate / 100)",
            code,
        )
        / "recipe.toml"
    )
    found = rules.findings(Subject(load_config(recipe), recipe), "environment.source", ("environment", "tasks"))
    symptoms = [one.symptom for one in found if "half to even" in one.symptom]
    assert ["the prompt promises half up" in one for one in symptoms] == [True] * is_named
