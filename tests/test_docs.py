"""The documentation names what the code has: settings and their defaults, metrics, links, an example that runs."""

import ast
import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import pytest
import torch

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.algorithms.losses import LOSSES, Tokens, policy_metrics
from sparring.algorithms.objective import Objective, reference_metrics, weight_metrics
from sparring.checks.running.run import Options, check_recipe
from sparring.config import Config, Section, load_config, validate
from sparring.data import read_tasks, split_tasks
from sparring.detectors import DETECTORS
from sparring.diagnosis import SYMPTOMS
from sparring.environments import Environment, answer, tool_call
from sparring.runtime.plugins import load_object
from sparring.types import Outcome, Task, Trajectory, UntrainedReason

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LITERAL = re.compile(r"(rollout|analysis|training|timing_s|engine|system|copy|usage|val|\0)(/[a-z0-9_\0]+)+")
"""A metric's name in the code; \0 stands for what an f-string fills in."""


def section_class(annotation: Any) -> type[Section]:
    """The section of a field, also of one that may be None, or is there by any name."""
    parts = (annotation, *get_args(annotation))
    return next(part for part in parts if isinstance(part, type) and issubclass(part, Section))


def defaults() -> dict[str, dict[str, Any]]:
    return {
        name: {
            key: ("required" if field.is_required() else field.get_default(call_default_factory=True))
            for key, field in section_class(field.annotation).model_fields.items()
        }
        for name, field in Config.model_fields.items()
    }


def documented_defaults() -> dict[str, dict[str, Any]]:
    """What docs/configuration.md contains: each section's table of `key` and default."""
    found: dict[str, dict[str, Any]] = {}
    for part in (ROOT / "docs" / "configuration.md").read_text("utf-8").split("\n## ")[1:]:
        heading = re.match(r"`\[(\w+)(?:\.NAME)?\]`\n", part)
        if heading:
            rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", part, flags=re.MULTILINE)
            found[heading[1]] = {key: read_default(cell) for key, cell in rows}
    return found


def read_default(cell: str) -> Any:
    if cell in ("none", "required"):
        return None if cell == "none" else cell
    value = tomllib.loads(f"value = {cell.strip('`')}")["value"]
    return tuple(value) if isinstance(value, list) else value


def test_every_setting_is_documented_with_its_default_and_no_other() -> None:
    assert documented_defaults() == defaults()


def metric_literals(path: str) -> set[str]:
    """Names of metrics that stand in a module as strings or f-strings."""
    texts = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            texts.add("".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return {text for text in texts if LITERAL.fullmatch(text)}


def learner_metrics() -> set[str]:
    """The learner puts `training/` before the keys of its `metrics`, and before what losses report."""
    names = set(policy_metrics(torch.zeros(1), torch.zeros(1)))
    names |= set(reference_metrics(torch.zeros(1), torch.zeros(1))) | set(weight_metrics(torch.ones(1)))
    zeros = torch.zeros(1)
    tokens = Tokens(logprobs_M=zeros, old_M=zeros, advantages_M=zeros, trajectory_M=zeros.long())
    for loss in LOSSES:
        objective = Objective.from_config(loss, {"off_policy_correction": "token_tis"})
        names |= set(objective(tokens, sampled_M=zeros)[1])
    for node in ast.walk(ast.parse((ROOT / "sparring/training/learner.py").read_text("utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name | ast.Subscript):
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                names |= {target.slice.value} if ast.unparse(target.value) == "metrics" else set()
            elif ast.unparse(target) == "metrics" and isinstance(node.value, ast.Dict):
                names |= {ast.literal_eval(key) for key in node.value.keys if key is not None}
    assert {"loss", "entropy"} <= names
    return {f"training/{name}" for name in names}


def emitted() -> list[re.Pattern[str]]:
    modules = (
        "rollouts/actions",
        "rollouts/metrics",
        "rollouts/offers",
        "rollouts/tally",
        "assembly/run",
        "copies/copier",
        "engines/load",
        "metering/prices",
        "rollouts/curriculum",
        "training/learner",
        "training/group",
        "training/handshake",
        "training/distillation",
        "evaluation/metrics",
        "loop",
        "training_run/run",
        "run_folders/stored",
    )
    literals = set().union(*(metric_literals(f"sparring/{module}.py") for module in modules)) | learner_metrics()
    literals -= {"training/\0"}
    assert {"rollout/reward/mean", "\0/score/mean", "timing_s/eval", "training/steps_without_signal"} <= literals
    # An f-string that begins with a prefix is an evaluation's: docs have the rows of `val/`.
    names = [re.sub("^\0", "val", name) for name in sorted(literals)]
    return [re.compile(re.escape(name).replace("\0", "[^`]+")) for name in names]


def documented_metrics() -> set[str]:
    """Names in the first column of the tables of docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_metric_is_documented() -> None:
    names = documented_metrics()
    assert [name.pattern for name in emitted() if not any(map(name.fullmatch, names))] == []


def test_no_metric_is_documented_that_nothing_emits() -> None:
    patterns = emitted()
    assert {name for name in documented_metrics() if not any(p.fullmatch(name) for p in patterns)} == set()


def test_what_watches_a_metric_is_a_rule_or_an_alert() -> None:
    rows = [line for line in (ROOT / "docs" / "metrics.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    alerts = re.findall(r"alert: (\w+)", (ROOT / "sparring/templates/prometheus/alerts.yml").read_text("utf-8"))
    there = {*DETECTORS, *SYMPTOMS, *alerts}
    families = {f"{name.partition('.')[0]}.*" for name in there if "." in name}
    watching = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[4])}
    assert {"stall.groups_agree", "reward.rises_alone", "SparringTruncated", "stall.*"} <= watching
    assert sorted(watching - there - families) == []


def test_the_recipes_of_the_page_about_algorithms_are_valid() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "algorithms.md").read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 2
    rest = {"environment": {"target": "environment:Shop"}, "reward": {"reward": "environment:reward"}}
    for block in blocks:
        validate({**rest, **tomllib.loads(block)})


def test_every_setting_has_a_description() -> None:
    sections = {name: section_class(field.annotation) for name, field in Config.model_fields.items()}
    fields = {f"{name}.{key}": field for name, one in sections.items() for key, field in one.model_fields.items()}
    assert [path for path, field in fields.items() if not field.description] == []


def test_every_rule_of_the_diagnosis_is_documented() -> None:
    text = (ROOT / "docs" / "diagnosis.md").read_text("utf-8").partition("\n## Rules")[2].partition("\n## ")[0]
    rules = re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.MULTILINE)
    assert rules == [name for name in SYMPTOMS if name != "change.judged"]  # has a section of its own


def test_every_reason_for_an_untrained_turn_is_documented() -> None:
    table = (
        (ROOT / "docs" / "files.md")
        .read_text("utf-8")
        .partition("| `untrained_reason` | the turn |")[2]
        .partition("\n\n")[0]
    )
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE) == [reason.value for reason in UntrainedReason]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [t for t in targets if t and not t.startswith("http") and not (page.parent / t).exists()] == []


def test_the_environment_of_the_readme_has_ten_lines_and_can_be_played(tmp_path: Path) -> None:
    blocks = readme_example()
    assert [name for name, _ in blocks] == ["library.py", "recipe.toml", "books.jsonl"]
    for name, content in blocks:
        (tmp_path / name).write_text(content, "utf-8")
    assert sum(bool(line.strip()) for line in blocks[0][1].splitlines()) == 10

    config = load_config(tmp_path)
    library: type[Environment] = load_object(config.environment.target, folder=tmp_path)
    reward = load_object(config.reward.reward, folder=tmp_path)
    assert config.data.train is not None
    fractions = {"validation": config.data.validation_fraction, "held_out": config.data.held_out_fraction}
    (task,) = split_tasks(read_tasks(tmp_path / config.data.train), fractions, seed=config.run.seed)["train"]

    right = played(task, library, answer("B3"))
    assert right.transitions[0]["result"] == "B3"
    assert reward(right) == 1.0
    assert reward(played(task, library, answer("B4"))) == 0.0
    # Cut after the call: the last message is the tool's, and contains B3 too.
    assert reward(played(task, library)) == 0.0


def test_the_recipe_of_the_readme_draws_no_false_warning_and_its_cost_is_known(tmp_path: Path) -> None:
    for name, content in readme_example():
        (tmp_path / name).write_text(content, "utf-8")
    report = check_recipe(tmp_path / "recipe.toml", Options())
    found = {one.rule: one for one in report.findings}
    assert {name: one.severity.value for name, one in found.items()} == {
        "reward.scorer_missing": "warning",
        "budgets.cost": "note",
    }
    # One task in a group of 8, in the only step of the only epoch. Its context holds 2048 tokens, and two turns would
    # fill it.
    assert found["budgets.cost"].evidence == {"steps": 1, "episodes": 8, "sampled_tokens_at_most": 8 * 2048}


def readme_example() -> list[tuple[str, str]]:
    text = (ROOT / "README.md").read_text("utf-8")
    return re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL)


def played(task: Task, library: type[Environment], *after: Any) -> Trajectory:
    """An episode that looks the book up and then answers `after`, or is cut there."""
    session = ScriptedSession(tool_call("find", title="Emma"), *after)
    result = asyncio.run(EnvironmentAgent(library, max_turns=1 + len(after)).play(task, session))
    assert result.outcome is (Outcome.FINISHED if after else Outcome.MAX_TURNS)
    return Trajectory(
        id="t",
        task=task,
        attempt=0,
        turns=session.turns,
        messages=result.messages,
        outcome=result.outcome,
        reward=None,
        score=None,
        transitions=result.transitions,
    )


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_well_formed(picture: Path) -> None:
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
