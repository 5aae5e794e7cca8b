"""The `sparring` command. Heavy modules are imported inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparring.config import endpoint_problems, key_from, load_config, read_recipe, resolved_view, untrainable
from sparring.errors import DataError, GateError, ServiceError, SparringError, UsageError
from sparring.findings import Severity
from sparring.tracking import Console, RunFolder, list_runs

if TYPE_CHECKING:
    from sparring.checks.report import CheckReport
    from sparring.evaluation.comparison import Comparison
    from sparring.evaluation.evaluation import Evaluation
    from sparring.evaluation.report import EvaluationReport
    from sparring.evaluation.review import Review
    from sparring.replay import Replay


INTERRUPTED = 130
"""Exit code after Ctrl-C that did not stop a training with a checkpoint, as shells count it: 128 + SIGINT."""


MOST_SHOWN = 20
"""Replayed episodes, or parts of one, that a table shows."""


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Report failures: what a user can act on by its message and exit code, a bug by the file with its traceback."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except SparringError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - the last place where it can be reported
            _report_bug(error)
            raise typer.Exit(1) from None

    return run


app = typer.Typer(
    name="sparring",
    help="Multi-turn reinforcement learning for language-model agents. Start with `sparring init FOLDER`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
runs_app = typer.Typer(help="Look at runs, or stop one.", no_args_is_help=True)
app.add_typer(runs_app, name="runs")

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document on standard output.")]
RunsDir = Annotated[Path, typer.Option(help="The folder that holds the runs.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or its name in `runs/`.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Change fields of the recipe.")
]


def main() -> None:
    """What the `sparring` script calls."""
    # The bars and deprecation warnings of the libraries that load models would drown our own lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    try:
        app()
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        # Threads may still be inside the model: to take the interpreter down under them would crash, to wait may be long.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)


@app.command()
@reported
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    as_json: Json = False,
) -> None:
    """Write a small recipe that runs, to start from."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; name a new folder.")
    try:
        with as_file(files("sparring") / "templates" / "recipe") as template:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(template, folder, dirs_exist_ok=True, ignore=ignored)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error}; name a folder that can be made.") from error
    written = sorted(str(path) for path in folder.iterdir())
    if as_json:
        _print_json({"folder": str(folder), "files": written})
        return
    _say(f"wrote {', '.join(written)}")
    _say(f"next: sparring train {folder / 'recipe.toml'}")


@app.command()
@reported
def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A recipe.toml, or the folder it is in.")
    ] = None,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run folder; it must be new.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show every setting, check what can be checked, stop.")
    ] = False,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue this run instead of a RECIPE.")] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check the recipe first, and stop when there is an error.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Train a recipe. Ctrl-C stops with a checkpoint; a second one stops at once."""
    changes = list(overrides or [])
    if resume is not None:
        if recipe is not None:
            changes.insert(0, recipe)
        _resume(_run(resume), changes, name=name, dry_run=dry_run, as_json=as_json)
        return
    if recipe is None:
        raise UsageError(
            "no recipe was given; name a recipe.toml (`sparring init FOLDER` writes one), or --resume RUN."
        )
    path = Path(recipe) / "recipe.toml" if Path(recipe).is_dir() else Path(recipe)
    if dry_run:
        _show_settings(path, changes, as_json)
    # Before torch is imported, so that a mistake in the recipe is told at once.
    config = load_config(path, changes)
    if not config.is_trainable:
        raise untrainable(config, str(path))
    from sparring.trainer import MultiTurnRLTrainer

    trainer = MultiTurnRLTrainer(path, overrides=changes, name=name, check=check, quiet=as_json)
    if dry_run:
        trainer.train(dry_run=True)
        typer.echo("recipe, environment, data and model fit together; nothing was trained.", err=True)
        return
    _report_training(trainer.train(), as_json)


@app.command("check")
@reported
def check(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe.toml, or the folder it is in.")],
    overrides: Overrides = None,
    as_json: Json = False,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the findings as a page, too.")] = None,
    model: Annotated[bool, typer.Option("--model", help="Load the model, play a baseline, compare weights.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="FAMILY", help="Only these checks; may be repeated.")
    ] = None,
    production: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .jsonl sample of production logs to compare with.")
    ] = None,
    schemas: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Production's tools: OpenAI, an MCP listing, or OpenAPI.")
    ] = None,
    reference: Annotated[
        list[str] | None, typer.Option(metavar="URL#MODEL", help="An endpoint whose score to show; may be repeated.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run whose stored episodes count as the baseline.")
    ] = None,
) -> None:
    """Look for what is wrong with a recipe before it is trained: environment, data, prompt, reward, budgets. Exit code 5
    when there is an error."""
    from sparring.checks.run import Options, check_recipe, selected

    options = Options(
        overrides=tuple(overrides or ()), families=tuple(only or ()), model=model, production=production,
        schemas=schemas, reference=tuple(reference or ()), run=None if run is None else _run(run),
    )  # fmt: skip
    if page is not None:
        from sparring.checks.page import refuse_page

        refuse_page(page)
    console = Console(quiet=as_json)
    with console.steps("checking", len(selected(options))) as progress:
        report = check_recipe(Path(recipe), options, on_rule=lambda _: progress({}))
    if page is not None:
        from sparring.checks.page import write_page

        write_page(report, page)
    if as_json:
        _print_json(report.as_json())
    else:
        _show_findings(report)
    if report.errors:
        raise GateError(
            f"{len(report.errors)} of the findings on {report.recipe} are errors; mend what they name first."
        )


@app.command("eval")
@reported
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, its name in `runs/`, or a recipe.")],
    overrides: Overrides = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="Who plays; may be repeated: base, warm_start, tuned, @STEP, RUN or RUN@STEP, expert, constant:TEXT, "
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
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="With --compare: where the picture goes.")] = None,
    as_json: Json = False,
) -> None:
    """Play a run's held-out tasks with its policies and others, and compare them task by task.

    With engine.type=openai or =scripted an endpoint or a script plays them, also those of a recipe that was not trained.
    """
    changes = list(overrides or [])
    playing = {"--policy": policy, "--temperature": temperature, "--key-env": key_env, "--resume": resume or None}
    playing |= {"--no-base": None if base else True}
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
        _rescore(RunFolder(_run(Path(run))), changes, scorer, episodes, as_json)
    else:
        if not base and policy is not None:
            raise UsageError("--no-base leaves policies out and --policy names them all; give one of the two.")
        from sparring.evaluator import MultiTurnRLEvaluator

        evaluator = MultiTurnRLEvaluator(
            run, overrides=changes, evaluate_base_model=base, policies=policy, temperatures=temperature,
            api_key_env=key_env, resume=resume, quiet=as_json,
        )  # fmt: skip
        _show_report(evaluator.evaluate(), as_json)


def _rescore(
    folder: RunFolder, changes: Sequence[str], scorer: str | None, episodes: str | None, as_json: bool
) -> None:
    if scorer is None:
        raise UsageError("--rescore needs who judges; name a function with --scorer MODULE:NAME.")
    from sparring.evaluation.rescoring import rescore

    _show_report(rescore(folder, folder.config(changes), scorer, episodes=episodes), as_json)


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
        _print_json({"plot": str(picture), **compared.as_json()})
        return
    Console().table(*across_table(compared.rows))
    for line in notes([row.evaluation for row in compared.rows], []):
        _say(line)
    _say(f"the picture is {picture}")


@app.command()
@reported
def serve(
    model: Annotated[str, typer.Argument(help="A run folder, a model by name, or a folder with model files.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[str | None, typer.Option(envvar="SPARRING_API_KEY", help="Clients must send it.")] = None,
    as_json: Json = False,
) -> None:
    """Answer OpenAI chat requests with a base or tuned model until Ctrl-C."""

    def ready(base_url: str, served_name: str) -> None:
        if as_json:
            _print_json({"base_url": base_url, "model": served_name})
        else:
            _say(f"{served_name} answers at {base_url}; Ctrl-C stops it")

    from sparring.serve import serve as serve_model

    served, run = model, _run(Path(model))
    if RunFolder.is_run(run):
        RunFolder(run).trained_config()
        served = str(run)
    try:
        serve_model(served, host=host, port=port, api_key=api_key, on_ready=ready)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)


@app.command()
@reported
def record(
    upstream: Annotated[str, typer.Option(metavar="URL", help="The endpoint to record, with its /v1.")],
    model: Annotated[str, typer.Option(help="Name of the model at the endpoint; clients may send any.")],
    key_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Environment variable that holds the endpoint's key.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; by default runs/recorded-001 and so on.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    as_json: Json = False,
) -> None:
    """Stand in front of an OpenAI-compatible endpoint and write what passes as trajectories, until Ctrl-C."""
    options = {"base_url": "--upstream", "api_key_env": "--key-env"}
    problems = endpoint_problems(base_url=upstream, api_key_env=key_env)
    if problems:
        raise UsageError(" ".join(f"{options[key]} {message}" for key, message in problems))
    from sparring.record import record as record_endpoint
    from sparring.record import recording_path

    folder = out or recording_path(Path("runs"))
    counts = (0, 0)

    def ready(base_url: str) -> None:
        if as_json:
            _print_json({"base_url": base_url, "model": model, "path": str(folder)})
            return
        _say(f"{model} at {upstream} is recorded into {folder}; Ctrl-C stops it")
        _say(f"point the client to {base_url}, with any key: each conversation is an episode")
        _say(f"or to {base_url.removesuffix('/v1')}/s/NAME/v1: all that is said there is one episode")

    def counted(turns: int, episodes: int) -> None:
        nonlocal counts
        counts = (turns, episodes)
        # One line that is written over; where that is not possible, a line a turn would only fill a log.
        if sys.stderr.isatty():
            typer.echo(f"\r{turns} turns in {episodes} episodes", err=True, nl=False)

    try:
        record_endpoint(
            upstream, model, folder, api_key=key_from(key_env), host=host, port=port, on_ready=ready, on_turn=counted
        )
    except KeyboardInterrupt:
        typer.echo("\nstopped" if sys.stderr.isatty() else "stopped", err=True)
        if not as_json:
            _say(f"{counts[0]} turns in {counts[1]} episodes: {folder / 'trajectories'}")


@app.command()
@reported
def replay(
    run: Run,
    episode: Annotated[
        str | None, typer.Argument(metavar="[EPISODE]", help="An episode's id; all of the newest step without one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Play stored episodes again without a model, and show the first thing that the environment does differently."""
    from sparring.replay import Replays

    replays, replayed = Replays(_run(run), episode), []
    with Console(quiet=as_json).steps(f"replay of {replays.source}", len(replays)) as progress:
        for one in replays:
            replayed.append(one)
            progress({})
    if as_json:
        _print_json([dataclasses.asdict(one) for one in replayed])
    else:
        _show_replays(replays.source, replayed)
    different = [one.episode for one in replayed if one.difference is not None]
    if different:
        raise GateError(
            f"{len(different)} of {len(replayed)} episodes went differently than recorded, {different[0]} first; an environment "
            "must do the same for the same actions: see what differs, and take it from the task, its seed or `self.state`."
        )
    failed = [f"{one.episode}: {one.problem}" for one in replayed if one.problem is not None]
    if failed:
        raise ServiceError(f"{len(failed)} of {len(replayed)} episodes could not be played to their end. {failed[0]}")


@app.command()
@reported
def review(
    run: Run,
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="Whose reward and scorer judge; the run's own without one."),
    ] = None,
    episodes: Annotated[
        str | None, typer.Option(help="`validation-10`, or a split for its newest; the newest of each split without.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask reward and scorer about stored episodes again, and show where they disagree. Nothing is played or written."""
    from sparring.evaluation.review import review as review_run

    with Console(quiet=as_json).phase("judging stored episodes"):
        found = review_run(_run(run), recipe, episodes=episodes)
    if as_json:
        _print_json(found.as_json())
    else:
        _show_review(found)
    if found.after.paid_wrong:
        raise GateError(
            f"{found.after.paid_wrong} of {found.after.num} episodes are paid for what the scorer rejects, "
            f"{found.after.disagreements[0].trajectory_id} first; make the reward read what the scorer reads, and review again."
        )


@app.command()
@reported
def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes; by default RUN/report.html.")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=AMOUNT",
            help="May be repeated: prefill, sample, train (a million tokens each), hour (of the machine).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a run as one page that opens from disk: whether to trust it, findings, curves, tasks, cost, every episode."""
    from sparring.report import write_report
    from sparring.report.cost import read_prices

    prices = read_prices(price or ())
    with Console(quiet=as_json).phase("reading the run"):
        written = write_report(_run(run), out, prices=prices)
    if as_json:
        _print_json(written.as_json())
        return
    _say(written.verdict.headline)
    left = f", {written.num_left_out} left out for its size" if written.num_left_out else ""
    _say(f"wrote {written.path}: {written.num_episodes} episodes{left}, {written.num_bytes / 2**20:.1f} MiB")


@app.command()
@reported
def export(
    run: Run,
    destination: Annotated[Path, typer.Argument(help="A new folder.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Write a model that stands alone instead of an adapter.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a run's newest policy for peft (an adapter) or transformers (`--merge`)."""
    RunFolder(_run(run)).trained_config()
    from sparring.export import export as export_run

    written = export_run(_run(run), destination, merge=merge)
    if as_json:
        _print_json({"path": str(written), "kind": "model" if merge else "adapter"})
    else:
        _say(f"wrote {'the merged model' if merge else 'the adapter'} to {written}")


@runs_app.command("list")
@reported
def runs_list(runs_dir: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """All runs, oldest first."""
    if runs_dir.exists() and not runs_dir.is_dir():
        raise UsageError(f"--runs-dir {runs_dir} is not a folder; name the folder that holds the runs.")
    runs = [(folder.path.name, _status_or_damage(folder)) for folder in list_runs(runs_dir)]
    if as_json:
        _print_json([{"name": name, **status} for name, status in runs])
        return
    if not runs:
        _say(f"no runs in {runs_dir} yet; `sparring train RECIPE` makes one")
        return
    rows = [[name, status.get("status"), status.get("step", 0), status.get("reason") or ""] for name, status in runs]
    Console().table(f"runs in {runs_dir}", ["run", "status", "step", "reason"], rows)


@runs_app.command("show")
@reported
def runs_show(run: Run, as_json: Json = False) -> None:
    """One run: how it stands, its latest numbers, its evaluations on held-out tasks."""
    folder = RunFolder(_run(run))
    status, latest = folder.status(), _latest_metrics(folder.path / "metrics.jsonl")
    evaluations = sorted((folder.path / "evaluations").glob("held_out-*.json"))
    if as_json:
        shown = {
            "path": str(folder.path),
            "status": status,
            "metrics": latest,
            "evaluations": [str(e) for e in evaluations],
        }
        _print_json(shown)
        return
    _say(f"{folder.path}: {status.get('status')}, step {status.get('step', 0)}")
    if status.get("reason"):
        _say(f"reason: {status['reason']}")
    if latest:
        Console().table("latest metrics", ["metric", "value"], sorted(latest.items()))
    for path in evaluations:
        _say(f"evaluation: {path}")


@runs_app.command("stop")
@reported
def runs_stop(run: Run, as_json: Json = False) -> None:
    """Ask a run to stop after the step under way, with a checkpoint."""
    folder = RunFolder(_run(run))
    status = folder.status()
    if status.get("status") != "running":
        raise UsageError(f"{folder.path} is {status.get('status')}, not running, so there is nothing to stop.")
    was_told = folder.request_stop()
    if as_json:
        _print_json({"path": str(folder.path), "told": was_told})
    else:
        _say(f"{folder.path} was asked to stop; `sparring runs show {folder.path}` says when it has")


def _resume(run: Path, changes: Sequence[str], *, name: str | None, dry_run: bool, as_json: bool) -> None:
    folder = RunFolder(run)
    if name is not None:
        raise UsageError("--name names a new run, but --resume continues one under its own; leave one of them out.")
    if folder.status().get("status") == "running":
        raise UsageError(f"{run} is running; stop it first (`sparring runs stop {run}`), or watch it.")
    misplaced = [change for change in changes if "=" not in change]
    if misplaced:
        raise UsageError(
            f"--resume continues {run} with its own recipe, so {misplaced[0]!r} has no place; leave it out."
        )
    folder.config(changes)
    if dry_run:
        _show_settings(folder.recipe, changes, as_json)
        return
    from sparring.trainer import MultiTurnRLTrainer

    _report_training(MultiTurnRLTrainer.attach(run, overrides=changes).train(resume=True), as_json)


def _report_training(result: Any, as_json: bool) -> None:
    """`result` is the trainer's TrainResult."""
    if as_json:
        validations = {str(step): evaluation.as_json() for step, evaluation in result.validations.items()}
        shown = {"run": str(result.run), "status": result.status, "step": result.step}
        _print_json({**shown, "train_seconds": result.train_seconds, "validations": validations})
        return
    if result.validations:
        _show_evaluations(list(result.validations.values()), [], title="validation")
    _say(f"next: sparring eval {result.run}")


def _show_settings(path: Path, changes: Sequence[str], as_json: bool) -> None:
    config = load_config(path, changes)
    Console(quiet=as_json).warned(config.warnings())
    rows = resolved_view(read_recipe(path), changes, config)
    if as_json:
        _print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
    else:
        Console().table(
            str(path), ["key", "value", "from"], [[key, json.dumps(value), origin] for key, value, origin in rows]
        )


def _show_report(report: EvaluationReport, as_json: bool) -> None:
    if as_json:
        _print_json({"path": str(report.path), **report.as_json()})
        return
    title = "held-out tasks" if report.rescored is None else f"{report.rescored['episodes']}, judged anew"
    _show_evaluations(report.evaluations, report.comparisons, title=title)
    _say(f"every task is in {report.path}")


def _show_evaluations(
    evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison], *, title: str = "held-out tasks"
) -> None:
    from sparring.evaluation.tables import comparison_table, notes, pass_table, result_table

    console = Console()
    console.table(*result_table(evaluations, title=title))
    for table in (pass_table(evaluations), comparison_table(evaluations, comparisons)):
        if table is not None:
            console.table(*table)
    for line in notes(evaluations, comparisons):
        _say(line)


def _show_review(found: Review) -> None:
    """Agreement as it was and as it is, what is most often at fault, and the disagreements."""
    console = Console()
    rows = [
        [
            when, one.num, "-" if one.share is None else f"{one.share:.1%}", one.paid_wrong, one.unpaid_right,
            f"{one.num_inverted} of {one.num_pairs}",
            "-" if one.rank_correlation is None else f"{one.rank_correlation:.2f}", "-" if mean is None else f"{mean:.3f}",
        ]
        for when, one, mean in (
            ("as stored", found.before, found.mean_before), ("judged now", found.after, found.mean_after)
        )
    ]  # fmt: skip
    columns = [
        "rewards",
        "episodes",
        "agree",
        "wrong paid",
        "right unpaid",
        "pairs inverted",
        "rank correlation",
        "mean reward",
    ]
    console.table(f"reward against scorer: {', '.join(found.episodes)}", columns, rows)
    if found.after.culprits:
        rows = [[name, count] for name, count in list(found.after.culprits.items())[:MOST_SHOWN]]
        console.table("most often at fault", ["what", "disagreements"], rows)
    for one in found.after.disagreements[:MOST_SHOWN]:
        said = "wrong, and paid" if one.kind == "paid_wrong" else "right, and not paid"
        _say(f"{one.trajectory_id} is {said} (reward {one.reward:g}, score {one.score:g}): {one.fault}")
    if found.independence != "scorer":
        _say(f"the scorer {found.independence}, so that a mistake in that code shows in neither")


def _show_replays(source: str, replays: Sequence[Replay]) -> None:
    """A summary, which episodes went differently where, and of the first of them what."""
    console = Console()
    changed = [(one.episode, one.difference) for one in replays if one.difference is not None]
    num_failed = sum(one.problem is not None for one in replays)
    row = [source, len(replays), sum(one.num_calls for one in replays), len(changed), num_failed]
    console.table("replay", ["episodes of", "episodes", "calls", "different", "failed"], [row])
    if len(changed) > 1:
        rows = [[episode, difference.place] for episode, difference in changed[:MOST_SHOWN]]
        left_out = f", {MOST_SHOWN} of {len(changed)}" if len(changed) > MOST_SHOWN else ""
        console.table(f"went differently{left_out}", ["episode", "first at"], rows)
    for episode, difference in changed[:1]:
        _say(f"{episode}, {difference.place}:")
        for field in difference.fields[:MOST_SHOWN]:
            recorded, now = _excerpts(field.recorded, field.now)
            _say(f"  {field.path}: recorded {recorded}\n  {' ' * len(field.path)}  now      {now}")
        if difference.is_noise:
            _say("  only ids, times, temporary paths, rounding or the order of keys differ: see `normalized`")


def _excerpts(recorded: object, now: object) -> tuple[str, str]:
    """Two values as text, long ones from a little before where they part."""
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in (recorded, now)]
    parts = next((index for index, (one, other) in enumerate(zip(*texts, strict=False)) if one != other), 0)
    begin = max(0, parts - 20)
    cut = [
        ("..." if begin else "") + text[begin : begin + 100] + ("..." if begin + 100 < len(text) else "")
        for text in texts
    ]
    return cut[0], cut[1]


def _show_findings(report: CheckReport) -> None:
    rows = [
        [finding.severity.value, f"{finding.rule}: {finding.symptom}\n{_shown(finding.evidence)}", finding.change]
        for finding in report.findings
    ]
    if rows:
        Console().table(f"findings on {report.recipe}", ["severity", "what is wrong, and the evidence", "change"], rows)
    for one in report.checked:
        if one.state == "skipped":
            _say(f"skipped: {one.name}, {one.reason}")
    decided = sum(one.state == "decided" for one in report.checked)
    counts = ", ".join(f"{report.count(severity)} {severity.value}s" for severity in Severity)
    _say(f"{decided} of {len(report.checked)} checks decided in {report.seconds:.1f} s: {counts}")


def _shown(evidence: Mapping[str, Any]) -> str:
    """Evidence for a cell of a table; the JSON document has all of it."""
    lines = [f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in evidence.items()]
    return "\n".join(line if len(line) <= 160 else f"{line[:157]}..." for line in lines)


def _run(run: Path) -> Path:
    """A run by path, or by its name in `runs/`."""
    return Path("runs") / run if not run.exists() and (Path("runs") / run).is_dir() else run


def _status_or_damage(folder: RunFolder) -> Mapping[str, Any]:
    """How a run stands, for a list that one bad run must not hide the others from."""
    try:
        return folder.status()
    except DataError as error:
        return {"status": "damaged", "reason": str(error)}


def _latest_metrics(path: Path) -> Mapping[str, float]:
    """The newest value of each metric. A torn last line, of a run being written, is passed over."""
    latest: dict[str, float] = {}
    # As bytes, so that a line that is no UTF-8 is one damaged line.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            latest |= json.loads(line)["metrics"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number}: {error!r}; the line is damaged, remove it.") from error
    return latest


def _report_bug(error: Exception) -> None:
    descriptor, path = tempfile.mkstemp(prefix="sparring-error-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"sparring {' '.join(sys.argv[1:])}\n\n{''.join(traceback.format_exception(error))}")
    typer.echo(
        f"error: {type(error).__name__}: {error}\nThis is not a mistake that Sparring knows; if your own code did not "
        f"raise it, please report it. The traceback is in {path}.",
        err=True,
    )


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))


def _say(line: str) -> None:
    typer.echo(line)
