"""The page of several runs that differ only in their seed: curves with bands, policies with intervals, and outliers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from sparring.errors import UsageError
from sparring.evaluation.across_seeds import (
    TUNED,
    AcrossSeeds,
    OverSeeds,
    SeedRun,
    across_seeds,
    outlier_sentence,
    runs_of,
)
from sparring.evaluation.controls import Rise
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.of_run import evaluated
from sparring.evaluation.seed_intervals import interval_over_seeds, shared_tasks
from sparring.evaluation.tables import gains_table, seeds_table
from sparring.pages.chart import Chart, Line, legend, svg
from sparring.pages.html import asset, document, table, text
from sparring.run_folders.family_folder import FamilyFolder
from sparring.run_folders.stored import read_metrics
from sparring.runtime.private_files import write_private
from sparring.runtime.redaction import mask_secrets
from sparring.types import Json

LEAST_IN_BAND = 3
"""The smallest number of seeds for a band. An interval over two seeds would be too wide to be useful."""
CURVES = (
    ("Training reward", "The mean over the step's episodes.", "rollout/reward/mean", False),
    ("Independent score", "Measured on the same episodes. If only the reward rises, the policy exploits the reward.",
     "rollout/score/mean", False),
    ("Groups to learn from", "The share of groups whose episodes did not all get the same reward.",
     "analysis/batch_valid_ratio", True),
    ("Turns per episode", "Policy calls.", "rollout/turns/mean", False),
    ("Entropy", "In nats, over trained tokens.", "training/entropy", False),
    ("Gradient norm", "Before clipping.", "training/grad_norm", False),
    ("Distance from the policy that sampled", "KL estimate k3.", "training/kl_k3", False),
    ("Seconds per step", "Rollouts and learning.", "timing_s/step", False),
)  # fmt: skip
WIDTH, LEFT, RIGHT, ROW = 760, 190, 20, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyReport:
    """The path of the written page, and its headline."""

    path: Path
    family: AcrossSeeds
    num_bytes: int

    def as_json(self) -> dict[str, Json]:
        """Return the content as JSON data."""
        return {"path": str(self.path), "bytes": self.num_bytes, **self.family.as_json()}


class _Curves:
    """The metrics of each started run over its steps."""

    def __init__(self, family: AcrossSeeds) -> None:
        self.seeds = [one for one in family.seeds if one.run is not None]
        self._outlier = None if family.outlier is None else family.outlier.seed

    @cached_property
    def _metrics(self) -> dict[int, Mapping[int, Mapping[str, float]]]:
        files = {one.seed: one.run.path / "metrics.jsonl" for one in self.seeds if one.run is not None}
        return {seed: read_metrics(path)[0] for seed, path in files.items() if path.is_file()}

    def charts(self) -> Iterator[Chart]:
        """Yield the charts for which at least one run has numbers."""
        validations = {one.seed: evaluated(one.run).validations for one in self.seeds if one.run is not None}
        success = {seed: {step: one.success.mean for step, one in found.items()} for seed, found in validations.items()}
        known = [(("Validation success", "Of validation tasks.", True), success)]
        for title, meaning, metric, is_share in CURVES:
            known.append(
                (
                    (title, meaning, is_share),
                    {seed: _series(metrics, metric) for seed, metrics in self._metrics.items()},
                )
            )
        for (title, meaning, is_share), by_seed in known:
            drawn = {seed: points for seed, points in by_seed.items() if points}
            if drawn:
                yield Chart(
                    title=title, meaning=meaning, lines=tuple(self._lines(drawn, is_share=is_share)), is_share=is_share
                )

    def _lines(self, by_seed: Mapping[int, Mapping[int, float]], *, is_share: bool) -> Iterator[Line]:
        """Yield one line per seed, then the mean with its band over the steps for which all seeds have a value."""
        for seed, points in by_seed.items():
            is_outlier = seed == self._outlier
            yield Line(
                name=f"seed {seed}" + (", outlier" if is_outlier else ""),
                points=list(points.items()),
                style="outlier" if is_outlier else "seed",
            )
        if len(by_seed) < 2:
            return
        steps = sorted(set.intersection(*(set(points) for points in by_seed.values())))
        values = {step: [points[step] for points in by_seed.values()] for step in steps}
        least, most = (0.0, 1.0) if is_share else (-math.inf, math.inf)
        bands = {step: interval_over_seeds(values[step], least=least, most=most) for step in steps}
        band = [(step, one.low, one.high) for step, one in bands.items() if one is not None]
        if steps:
            points = [(step, fmean(values[step])) for step in steps]
            yield Line(name="mean", points=points, band=band if len(by_seed) >= LEAST_IN_BAND else ())


def write_family_report(path: Path, out: Path | None = None) -> FamilyReport:
    """Write the page to `out`, or by default to `report.html` in the family's folder.

    Raises DataError if the folder is not a family or is damaged, and UsageError if the page cannot be written.
    """
    folder = FamilyFolder(path)
    family = across_seeds(*runs_of([str(path)]))
    target = out or path / "report.html"
    content = _page(folder, family, target).encode()
    try:
        if out is None:
            write_private(target, content)
        else:  # the user may have chosen a place for others
            target.write_bytes(content)
    except OSError as error:
        raise UsageError(f"--out {target} cannot be written: {error}; specify a file in a writable folder.") from error
    return FamilyReport(path=target, family=family, num_bytes=len(content))


def _page(folder: FamilyFolder, family: AcrossSeeds, target: Path) -> str:
    body = [_head(folder, family), _verdict(family), _policies(family), _seeds(family, target), _curves(family)]
    whole = document(
        f"{folder.path.resolve().name} · sparring report of a family",
        "\n".join(body),
        styles=[asset("sparring.report", "report.css")],
    )
    return mask_secrets(whole, text)


def _head(folder: FamilyFolder, family: AcrossSeeds) -> str:
    facts = {
        "Recipe": folder.origin.recipe,
        "Seeds": ", ".join(str(one.seed) for one in family.seeds),
        "Completed": f"{len(family.finished)} of {len(family.seeds)}",
        "Evaluated on": family.setting,
    }
    shown = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    return f'<header><h1>{text(folder.path.resolve().name)}</h1><dl class="facts">{shown}</dl></header>'


def _verdict(family: AcrossSeeds) -> str:
    is_whole = len(family.finished) == len(family.seeds)
    kind = {Rise.ROSE: "good", Rise.FELL: "bad"}.get(family.claim.rise, "unknown")
    kind = "doubt" if kind == "good" and (family.outlier is not None or not is_whole) else kind
    lines = [outlier_sentence(family), *family.claim.limits, *family.notes]
    limits = "".join(f"<li>{text(line)}</li>" for line in lines if line)
    return f"""<section class="verdict {kind}" aria-labelledby="headline">
<h2 id="headline">{text(family.claim.headline)}</h2>
<ul>{limits}</ul></section>"""


def _policies(family: AcrossSeeds) -> str:
    if not family.policies:
        return '<section id="policies"><h2>Policies</h2><p>No seed has a result yet.</p></section>'
    tables = "".join(table(*one) for one in (seeds_table(family), gains_table(family)) if one is not None)
    return f"""<section id="policies"><h2>Policies</h2>
<p>Success on {text(family.setting)}. Each dot is a seed{"; the diamond is the outlier" if family.outlier else ""}. The thick line
is the 95 % interval of the mean for other seeds on these tasks; the thin line is the interval for other seeds on other tasks.</p>
{_drawn(family)}{_by_task(family)}{tables}</section>"""


def _drawn(family: AcrossSeeds) -> str:
    """Draw the chart with one row per policy."""
    height = ROW * len(family.policies) + 30

    def x(value: float) -> float:
        return LEFT + value * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="4" y2="{height - 24}"/>'
        f'<text x="{x(tick):.1f}" y="{height - 8}" text-anchor="middle">{tick:g}</text>'
        for tick in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    for place, (name, over) in enumerate(family.policies.items()):
        middle = 4 + ROW * (place + 0.5)
        parts.append(f'<text x="{LEFT - 10}" y="{middle + 4:.1f}" text-anchor="end">{text(name)}</text>')
        parts += _intervals(over, x, middle)
        for one in family.finished:
            if name in one.evaluations:
                is_outlier = family.outlier is not None and family.outlier.seed == one.seed
                parts.append(_dot(one, one.evaluations[name], x, middle, is_outlier=is_outlier))
    spoken = "; ".join(f"{name} {over.mean:.2f}" for name, over in family.policies.items())
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{text(spoken)}">{"".join(parts)}</svg>'


def _intervals(over: OverSeeds, x: Callable[[float], float], middle: float) -> Iterator[str]:
    for found, kind in ((over.seeds_and_tasks, "both"), (over.seeds, "over")):
        if found is not None:
            title = f"95 % {found.low:.2f} to {found.high:.2f}"
            yield (
                f'<line class="{kind}" x1="{x(found.low):.1f}" x2="{x(found.high):.1f}" y1="{middle:.1f}" y2="{middle:.1f}">'
                f"<title>{title}</title></line>"
            )
    yield f'<line class="middle" x1="{x(over.mean):.1f}" x2="{x(over.mean):.1f}" y1="{middle - 9:.1f}" y2="{middle + 9:.1f}"/>'


def _dot(one: SeedRun, played: Evaluation, x: Callable[[float], float], middle: float, *, is_outlier: bool) -> str:
    success = played.success
    title = (
        f"<title>seed {one.seed}: {success.mean:.2f}, over its tasks {success.low:.2f} to {success.high:.2f}</title>"
    )
    at = x(success.mean)
    if is_outlier:
        return f'<path class="outlier" d="M{at:.1f} {middle - 6:.1f}l6 6l-6 6l-6 -6z">{title}</path>'
    return f'<circle class="seed" cx="{at:.1f}" cy="{middle:.1f}" r="4">{title}</circle>'


def _by_task(family: AcrossSeeds) -> str:
    """Describe for how many tasks the result depends on the seed."""
    played = [one.evaluations[TUNED] for one in family.finished if TUNED in one.evaluations]
    rates = [dict(zip(one.task_ids, map(float, one.rates), strict=True)) for one in played]
    shared = shared_tasks(rates) if len(rates) > 1 else []
    if not shared:
        return ""
    always = sum(all(one[task] == 1.0 for one in rates) for task in shared)
    never = sum(all(one[task] == 0.0 for one in rates) for task in shared)
    return (
        f"<p>Of {len(shared)} tasks that all seeds ran, tuned solved {always} in every episode with every seed, and "
        f"{never} with no seed; {len(shared) - always - never} are in between.</p>"
    )


def _seeds(family: AcrossSeeds, target: Path) -> str:
    rows = "".join(
        f"<tr><td>{one.seed}</td><td>{_link(one, target)}</td><td>{text(one.status)}, step {one.step}</td>"
        f"<td>{text(one.reason or (one.claim.headline if one.claim else ''))}</td></tr>"
        for one in family.seeds
    )
    return (
        '<section id="seeds"><h2>Seeds</h2><table><tr><th>seed</th><th>run</th><th>status</th><th>its own result</th></tr>'
        f"{rows}</table></section>"
    )


def _link(one: SeedRun, target: Path) -> str:
    """Return a link to the run's own page if that page exists."""
    if one.run is None:
        return ""
    page = one.run.path / "report.html"
    name = text(one.run.path.name)
    if not page.is_file():
        return name
    return f'<a href="{text(Path(os.path.relpath(page, target.parent)).as_posix())}">{name}</a>'


def _curves(family: AcrossSeeds) -> str:
    drawn = "\n".join(
        f"<figure><figcaption><b>{text(chart.title)}</b><br>{legend(chart)}</figcaption>{svg(chart)}"
        f'<p class="faint">{text(chart.meaning)}</p></figure>'
        for chart in _Curves(family).charts()
    )
    what = "The thick line is the mean over seeds, where every seed has a value. From three seeds on, it has a 95 % interval."
    return (
        f'<section id="curves"><h2>Curves</h2><p>{what}</p><div class="charts">{drawn}</div></section>'
        if drawn
        else '<section id="curves"><h2>Curves</h2><p>No step was logged.</p></section>'
    )


def _series(metrics: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
    found = {step: numbers.get(name) for step, numbers in metrics.items()}
    return {step: value for step, value in found.items() if value is not None and math.isfinite(value)}
