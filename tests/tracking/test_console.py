"""The console: bars on a terminal, plain lines elsewhere, results apart from progress."""

import io
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from sparring.tracking import Console
from sparring.tracking.refused import refused_reasons
from tests.tracking.builders import GROUP

STEP = {
    "rollout/reward/mean": 0.25,
    "rollout/score/mean": 0.5,
    "rollout/turns/mean": 3.0,
    "analysis/batch_valid_ratio": 0.75,
    "training/loss": -0.01234,
    "timing_s/step": 12.34,
}


@dataclass
class Interval:
    mean: float
    low: float
    high: float


@dataclass
class Agreed:
    share = 0.5


@dataclass
class Evaluated:
    name = "step 0"
    setting = "greedy"
    agreement = Agreed()
    task_ids = ("a", "b")
    score = Interval(0.5, 0.25, 0.75)
    success = Interval(0.5, 0.0, 1.0)
    rewards = (0.0, 1.0)
    seconds = 2.0


def console(*, terminal: bool = False, quiet: bool = False) -> tuple[Console, io.StringIO, io.StringIO]:
    progress, results = io.StringIO(), io.StringIO()
    made = Console(
        quiet,
        progress=RichConsole(file=progress, force_terminal=terminal, width=150, highlight=False),
        results=RichConsole(file=results, force_terminal=False, width=100),
    )
    return made, progress, results


def play(shown: Console) -> None:
    """What a trainer does: load, train two steps, validate inside, finish."""
    with shown.phase("loading"):
        pass
    with shown.training(2, start=0, episodes=2):
        for step in (1, 2):
            shown.doing("waits for episodes")
            shown.group_played(GROUP)
            time.sleep(0.15)  # bars are drawn ten times a second
            shown.log_metrics(step, STEP)
        with shown.steps("validation: step 2", 1) as progress:
            progress({"training/loss": 0.5})
        shown.log_metrics(2, {"val/score/mean": 1.0})
        shown.evaluated(Evaluated())
    shown.finished(Path("runs/x"), "completed", 2)


def test_without_a_terminal_every_step_is_one_plain_line() -> None:
    shown, progress, _ = console()
    play(shown)
    lines = progress.getvalue().splitlines()
    assert lines[1].startswith(
        "step 1/2  reward 0.250  score 0.500  turns 3.0  valid groups 75%  loss -0.0123  s 12.3  ("
    )
    assert lines[1].endswith("s left)")
    assert sum(line.startswith("step 2/2") for line in lines) == 1
    evaluation = "success 0.50 [0.00, 1.00]  score 0.50 [0.25, 0.75]  reward 0.500  reward agrees with scorer on 50%"
    assert f"step 0 (greedy): {evaluation}  (2 tasks, 2.0 s)" in lines
    assert lines[-1] == "completed after step 2; everything is in runs/x"
    assert "\x1b" not in progress.getvalue()


def test_on_a_terminal_bars_show_steps_and_episodes_and_are_gone_afterwards() -> None:
    shown, progress, _ = console(terminal=True)
    play(shown)
    text = progress.getvalue()
    assert "training, waits for episodes" in text
    assert "reward 0.250" in text
    # The cursor is hidden while bars live, and shown again.
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_how_old_tokens_are_is_shown_where_rollouts_run_ahead() -> None:
    shown, progress, _ = console()
    with shown.training(2, start=0, episodes=2):
        shown.log_metrics(1, {**STEP, "training/staleness_max": 0.0})
        shown.log_metrics(2, {**STEP, "training/staleness_max": 2.0})
    synchronous, ahead = progress.getvalue().splitlines()
    assert "stale" not in synchronous
    assert "stale by 2 at most" in ahead


def test_a_step_whose_turns_may_not_be_trained_is_not_one_without_signal() -> None:
    shown, progress, _ = console()
    idle = {**STEP, "training/steps_without_signal": 1.0}
    shown.log_metrics(1, {**idle, "analysis/batch_valid_ratio": 0.0})
    shown.log_metrics(2, {**idle, "analysis/batch_valid_ratio": 0.5})
    silent, untrained = progress.getvalue().splitlines()
    assert silent.endswith("no group had a signal")
    assert untrained.endswith("no turn could be trained on")


def test_quiet_shows_no_progress_but_tables() -> None:
    shown, progress, results = console(quiet=True)
    play(shown)
    shown.table("a [title]", ["name", "value"], [["[bold]x", 0.12345]])
    assert progress.getvalue() == ""
    assert "[bold]x" in results.getvalue()
    assert "0.123" in results.getvalue()
    assert "a [title]" in results.getvalue()


def test_long_steps_say_how_long_is_left() -> None:
    shown, progress, _ = console()
    with shown.steps("warm start", 10) as advance:
        for _ in range(10):
            advance({"training/loss": 1.0})
    lines = progress.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines[:-1]] == [f"warm start: {n}/10 loss 1.0000" for n in (2, 4, 6, 8)]
    assert lines[-1].startswith("warm start: 10 in ")


def test_slow_steps_print_a_line_before_a_fifth_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    shown, progress, _ = console()
    with shown.steps("warm start", 100) as advance:
        for _ in range(4):
            advance({})
    lines = progress.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines[:-1]] == ["warm start: 2/100", "warm start: 4/100"]


def test_a_correction_that_leaves_little_of_stale_tokens_is_warned_of_once() -> None:
    shown, progress, _ = console()
    left = {
        "training/staleness_max": 2.0,
        "training/correction/weight": 0.18,
        "training/correction/changed_fraction": 0.82,
    }
    shown.log_metrics(1, STEP | left | {"training/correction/weight": 0.9})
    assert "warning" not in progress.getvalue()
    shown.log_metrics(2, STEP | left)
    shown.log_metrics(3, STEP | left)
    output = " ".join(progress.getvalue().split())
    assert (
        output.count(
            "warning: the correction for stale tokens leaves 18% of their weight and changes the weight of 82% of them"
        )
        == 1
    )


def test_histories_that_do_not_go_on_are_warned_of_once_with_the_reason() -> None:
    shown, progress, _ = console()
    breaks = {"rollout/branches": 1.5, "rollout/breaks/edited_history": 0.2, "rollout/breaks/tools_changed": 0.05}
    shown.log_metrics(1, STEP | {"rollout/branches": 1.2})
    assert "warning" not in progress.getvalue()
    for step in (2, 3):
        shown.log_metrics(step, STEP | breaks)
    text = " ".join(progress.getvalue().split())
    assert text.count("warning: an episode gives 1.5 sequences") == 1
    assert "edited_history 20% of turns, tools_changed 5% of turns" in text


def test_requests_that_the_gateway_refuses_are_shown_with_the_step_and_each_reason_once() -> None:
    shown, progress, _ = console()
    refused = {"rollout/refused_requests": 3.0, "rollout/refused/unknown_parameter.depth": 3.0}
    with shown.training(3):
        shown.metrics(1, {**STEP, **refused})
        shown.metrics(2, {**STEP, **refused})
        shown.metrics(3, {**STEP, **refused, "rollout/refused/invalid_json": 1.0})
    text = progress.getvalue()
    assert text.count("3 requests refused") == 3
    assert text.count("refused requests of the agent's client: unknown_parameter.depth") == 1
    assert text.count("refused requests of the agent's client: invalid_json") == 1


def test_refused_requests_of_a_step_and_its_validation_are_added_up() -> None:
    metrics = {"rollout/refused/a": 12.0, "val/refused/a": 1.0, "val/refused/b": 14.0, "val/refused_requests": 15.0}
    assert refused_reasons(metrics) == {"b": 14, "a": 13}


def test_the_title_of_a_table_in_a_file_is_one_line() -> None:
    title = "findings on /home/someone/recipes/a/very/long/path/recipe.toml [x]"
    results = io.StringIO()
    Console(results=RichConsole(file=results, force_terminal=False, width=30)).table(title, ["a"], [["b"]])
    assert results.getvalue().splitlines()[0] == title


def test_a_table_in_a_file_breaks_no_word_and_one_on_a_terminal_fits() -> None:
    columns, rows = (
        ["groups_with_signal_a_step", "what"],
        [["completion", "several words " * 4], ["inverted", "episodes"]],
    )
    words = {"groups_with_signal_a_step", "completion", "inverted", "episodes", "several", "words", "what"}
    for terminal in (False, True):
        results = io.StringIO()
        Console(results=RichConsole(file=results, force_terminal=terminal, width=30)).table("t", columns, rows)
        lines = results.getvalue().splitlines()
        assert (words <= set(results.getvalue().split())) is not terminal
        # Longest words of 25 and 8 characters, 40 more for the lines, three borders, and four spaces.
        assert max(map(len, (re.sub(r"\x1b.*?m", "", line) for line in lines))) == (30 if terminal else 25 + 8 + 40 + 7)
