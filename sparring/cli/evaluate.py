"""`sparring eval`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.cli.command import (
    Json,
    On,
    Overrides,
    Prices,
    app,
    print_json,
    read_place_overrides,
    report_failures,
    resolve_run,
    say,
)
from sparring.cli.seeds import evaluate_family
from sparring.cli.tables import show_evaluations
from sparring.errors import UsageError
from sparring.metering.prices import read_prices
from sparring.run_folders import RunFolder
from sparring.tracking import Console

if TYPE_CHECKING:
    from sparring.evaluation.report import EvaluationReport


Policies = Annotated[
    list[str] | None,
    typer.Option(
        metavar="POLICY",
        help="Policy to evaluate; may be repeated: base, warm_start, "
        "warm_start_continued (imitation for as long as RL), tuned, @STEP, RUN or RUN@STEP, expert, constant:TEXT, "
        "script:MODULE:FUNCTION, openai:MODEL@URL. By default base, warm start and tuned.",
    ),
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option(metavar="T", help="May be repeated; by default 0 (greedy) and the recipe's serving temperature."),
]
KeyVariable = Annotated[
    str | None, typer.Option(metavar="VAR", help="Environment variable with the key of openai:MODEL@URL.")
]
Name = Annotated[str | None, typer.Option(help="With a recipe: name of the new run folder.")]
Base = Annotated[bool, typer.Option(help="Also evaluate the policies that the run started from.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run's interrupted evaluation.")]
Rescore = Annotated[
    bool, typer.Option("--rescore", help="Score stored episodes again with --scorer; no episode is run.")
]
ScorerName = Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="With --rescore: the scorer.")]
Episodes = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="With --rescore: for example validation-10; by default the newest held-out episodes."
    ),
]
Compare = Annotated[
    bool, typer.Option("--compare", help="Show evaluations of several runs, RUN@STEP or files side by side.")
]
Across = Annotated[
    bool,
    typer.Option(
        "--across",
        help="With a family of runs, or several runs that differ only in the seed: run missing evaluations and show all.",
    ),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="With --compare: file of the picture.")]


@app.command("eval")
@report_failures
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, its name in `runs/`, or a recipe.")],
    overrides: Overrides = None,
    on: On = None,
    policy: Policies = None,
    temperature: Temperatures = None,
    key_env: KeyVariable = None,
    name: Name = None,
    base: Base = True,
    resume: Resume = False,
    rescore: Rescore = False,
    scorer: ScorerName = None,
    episodes: Episodes = None,
    compare: Compare = False,
    across: Across = False,
    plot: Plot = None,
    price: Prices = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's policies and other policies on its held-out tasks, and compare them task by task.

    With engine.type=openai or =scripted, an endpoint or a script is evaluated. This also works with a recipe that was not
    trained.
    """
    changes, prices = list(overrides or []), read_prices(price or ())
    # Which options the four ways to use this command read: evaluate, --across, --rescore, --compare.
    chosen = {"--policy": policy, "--temperature": temperature}
    evaluating = {
        "--key-env": key_env,
        "--resume": resume or None,
        "--name": name,
        "--no-base": None if base else True,
        "--on": on,
    }
    rescoring, comparing = {"--scorer": scorer, "--episodes": episodes}, {"--plot": plot}
    if across:
        modes = {"--rescore": rescore or None, "--compare": compare or None}
        _refuse_unread("--across", evaluating | rescoring | comparing | modes)
        _refuse_settings(changes)
        evaluate_family([run, *changes], policies=policy, temperatures=temperature, as_json=as_json)
        return
    if rescore and compare:
        raise UsageError("--rescore scores episodes, and --compare shows evaluations; give only one of them.")
    if compare:
        _refuse_unread("--compare", chosen | evaluating | rescoring)
        _compare_runs([run, *changes], plot or Path("comparison.svg"), as_json)
    elif rescore:
        _refuse_unread("--rescore", chosen | evaluating | comparing)
        _rescore(RunFolder(resolve_run(Path(run))), changes, scorer, episodes, prices, as_json)
    else:
        _refuse_unread("an evaluation that runs episodes", rescoring | comparing)
        if not base and policy is not None:
            raise UsageError(
                "--no-base leaves policies out, but --policy already names all policies; give only one of them."
            )
        if name is not None:
            changes.append(_name_run(run, name))
        if on is not None:
            changes = [*read_place_overrides(on, _find_recipe(run), changes), *changes]
        from sparring.evaluation.lost_episodes import refuse_lost
        from sparring.evaluator import MultiTurnRLEvaluator

        evaluator = MultiTurnRLEvaluator(
            run,
            overrides=changes,
            evaluate_base_model=base,
            policies=policy,
            temperatures=temperature,
            api_key_env=key_env,
            resume=resume,
            quiet=as_json,
        )
        report = evaluator.evaluate()
        _show_report(report, prices or evaluator.config.tracking.prices, as_json)
        refuse_lost(report, evaluator.config.rollout.max_lost_share)


def _refuse_unread(mode: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{mode} does not read {option}; leave it out.")


def _refuse_settings(changes: Sequence[str]) -> None:
    settings = [one for one in changes if "=" in one]
    if settings:
        raise UsageError(
            f"--across evaluates each run with its own recipe, so {settings[0]!r} cannot be applied; leave it out."
        )


def _find_recipe(source: str) -> Path:
    path = resolve_run(Path(source))
    return RunFolder(path).recipe if RunFolder.is_run(path) else path


def _name_run(source: str, name: str) -> str:
    if RunFolder.is_run(resolve_run(Path(source))):
        raise UsageError(
            f"--name is the run folder for a new evaluation of a recipe, but {source} is a run; leave --name out."
        )
    return f"run.name={json.dumps(name)}"


def _rescore(
    folder: RunFolder,
    changes: Sequence[str],
    scorer: str | None,
    episodes: str | None,
    prices: Mapping[str, float],
    as_json: bool,
) -> None:
    if scorer is None:
        raise UsageError("--rescore needs a scorer; specify a function with --scorer MODULE:NAME.")
    from sparring.evaluation.rescoring import rescore

    config = folder.config(changes)
    _show_report(rescore(folder, config, scorer, episodes=episodes), prices or config.tracking.prices, as_json)


def _compare_runs(sources: Sequence[str], picture: Path, as_json: bool) -> None:
    from sparring.evaluation.across_runs import across_runs
    from sparring.evaluation.plot import plot
    from sparring.evaluation.tables import across_table, notes

    compared = across_runs(sources)
    try:
        picture.write_text(plot(compared), "utf-8")
    except OSError as error:
        raise UsageError(
            f"--plot {picture} cannot be written: {error}; specify a file in a writable folder."
        ) from error
    if as_json:
        print_json({"plot": str(picture), **compared.as_json()})
        return
    Console().table(*across_table(compared.rows))
    for line in notes([row.evaluation for row in compared.rows], []):
        say(line)
    for runs, claim in compared.claims:
        say(f"{', '.join(runs)}: {' '.join(claim.lines())}")
    say(f"the picture is {picture}")


def _show_report(report: EvaluationReport, prices: Mapping[str, float], as_json: bool) -> None:
    from sparring.evaluation.of_run import claim_of_report

    here = Path.cwd()
    path = report.path.relative_to(here) if report.path.is_relative_to(here) else report.path
    claim = claim_of_report(report)
    if as_json:
        print_json({"path": str(path), **report.as_json(prices), "claim": claim.as_json()})
        return
    title = "held-out tasks" if report.rescored is None else f"{report.rescored['episodes']}, scored again"
    show_evaluations(report.evaluations, report.comparisons, title=title)
    for line in claim.lines():
        say(line)
    for endpoint in report.endpoints:
        say(endpoint.summary(prices))
    say(f"every task is in {path}")
