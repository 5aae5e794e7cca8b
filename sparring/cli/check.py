"""`sparring check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.cli.command import (
    Json,
    On,
    Overrides,
    app,
    print_json,
    read_place_overrides,
    report_failures,
    resolve_run,
    say,
)
from sparring.cli.tables import format_evidence
from sparring.errors import GateError
from sparring.metering.usage import EndpointUsage
from sparring.tracking import Console

if TYPE_CHECKING:
    from sparring.checks.running.check_report import CheckReport
    from sparring.checks.running.run import Options


Page = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the findings as a page.")]
LoadModel = Annotated[bool, typer.Option("--model", help="Load the model, run a baseline, compare weights.")]
Only = Annotated[list[str] | None, typer.Option(metavar="FAMILY", help="Only these checks; may be repeated.")]
Production = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A .jsonl sample of production logs to compare with.")
]
Schemas = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Production's tools: OpenAI, an MCP listing, or OpenAPI.")
]
References = Annotated[
    list[str] | None, typer.Option(metavar="URL#MODEL", help="An endpoint whose score to show; may be repeated.")
]
Reviewer = Annotated[
    str | None,
    typer.Option(
        metavar="URL#MODEL",
        help="A model that reviews source, tasks and episodes for defects. They are sent to it.",
    ),
]
Baseline = Annotated[
    Path | None, typer.Option(metavar="RUN", help="A run whose stored episodes count as the baseline.")
]
Minutes = Annotated[
    float, typer.Option(metavar="MINUTES", min=0.5, help="Time limit of the checks, without the model.")
]


@app.command("check")
@report_failures
def check(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe.toml, or the folder it is in.")],
    overrides: Overrides = None,
    on: On = None,
    as_json: Json = False,
    page: Page = None,
    model: LoadModel = False,
    only: Only = None,
    production: Production = None,
    schemas: Schemas = None,
    reference: References = None,
    reviewer: Reviewer = None,
    run: Baseline = None,
    minutes: Minutes = 1.0,
) -> None:
    """Check a recipe before it is trained: environment, data, prompt, reward and budgets. Exit code 5 if a finding is an
    error."""
    from sparring.checks.running.run import Options

    options = Options(
        overrides=(*read_place_overrides(on, Path(recipe), overrides or ()), *(overrides or ())),
        families=tuple(only or ()),
        model=model,
        production=production,
        schemas=schemas,
        reference=tuple(reference or ()),
        reviewer=reviewer,
        run=None if run is None else resolve_run(run),
        minutes=minutes,
    )
    _check(Path(recipe), options, page, as_json)


def _check(recipe: Path, options: Options, page: Path | None, as_json: bool) -> None:
    from sparring.checks.running.run import check_recipe, selected

    if page is not None:
        from sparring.checks.running.check_page import refuse_page

        refuse_page(page)
    console = Console(quiet=as_json)
    with console.steps("checking", len(selected(options))) as progress:
        report = check_recipe(recipe, options, on_rule=lambda _: progress({}), announce=console.announced)
    if page is not None:
        from sparring.checks.running.check_page import write_page

        write_page(report, page)
    if as_json:
        print_json(report.as_json())
    else:
        _show_findings(report)
    if report.errors:
        raise GateError(f"The checks of {report.recipe} reported errors ({len(report.errors)}); fix these first.")


def _show_findings(report: CheckReport) -> None:
    say(report.decided)
    if report.reach is not None:
        say(report.reach)
    rows = [
        [
            finding.label,
            f"{finding.rule}: {finding.symptom}\n{format_evidence(finding.evidence)}",
            finding.change,
        ]
        for finding in report.findings
    ]
    if rows:
        Console().table(f"findings on {report.recipe}", ["severity", "problem and evidence", "change"], rows)
    for reason, names in report.not_decided.items():
        say(f"not checked, because {reason}: {', '.join(names)}")
    for address, commit in report.measured.get("data_revisions", {}).items():
        say(f"data: {address} was read at commit {commit}")
    for one in report.measured.get("endpoints", ()):
        say(f"requests: {EndpointUsage.from_json(one).summary(report.measured['prices'])}")
    say(f"checked in {report.seconds:.1f} s: {report.counts}")
