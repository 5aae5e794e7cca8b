"""Run: the numbers, episodes and curves of a stored run or a run in progress, for scripts and notebooks."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from sparring.errors import DataError, ServiceError, UsageError
from sparring.evaluation.of_run import evaluated
from sparring.evaluation.tables import result_table
from sparring.findings import Finding
from sparring.pages.chart import STYLES, Chart, Line, Mark, picture
from sparring.pages.html import table, text
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import parse_trajectory, read_metrics, read_rows
from sparring.tracking.console import STEP_NUMBERS
from sparring.types import Json, Trajectory

if TYPE_CHECKING:
    from pandas import DataFrame

SHORT_NAMES = {label: metric for label, metric, _ in STEP_NUMBERS}
"""The metrics that `plot` also accepts by the label that a training prints for them, such as `reward`."""
_SPLITS = ("train", "validation", "held_out")


@final
class Plot:
    """A chart. Notebooks show it, and `save` writes it as SVG."""

    def __init__(self, chart: Chart) -> None:
        self.svg = picture(chart)
        self._title = chart.title

    def __repr__(self) -> str:
        return f"<Plot {self._title}>"

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the chart to an .svg file and return its path. Raises UsageError for another suffix."""
        path = Path(path)
        if path.suffix != ".svg":
            raise UsageError(
                f"{path} is not an .svg file, but a plot is written as SVG; name it {path.with_suffix('.svg')}, or draw "
                "`run.metrics()` with the library of your choice."
            )
        path.write_text(self.svg, "utf-8")
        return path


@final
class Run:
    """The content of a run folder, read anew by each call, also while the run trains. No model is loaded.

        run = Run("runs/shop-001")
        run.metrics()["rollout/reward/mean"]
        run.episodes(split="train", steps=[20]).query("score < 1")
        run.plot("reward", "score").save("reward.svg")

    `metrics` and `episodes` need pandas: `pip install 'sparring[frames]'`.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises DataError if `path` is not a run folder, or if a newer version wrote it."""
        self._folder = RunFolder(Path(path))
        self._folder.manifest()

    @property
    def path(self) -> Path:
        return self._folder.path

    def status(self) -> Mapping[str, Any]:
        """Return the status of the run: `status`, `step`, `reason` and others."""
        return self._folder.status()

    def metrics(self) -> DataFrame:
        """Return the metrics of the run: a row for each step and a column for each name. For a repeated step, these are
        the last values. Raises ServiceError without pandas."""
        pandas = _pandas()
        by_step = self._metrics()
        frame = pandas.DataFrame.from_dict(by_step, orient="index").reindex(list(by_step))
        return frame.rename_axis("step")

    def episodes(self, split: str | None = None, steps: Collection[int] | None = None) -> DataFrame:
        """Return the episodes of the run, a row for each, without their tokens.

        `split` is `train`, `validation` or `held_out`, and None all of them. `steps` selects steps. For `held_out`, the
        step is the number of the evaluation. Raises UsageError for another split, DataError if a file is damaged, and
        ServiceError without pandas.
        """
        if split is not None and split not in _SPLITS:
            raise UsageError(f"split is {split!r}; choose from {', '.join(_SPLITS)}, or leave it out.")
        pandas = _pandas()
        splits = _SPLITS if split is None else (split,)
        rows = [_row(name, step, one) for name, step, one in _stored(self.path, splits, steps)]
        return pandas.DataFrame(rows, columns=None if rows else [*_FIXED])

    def plot(self, *names: str) -> Plot:
        """Return the curves of up to five metrics over the steps, with marks at findings and resumed steps.

        A name is that of a metric (`val/score/mean`), a label that a training prints (`reward`, `score`, `loss`, `kl`), or
        the start of several names (`rollout/outcome/`). Without names, these are reward and score. Raises DataError if
        the run has no such metric, and UsageError if there are too many.
        """
        by_step = self._metrics()
        known = sorted({name for metrics in by_step.values() for name in metrics})
        found = list(dict.fromkeys(metric for name in names or ("reward", "score") for metric in _find(name, known)))
        if len(found) > len(STYLES):
            raise UsageError(f"these are {len(found)} metrics, but a plot shows {len(STYLES)}: {', '.join(found)}.")
        labels = {metric: label for label, metric in SHORT_NAMES.items()}
        lines = [Line(name=labels.get(metric, metric), points=_points(by_step, metric)) for metric in found]
        lines = [line for line in lines if line.points]
        if not lines:
            raise DataError(f"{self.path} has no number for {', '.join(found)} yet; wait for the next step.")
        title = f"{self.path.resolve().name}: {', '.join(line.name for line in lines)}"
        return Plot(Chart(title=title, meaning="", lines=tuple(lines), marks=tuple(self._marks())))

    def __repr__(self) -> str:
        """Return the status and the newest reward and score."""
        return f"<Run {self.path}: {self._headline()}>"

    def _repr_html_(self) -> str:
        """Return the status, the evaluations and the curves as markup, which notebooks show."""
        parts = [f"<p>{text(self.path)}: {text(self._headline())}</p>"]
        evaluations = evaluated(self._folder)
        if evaluations.held_out is not None:
            parts.append(evaluations.held_out._repr_html_())
        elif evaluations.validations:
            parts.append(table(*result_table(list(evaluations.validations.values()), title="validation")))
        if any(SHORT_NAMES["reward"] in metrics for metrics in self._metrics().values()):
            parts.append(self.plot()._repr_html_())
        return "".join(parts)

    def _headline(self) -> str:
        status = self.status()
        by_step = self._metrics()
        numbers = []
        for label in ("reward", "score"):
            if points := _points(by_step, SHORT_NAMES[label]):
                numbers.append(f"{label} {points[-1][1]:.3f}")
        return ", ".join([f"{status.get('status', 'unknown')} after step {max(by_step, default=0)}", *numbers])

    def _metrics(self) -> dict[int, dict[str, float]]:
        path = self.path / "metrics.jsonl"
        return read_metrics(path)[0] if path.is_file() else {}

    def _marks(self) -> Iterator[Mark]:
        path = self.path / "metrics.jsonl"
        for step in read_metrics(path)[1] if path.is_file() else ():
            yield Mark(step, "R", "change", f"the run was resumed after step {step}")
        path = self.path / "findings.jsonl"
        for _, row in read_rows(path, is_growing=True) if path.is_file() else ():
            finding = Finding.from_json(row)
            if finding.step is not None:
                title = f"{finding.rule} after step {finding.step}: {finding.symptom}"
                yield Mark(finding.step, "F", finding.severity.value, title)


_FIXED = (
    "split", "step", "id", "task", "attempt", "outcome", "reward", "score", "turns", "prompt_tokens", "sampled_tokens",
    "seconds", "error", "messages",
)  # fmt: skip
"""The columns that every frame of episodes has. Rewards by component and scores by part follow."""


def _row(split: str, step: int, one: Trajectory) -> dict[str, Json]:
    components = {} if one.reward is None else one.reward.components
    fixed = (
        split, step, one.id, one.task.id, one.attempt, str(one.outcome), None if one.reward is None else one.reward.total,
        one.score, len(one.turns), sum(turn.num_prompt_tokens for turn in one.turns), one.num_sampled_tokens, one.seconds,
        one.error, list(one.messages),
    )  # fmt: skip
    return {
        **dict(zip(_FIXED, fixed, strict=True)),
        **{f"reward/{name}": value for name, value in components.items()},
        **{f"score/{name}": value for name, value in one.score_parts.items()},
    }


def _stored(run: Path, splits: Sequence[str], steps: Collection[int] | None) -> Iterator[tuple[str, int, Trajectory]]:
    """Yield the split, the step and the episode of each stored episode, in order, without the environment's log."""
    files = [(path, *path.stem.rpartition("-")[::2]) for path in (run / "trajectories").glob("*-*.jsonl")]
    known = [
        (splits.index(split), int(step), path) for path, split, step in files if split in splits and step.isdigit()
    ]
    for place, step, path in sorted(known):
        if steps is None or step in steps:
            for where, row in read_rows(path):
                yield splits[place], step, parse_trajectory(row, (), where)


def _find(name: str, known: Collection[str]) -> list[str]:
    """Return the metrics that a name stands for. Raises DataError if there are none."""
    name = SHORT_NAMES.get(name, name)
    found = [name] if name in known else [one for one in known if one.startswith(f"{name.rstrip('/')}/")]
    if found:
        return found
    near = difflib.get_close_matches(name, [*SHORT_NAMES, *known], n=3)
    near += [one for one in known if name in one and one not in near][: 3 - len(near)]
    hint = f"the nearest are {', '.join(near)}" if near else "docs/metrics.md lists all metrics"
    raise DataError(f"the run has no metric {name!r}; {hint}. The columns of `run.metrics()` are all that it has.")


def _points(by_step: Mapping[int, Mapping[str, float]], metric: str) -> list[tuple[int, float]]:
    values = ((step, metrics.get(metric)) for step, metrics in by_step.items())
    return [(step, value) for step, value in values if value is not None and math.isfinite(value)]


def _pandas() -> Any:
    try:
        import pandas  # optional, and it takes a second
    except ImportError:
        raise ServiceError(
            "data frames need pandas, which is not installed. Install it with `pip install 'sparring[frames]'`, or read "
            "metrics.jsonl and trajectories/*.jsonl of the run folder."
        ) from None
    return pandas
