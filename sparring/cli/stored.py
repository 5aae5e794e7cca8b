"""`sparring review` and `sparring replay`: grade stored episodes again, replay them, and repeat the training on
them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.cli.command import Json, Run, app, print_json, report_failures, resolve_run, say
from sparring.errors import GateError, ServiceError, UsageError
from sparring.tracking import Console

if TYPE_CHECKING:
    from sparring.evaluation.agreement import Agreement
    from sparring.evaluation.review import Review
    from sparring.reproduce.replay import Replay


MOST_SHOWN = 20
"""Maximum number of rows that a table shows."""


@app.command()
@report_failures
def review(
    run: Run,
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="Recipe of the reward and the scorer; by default the run's recipe."),
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option(help="`validation-10`, or a split for its newest episodes; by default the newest of each split."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Grade stored episodes again with the reward and the scorer, and show where the two disagree. No episode is run,
    and no file is written."""
    from sparring.evaluation.review import review as review_run

    with Console(quiet=as_json).phase("grading stored episodes"):
        found = review_run(resolve_run(run), recipe, episodes=episodes)
    if as_json:
        print_json(found.as_json())
    else:
        _show_review(found)
    if found.refusal is not None:
        raise GateError(found.refusal)


AGREEMENT_COLUMNS = [
    "rewards",
    "episodes",
    "agree",
    "wrong, rewarded",
    "right, unrewarded",
    "pairs inverted",
    "rank correlation",
    "mean reward",
]


def _agreement_row(when: str, one: Agreement, mean: float | None) -> list[object]:
    """Return the values of AGREEMENT_COLUMNS."""
    return [
        when,
        one.num,
        "-" if one.share is None else f"{one.share:.1%}",
        one.paid_wrong,
        one.unpaid_right,
        f"{one.num_inverted} of {one.num_pairs}",
        "-" if one.rank_correlation is None else f"{one.rank_correlation:.2f}",
        "-" if mean is None else f"{mean:.3f}",
    ]


def _show_review(found: Review) -> None:
    """Show the agreement as stored and as graded now, the most frequent causes of disagreement, and the
    disagreements."""
    console = Console()
    rows = [
        _agreement_row("as stored", found.before, found.mean_before),
        _agreement_row("graded now", found.after, found.mean_after),
    ]
    console.table(f"reward compared with scorer: {', '.join(found.episodes)}", AGREEMENT_COLUMNS, rows)
    if found.after.culprits:
        rows = [[name, count] for name, count in list(found.after.culprits.items())[:MOST_SHOWN]]
        console.table("most frequent causes", ["cause", "disagreements"], rows)
    for one in found.after.disagreements[:MOST_SHOWN]:
        what = "wrong but rewarded" if one.kind == "paid_wrong" else "right but not rewarded"
        say(f"{one.trajectory_id} is {what} (reward {one.reward:g}, score {one.score:g}): {one.fault}")
    for endpoint in found.endpoints:
        say(f"requests: {endpoint.summary(found.prices)}")
    if found.independence != "scorer":
        say(f"the scorer {found.independence}, so a mistake in that code cannot show as a disagreement")


Episode = Annotated[
    str | None,
    typer.Argument(metavar="[EPISODE]", help="Id of an episode; by default all episodes of the newest step."),
]
Training = Annotated[
    bool,
    typer.Option(
        "--training", help="Repeat the learner's steps on the consumed data instead, and compare the weights."
    ),
]


@app.command()
@report_failures
def replay(
    run: Run,
    episode: Episode = None,
    training: Training = False,
    as_json: Json = False,
) -> None:
    """Replay stored episodes without a model, and show the first thing that the environment does differently."""
    if training:
        if episode is not None:
            raise UsageError(f"--training replays the steps of a whole run; leave {episode!r} out.")
        _relearn(resolve_run(run), as_json=as_json)
        return
    from sparring.reproduce.replay import Replays

    replays, replayed = Replays(resolve_run(run), episode), []
    with Console(quiet=as_json).steps(f"replay of {replays.source}", len(replays)) as progress:
        for one in replays:
            replayed.append(one)
            progress({})
    if as_json:
        print_json([dataclasses.asdict(one) for one in replayed])
    else:
        _show_replays(replays.source, replayed)
    _refuse_differences(replayed)


def _refuse_differences(replayed: Sequence[Replay]) -> None:
    """Raise an error if an episode differs from the recording or could not be replayed to the end."""
    different = [one.episode for one in replayed if one.difference is not None]
    if different:
        raise GateError(
            f"{len(different)} of {len(replayed)} episodes differ from the recording; the first is {different[0]}. An "
            "environment must give the same results for the same actions. Make the values that differ depend only on the "
            "task, its seed or `self.state`."
        )
    failed = [f"{one.episode}: {one.problem}" for one in replayed if one.problem is not None]
    if failed:
        raise ServiceError(f"{len(failed)} of {len(replayed)} episodes could not be replayed to the end. {failed[0]}")


def _relearn(run: Path, *, as_json: bool) -> None:
    """Compare the weights after each step with the recorded weights, up to the first step at which they differ."""
    from sparring.reproduce.updates import Relearning

    relearning, relearned = Relearning(run), []
    with Console(quiet=as_json).steps("learning again", len(relearning)) as progress:
        for one in relearning:
            relearned.append(one)
            progress({})
            if one.difference is not None:
                break
    if as_json:
        print_json([dataclasses.asdict(one) for one in relearned])
    else:
        rows = [
            [
                one.step,
                one.num_rollouts,
                one.reached,
                ", ".join(one.recorded) or "-",
                "differs" if one.difference else "same" if one.recorded else "not recorded",
            ]
            for one in relearned
        ]
        Console().table("training", ["step", "rollouts", "weights now", "recorded by", "weights are"], rows)
    if relearned[-1].difference is not None:
        raise GateError(
            f"{relearned[-1].difference}. Bit-identical weights need the same number of threads (run.num_threads), the "
            "libraries and the CPU that manifest.json records, and settings that did not change during the run. If all of "
            "these are the same, the recipe's code or the ledger was changed."
        )


def _show_replays(source: str, replays: Sequence[Replay]) -> None:
    """Show a summary, the position of the first difference in each episode, and the very first difference in full."""
    console = Console()
    changed = [(one.episode, one.difference) for one in replays if one.difference is not None]
    num_failed = sum(one.problem is not None for one in replays)
    row = [source, len(replays), sum(one.num_calls for one in replays), len(changed), num_failed]
    console.table("replay", ["episodes of", "episodes", "calls", "different", "failed"], [row])
    if len(changed) > 1:
        rows = [[episode, difference.place] for episode, difference in changed[:MOST_SHOWN]]
        left_out = f", {MOST_SHOWN} of {len(changed)}" if len(changed) > MOST_SHOWN else ""
        console.table(f"different episodes{left_out}", ["episode", "first difference"], rows)
    for episode, difference in changed[:1]:
        say(f"{episode}, {difference.place}:")
        for field in difference.fields[:MOST_SHOWN]:
            recorded, now = _excerpts(field.recorded, field.now)
            say(f"  {field.path}: recorded {recorded}\n  {' ' * len(field.path)}  now      {now}")
        if difference.is_noise:
            say("  only ids, times, temporary paths, rounding or the order of keys differ; see `normalized`")


def _excerpts(recorded: object, now: object) -> tuple[str, str]:
    """Return two values as text. Long values start shortly before their first difference."""
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in (recorded, now)]
    parts = next((index for index, (one, other) in enumerate(zip(*texts, strict=False)) if one != other), 0)
    begin = max(0, parts - 20)
    cut = [
        ("..." if begin else "") + text[begin : begin + 100] + ("..." if begin + 100 < len(text) else "")
        for text in texts
    ]
    return cut[0], cut[1]
