"""`sparring eval`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.cli.command import Json, Overrides, Prices, app, print_json, reported, run_path, say
from sparring.cli.seeds import evaluate_family
from sparring.cli.tables import show_evaluations
from sparring.errors import UsageError
from sparring.prices import read_prices
from sparring.tracking import Console, RunFolder

if TYPE_CHECKING:
    from sparring.evaluation.report import EvaluationReport


@app.command("eval")
@reported
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, its name in `runs/`, or a recipe.")],
    overrides: Overrides = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="Who plays; may be repeated: base, warm_start, "
            "warm_start_continued (imitation for as long as RL), tuned, @STEP, RUN or RUN@STEP, expert, constant:TEXT, "
            "script:MODULE:FUNCTION, openai:MODEL@URL. By default base, warm start and tuned.",
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(metavar="T", help="May be repeated; by default greedy (0) and as the recipe serves."),
    ] = None,
    key_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Environment variable with the key of openai:MODEL@URL.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of a recipe: name of the run folder that is made; it must be new.")
    ] = None,
    base: Annotated[bool, typer.Option(help="Also play the policies that the run started from.")] = True,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run's interrupted evaluation.")] = False,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Judge stored episodes anew by --scorer; nothing is played.")
    ] = False,
    scorer: Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="With --rescore: who judges.")] = None,
    episodes: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --rescore: validation-10, say; by default the newest held out."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show evaluations of several RUN, RUN@STEP or files side by side.")
    ] = False,
    across: Annotated[
        bool,
        typer.Option(
            "--across",
            help="Of a family of runs, or of several RUN that differ in their seed: play what is missing, and show all.",
        ),
    ] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="With --compare: where the picture goes.")] = None,
    price: Prices = None,
    as_json: Json = False,
) -> None:
    """Play a run's held-out tasks with its policies and others, and compare them task by task.

    With engine.type=openai or =scripted an endpoint or a script plays them, also those of a recipe that was not trained.
    """
    changes, prices = list(overrides or []), read_prices(price or ())
    playing = {
        "--policy": policy,
        "--temperature": temperature,
        "--key-env": key_env,
        "--resume": resume or None,
        "--name": name,
    }
    playing |= {"--no-base": None if base else True}
    if across:
        _refuse_beside_across({
            **{option: value for option, value in playing.items() if option not in ("--policy", "--temperature")},
            "--scorer": scorer,
            "--episodes": episodes, "--plot": plot, "--rescore": rescore or None, "--compare": compare or None,
        })  # fmt: skip
        if settings := [one for one in changes if "=" in one]:
            raise UsageError(
                f"--across plays each run as its own recipe says, so {settings[0]!r} has no place; leave it out."
            )
        evaluate_family([run, *changes], policies=policy, temperatures=temperature, as_json=as_json)
        return
    judging, comparing = {"--scorer": scorer, "--episodes": episodes}, {"--plot": plot}
    if rescore and compare:
        raise UsageError("--rescore judges episodes and --compare shows evaluations; give one of them.")
    mode = "--rescore" if rescore else "--compare" if compare else "an evaluation that plays"
    unread = (playing if rescore or compare else {}) | ({} if rescore else judging) | ({} if compare else comparing)
    for option, value in unread.items():
        if value is not None:
            raise UsageError(f"{mode} does not read {option}; leave it out.")
    if compare:
        _compare_runs([run, *changes], plot or Path("comparison.svg"), as_json)
    elif rescore:
        _rescore(RunFolder(run_path(Path(run))), changes, scorer, episodes, prices, as_json)
    else:
        if not base and policy is not None:
            raise UsageError("--no-base leaves policies out and --policy names them all; give one of the two.")
        if name is not None:
            if RunFolder.is_run(run_path(Path(run))):
                raise UsageError(
                    f"--name names the run folder that is made of a recipe, but {run} is a run; leave it out."
                )
            changes.append(f"run.name={json.dumps(name)}")
        from sparring.evaluation.losses import refuse_lost
        from sparring.evaluator import MultiTurnRLEvaluator

        evaluator = MultiTurnRLEvaluator(
            run, overrides=changes, evaluate_base_model=base, policies=policy, temperatures=temperature,
            api_key_env=key_env, resume=resume, quiet=as_json,
        )  # fmt: skip
        report = evaluator.evaluate()
        _show_report(report, prices or evaluator.config.tracking.prices, as_json)
        refuse_lost(report, evaluator.config.rollout.max_lost_share)


def _refuse_beside_across(options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"--across does not read {option}; leave it out.")


def _rescore(
    folder: RunFolder, changes: Sequence[str], scorer: str | None, episodes: str | None, prices: Mapping[str, float],
    as_json: bool,
) -> None:  # fmt: skip
    if scorer is None:
        raise UsageError("--rescore needs who judges; name a function with --scorer MODULE:NAME.")
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
            f"--plot {picture} cannot be written: {error}; name a file in a folder to write in."
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
    title = "held-out tasks" if report.rescored is None else f"{report.rescored['episodes']}, judged anew"
    show_evaluations(report.evaluations, report.comparisons, title=title)
    for line in claim.lines():
        say(line)
    for endpoint in report.endpoints:
        say(endpoint.summary(prices))
    say(f"every task is in {path}")
