"""The environments of their page pass the rules on environments, and no block of these pages is left out without a reason."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from sparring.checks import CHECKS
from tests.checks.rule_runner import run_rules
from tests.checks.test_blind import SLOW
from tests.checks.test_documented import RECIPE, RECIPES, REWARDS, SHOWN, TASKS, block
from tests.test_examples import ROOT, blocks

LONG = {
    "environment.leaks",
    "environment.isolation",
    "environment.clock",
    "environment.randomness",
    "environment.close",
}
"""Rules that play many episodes."""


def environment_recipe(folder: Path, code: str, *, target: str, more: str = "") -> str:
    folder.mkdir()
    paid = "\n\ndef paid(trajectory):\n    return 0.0\n"
    (folder / "environment.py").write_text(TASKS + code + paid, "utf-8")
    recipe = RECIPE.replace("environment:Desk", f"environment:{target}").partition("[reward]")[0]
    recipe += "[reward]\nreward = 'environment:paid'\n"
    (folder / "recipe.toml").write_text(recipe + more, "utf-8")
    return str(folder)


ASKED = """

def one(task_id, rng):
    fields = {fields}
    message = {{"role": "user", "content": f"Case {{task_id}}: {prompt}"}}
    return Task(id=task_id, messages=(message,), fields=fields)
"""


def weather(more: str = "") -> str:
    """The replayed environment of the page, with a method more maybe; its rows are in the folder above."""
    shown = re.sub(
        r"(?m)^(calls = |Fixtures\.record|assert ).*\n", "", block("environments.md", "class Weather(ReplayEnvironment")
    )
    rows = "Path(__file__).parents[1] / 'fixtures/weather.jsonl'"
    shown = "from pathlib import Path\n" + shown.replace('"fixtures/weather.jsonl"', rows).rstrip() + "\n"
    asked = ASKED.format(fields="{'city': rng.choice(('Rome', 'Oslo'))}", prompt="the weather in {fields['city']}")
    return shown + textwrap.indent(more, "    ") + asked


ENVIRONMENTS = {
    "weather": lambda: ("Weather", weather()),
    "weather_with_miss": lambda: ("Weather", weather(block("environments.md", "def miss(self, error)"))),
    "hotels": lambda: (
        "Hotels",
        block("environments.md", "class Hotels(Environment)")
        + ASKED.format(fields="{'stars': rng.randint(1, 5)}", prompt="hotels with {fields['stars']} stars"),
    ),
    "restaurant": lambda: (
        "Restaurant",
        block("environments.md", "class Restaurant(Environment)")
        + ASKED.format(fields="{'wish': rng.choice(('soup', 'rice', 'fish'))}", prompt="serve the customer"),
    ),
    "counter": lambda: (
        "Counter",
        block("environments.md", "class Counter(Environment)")
        + ASKED.format(
            fields="{'code': '4711', 'order': rng.randint(100, 999)}",
            prompt="my code is {fields['code']}, pay order {fields['order']} back",
        ),
    ),
    "books": lambda: (
        "Books",
        block("environments.md", "class Books(PythonTool, SqlTool)")
        + ASKED.format(
            fields="{'sales': [{'title': t, 'copies': rng.randint(1, 9)} for t in ('Emma', 'Dune')]}",
            prompt="how many books were sold?",
        ),
    ),
    "library": lambda: ("Desk", RECIPES["Library"]()),
    "orders": lambda: ("Desk", RECIPES["Orders"]()),
}
SANDBOXED = {"books"}
"""Of which each episode takes a sandbox: the rules that play many are for the others."""
NOT_CHECKED = {
    (REWARDS, "def reward(trajectory: Trajectory) -> float: ..."): "signatures without a body",
    (REWARDS, 'Score(0.0, {"field/part"'): "a value, which tests/test_examples.py makes",
    (
        REWARDS,
        "return per_user_turn(trajectory",
    ): "for a user who replies; tests/rewards/test_rules.py makes such rewards",
    (
        "environments.md",
        'ScriptedSession(tool_call("find"',
    ): "an episode of Library, which tests/test_examples.py plays",
    ("environments.md", "def build(seed):"): "a model, which tests/test_examples.py builds",
}
"""Blocks of which no recipe can be made, by a text in them, and why."""


def test_every_block_of_these_pages_is_part_of_a_recipe_that_is_checked_or_has_a_reason() -> None:
    pages = ("rewards-and-scorers.md", "reward-guide.md", "environments.md")
    for made in (*RECIPES.values(), *ENVIRONMENTS.values()):
        made()
    block(REWARDS, "reward = Calibrated(judge")  # of a test of its own
    checked = set(SHOWN)
    for page, text in NOT_CHECKED:
        block(page, text)
    assert len(SHOWN) == len(checked) + len(NOT_CHECKED), "a block that is checked needs no reason"
    assert {(page, one.line) for page in pages for one in blocks(ROOT / "docs" / page)} == SHOWN


def test_every_environment_of_its_page_passes_the_rules_on_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(block("environments.md", "class Weather(ReplayEnvironment"), {"__name__": "recording"})
    rules = [name for name, one in CHECKS.items() if one.family == "environment" and name not in SLOW]
    asked = []
    for name, made in ENVIRONMENTS.items():
        target, code = made()
        more = "[policies.customer]\nmax_tokens = 128\n" if name == "restaurant" else ""
        folder = environment_recipe(tmp_path / name, code, target=target, more=more)
        asked += [
            {"folder": folder, "rule": rule, "options": {}}
            for rule in rules
            if rule not in LONG or name not in SANDBOXED
        ]
    verdicts = zip(asked, run_rules(asked), strict=True)
    found = [
        (Path(one["folder"]).name, verdict)
        for one, verdict in verdicts
        if verdict["state"] == "undecided" or any(finding["severity"] == "error" for finding in verdict["findings"])
    ]
    assert found == []
