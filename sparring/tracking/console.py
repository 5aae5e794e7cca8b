"""Show progress: bars with rate and remaining time on a terminal, and plain lines elsewhere.

Progress goes to standard error and results to standard output, so that `--json` output stays clean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Bar
from rich.table import Table
from rich.text import Text

from sparring.errors import ConfigProblem
from sparring.findings import Finding
from sparring.runtime.redaction import mask_secrets
from sparring.runtime.terminal import visible
from sparring.tracking.refused import refused_reasons
from sparring.types import Json, TrajectoryGroup

ProgressCallback: TypeAlias = Callable[[Mapping[str, float]], None]

LEAST_KEPT = 0.7
"""A warning is printed if the correction for stale tokens leaves a mean weight below this value."""
MOST_SEQUENCES = 1.2
"""A warning is printed if there are more sequences per episode than this number."""
SECONDS_BETWEEN_LINES = 30.0
"""Outside a terminal, progress prints a line after a fifth of the steps, or after this time."""
SPARE_WIDTH = 40
"""The characters that a table in a file has for lines of several words, in addition to the longest word of each column."""
STEP_NUMBERS = (
    ("reward", "rollout/reward/mean", "{:.3f}"),
    ("score", "rollout/score/mean", "{:.3f}"),
    ("turns", "rollout/turns/mean", "{:.1f}"),
    ("valid groups", "analysis/batch_valid_ratio", "{:.0%}"),
    ("loss", "training/loss", "{:.4f}"),
    ("kl", "training/kl_k3", "{:.2g}"),
    ("tokens", "training/total_tokens", "{:.0f}"),
    ("s", "timing_s/step", "{:.1f}"),
)
"""Label, metric and format of each field in the line of a step. Metrics that a step lacks are left out."""


class IntervalLike(Protocol):
    @property
    def mean(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


class AgreementLike(Protocol):
    @property
    def share(self) -> float | None: ...


class EvaluationLike(Protocol):
    """The fields of an evaluation that `evaluated` prints."""

    @property
    def name(self) -> str: ...

    @property
    def setting(self) -> str: ...

    @property
    def task_ids(self) -> Sequence[str]: ...

    @property
    def score(self) -> IntervalLike: ...

    @property
    def success(self) -> IntervalLike: ...

    @property
    def rewards(self) -> Sequence[float]: ...

    @property
    def agreement(self) -> AgreementLike: ...

    @property
    def seconds(self) -> float: ...


class _Rate(ProgressColumn):
    """A column with the steps per second or, if steps are slow, the seconds per step."""

    def render(self, task: Bar) -> Text:
        if not task.speed or task.total is None:
            return Text("")
        text = f"{task.speed:.1f}/s" if task.speed >= 1 else f"{1 / task.speed:.1f} s each"
        return Text(text, style="progress.data.speed")


@final
class Console:
    """A tracker that shows progress and prints one line per step. `quiet` shows only tables."""

    def __init__(
        self, quiet: bool = False, *, progress: RichConsole | None = None, results: RichConsole | None = None
    ) -> None:
        self.is_quiet = quiet
        self._has_warned_of_breaks = self._has_warned_of_correction = False
        self._refused: set[str] = set()
        """Reasons of refusals for which a warning was printed."""
        self._out = progress or RichConsole(stderr=True, highlight=False)
        self._results = results or RichConsole(highlight=False)
        self._bars: Progress | None = None
        self._training: _Training | None = None

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Show a spinner during work of unknown length."""
        start = time.monotonic()
        with self._bar(text, None):
            yield
        self._print(f"{text}: {time.monotonic() - start:.1f} s")

    @contextmanager
    def steps(self, title: str, total: int) -> Iterator[ProgressCallback]:
        """Show a bar of `total` steps.

        Each call of the yielded function advances the bar by one step and shows the latest loss, if there is one.
        """
        start, done = time.monotonic(), 0
        printed = start
        with self._bar(title, total) as bar:

            def progress(metrics: Mapping[str, float]) -> None:
                nonlocal done, printed
                done += 1
                loss = metrics.get("training/loss")
                latest = "" if loss is None else f"loss {loss:.4f}"
                self._update(bar, advance=1, latest=latest)
                now = time.monotonic()
                is_due = done % max(1, total // 5) == 0 or now - printed >= SECONDS_BETWEEN_LINES
                if not self._out.is_terminal and done < total and is_due:
                    printed = now
                    remaining = (now - start) / done * (total - done)
                    self._print(f"{title}: {done}/{total} {latest}".rstrip() + f", {remaining:.0f} s left")

            yield progress
        self._print(f"{title}: {done} in {time.monotonic() - start:.1f} s")

    @contextmanager
    def training(self, max_steps: int, *, start: int = 0, episodes: int | None = None) -> Iterator[None]:
        """Show a bar of all steps and, below it, a bar of the `episodes` that the next step trains on."""
        with self._bar("training", max_steps, completed=start) as steps, self._bar("  episodes", episodes) as played:
            self._training = _Training(steps, played, max_steps, start, episodes)
            try:
                yield
            finally:
                self._training = None

    def doing(self, what: str) -> None:
        """Show the current activity next to the training bar: waiting for episodes, or learning."""
        if self._training is not None:
            self._update(self._training.steps_bar, description=f"training, {what}")

    def group_played(self, group: TrajectoryGroup) -> None:
        if self._training is not None:
            self._training.num_played += len(group.trajectories) + group.num_lost
            self._update(self._training.episodes_bar, completed=self._training.num_played)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print one line for a training step. Validations have their own lines."""
        if "rollout/reward/mean" not in metrics:
            return
        shown = [f"{label} {pattern.format(metrics[name])}" for label, name, pattern in STEP_NUMBERS if name in metrics]
        if metrics.get("training/staleness_max"):
            shown.append(f"stale by {metrics['training/staleness_max']:.0f} at most")
        if metrics.get("training/steps_without_signal"):
            has_signal = metrics.get("analysis/batch_valid_ratio", 0) > 0
            shown.append("no turn could be trained on" if has_signal else "no group had a signal")
        self._warn_of_breaks(metrics)
        self._warn_of_correction(metrics)
        if refused := metrics.get("rollout/refused_requests"):
            shown.append(f"{refused:.0f} requests refused")
            self._warn_of_refusals(metrics)
        of, remaining = "", ""
        if (training := self._training) is not None:
            of = f"/{training.max_steps}"
            # Groups that were collected in advance belong to the next step.
            training.num_played = max(0, training.num_played - (training.num_episodes or 0))
            self._update(training.steps_bar, completed=step, latest="  ".join(shown[:2]))
            self._update(training.episodes_bar, completed=training.num_played)
            if not self._out.is_terminal and step > training.start:
                each = (time.monotonic() - training.start_time) / (step - training.start)
                remaining = f"  ({each * (training.max_steps - step):.0f} s left)"
        self._print(f"step {step}{of}  " + "  ".join(shown) + remaining)

    def _warn_of_refusals(self, metrics: Mapping[str, float]) -> None:
        """Warn once for each reason. Many clients ignore a refusal, and then it seems that the policy fails."""
        new = [reason for reason in refused_reasons(metrics) if reason not in self._refused]
        self._refused.update(new)
        if new:
            self._print(
                f"warning: the gateway refused requests of the agent's client: {', '.join(new)}. If the last request "
                "of an episode was refused, the episode is lost or is scored without an answer. See docs/gateway.md for the "
                "reasons."
            )

    def _warn_of_correction(self, metrics: Mapping[str, float]) -> None:
        """Warn once if the correction for stale tokens removes much of the sampled tokens' weight."""
        kept = metrics.get("training/correction/weight", 1.0)
        if self._has_warned_of_correction or kept >= LEAST_KEPT or not metrics.get("training/staleness_max"):
            return
        self._has_warned_of_correction = True
        self._print(
            f"warning: the correction for stale tokens leaves {kept:.0%} of their weight and changes the weight of "
            f"{metrics.get('training/correction/changed_fraction', 0.0):.0%} of them. Many sampled tokens are "
            "therefore not trained on. `sparring diagnose` suggests a change. See docs/staleness.md."
        )

    def _warn_of_breaks(self, metrics: Mapping[str, float]) -> None:
        """Warn once if an agent rewrites its history. This costs tokens and trains the policy on contexts that it never
        saw."""
        if self._has_warned_of_breaks or metrics.get("rollout/branches", 1.0) <= MOST_SEQUENCES:
            return
        self._has_warned_of_breaks = True
        prefix = "rollout/breaks/"
        reasons = {name.removeprefix(prefix): share for name, share in metrics.items() if name.startswith(prefix)}
        shown = ", ".join(
            f"{name} {share:.0%} of turns" for name, share in sorted(reasons.items(), key=lambda one: -one[1])
        )
        self._print(
            f"warning: an episode gives {metrics['rollout/branches']:.1f} sequences, because some histories do not "
            "continue the sampled "
            f"tokens: {shown}. Each sequence is computed separately. See docs/agents.md on what clients send back."
        )

    def evaluated(self, evaluation: EvaluationLike) -> None:
        rewards, share = evaluation.rewards, evaluation.agreement.share
        agrees = "" if share is None else f"  reward agrees with scorer on {share:.0%}"
        self._print(
            f"{evaluation.name} ({evaluation.setting}): success {interval(evaluation.success)}  "
            f"score {interval(evaluation.score)}  reward {sum(rewards) / len(rewards):.3f}{agrees}  "
            f"({len(evaluation.task_ids)} tasks, {evaluation.seconds:.1f} s)"
        )

    def warned(self, problems: Sequence[ConfigProblem]) -> None:
        """Print a warning for each setting of the recipe that works but is probably not intended."""
        for problem in problems:
            self._print(f"warning: {problem.key} {problem.message}")

    def found(self, finding: Finding) -> None:
        """Print a finding of the check before training, on one line."""
        self._print(f"{finding.label}: {finding.rule}: {finding.symptom} {finding.change}")

    def announced(self, text: str) -> None:
        """Print a message that the user must see while the run continues, even in quiet mode."""
        self._out.print(visible(text), markup=False, soft_wrap=True)

    def finished(self, run: Path, status: str, step: int) -> None:
        self._print(f"{status} after step {step}; everything is in {run}")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a result on standard output."""
        title, columns = visible(title), [visible(column) for column in columns]
        # A title is folded at the width of its table, also within a word.
        in_table = escape(title) if self._results.is_terminal else None
        table = Table(title=in_table, title_justify="left")
        shown = [[f"{cell:.3f}" if isinstance(cell, float) else visible(str(cell)) for cell in row] for row in rows]
        texts = [[column, *cells] for column, *cells in zip(columns, *shown, strict=True)]
        widths = self._find_widths(texts)
        for index, column in enumerate(columns):
            is_number = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
            justify = "right" if is_number else "left"
            table.add_column(escape(column), justify=justify, overflow="fold", width=widths[index])
        for row in shown:
            table.add_row(*map(escape, row))
        if in_table is None:
            self._results.print(title, markup=False, soft_wrap=True)
        self._results.print(table)

    def _find_widths(self, columns: Sequence[Sequence[str]]) -> Sequence[int | None]:
        """Return the widths of columns of a table in which no word is broken, or None for each if there is no room.

        A terminal cannot be wider than it is. A file or a pipe can, so there is always room.
        """
        borders = 3 * len(columns) + 1  # a line and two spaces for each column, and the last line
        words = [_widest(word for text in texts for word in text.split()) for texts in columns]
        lines = [_widest(line for text in texts for line in text.splitlines()) for texts in columns]
        wanted = sum(lines) - sum(words)
        if not self._results.is_terminal:
            self._results.width = max(self._results.width, borders + sum(words) + min(wanted, SPARE_WIDTH))
        spare = self._results.width - borders - sum(words)
        if spare < 0 or wanted <= 0:
            return [None] * len(columns)
        share = min(1.0, spare / wanted)
        return [word + int(share * (line - word)) for word, line in zip(words, lines, strict=True)]

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics(step, metrics)

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None:
        """Do nothing: trajectories go to files, and the console shows only their metrics."""

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        self._print("{severity}: {rule} after step {step}: {symptom} {change}".format_map(finding))

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        """Do nothing: `finished` prints the status."""

    def log_artifact(self, name: str, content: Json) -> None:
        """Do nothing: artifacts go to files."""

    def close(self) -> None:
        """Do nothing: each bar ends with its `with` block."""

    @contextmanager
    def _bar(self, title: str, total: int | None, *, completed: int = 0) -> Iterator[TaskID | None]:
        """Yield one bar in the display that all open bars share, or None if no bar is shown."""
        if self.is_quiet or not self._out.is_terminal:
            yield None
            return
        if self._bars is None:
            self._bars = _display(self._out)
            self._bars.start()
        bars = self._bars
        bar = bars.add_task(escape(visible(title)), total=total, completed=completed, latest="")
        try:
            yield bar
        finally:
            bars.remove_task(bar)
            if not bars.tasks:
                bars.stop()
                self._bars = None

    def _update(self, bar: TaskID | None, **changes: Any) -> None:
        if self._bars is not None and bar is not None:
            self._bars.update(bar, **changes)

    def _print(self, line: str) -> None:
        if not self.is_quiet:
            self._out.print(visible(mask_secrets(line)), markup=False, soft_wrap=True)


@final
class _Training:
    """The progress bars of the current training, with their counts."""

    def __init__(
        self, steps_bar: TaskID | None, episodes_bar: TaskID | None, max_steps: int, start: int, episodes: int | None
    ) -> None:
        self.steps_bar, self.episodes_bar = steps_bar, episodes_bar
        self.max_steps, self.start, self.num_episodes = max_steps, start, episodes
        self.num_played = 0
        self.start_time = time.monotonic()


def _widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def interval(value: IntervalLike) -> str:
    """Format a mean with its interval for tables and lines. Files have all digits."""
    return f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _display(console: RichConsole) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[latest]}", markup=False),
        console=console,
        transient=True,
    )
