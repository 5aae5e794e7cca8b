"""Measures whether SmolLM2-135M learns the procedures of the domains of sparring.environments.suites.sop.

The first cell of a domain has a warm start, RL, the warm start continued for at least as long as RL took, and the evaluation
of all policies on held-out tasks. The other cells of the domain, with other seeds or with random rewards, start RL from the
same warm start, and evaluate their tuned policy on the same tasks. If the run of the first cell is gone, such a cell has a
warm start of its own. Success is the strict score, and field accuracy is the share of correct fields of the answer. The gain
is the tuned policy less its strongest control, paired by task and pooled over seeds. With random rewards, it is the tuned
policy less the warm start. `mixed` trains one policy on all domains.

All cells take hours. With --resume, the finished cells in the file --json are kept, and each cell states its own commit and
machine. With --runs, an interrupted cell goes on from its last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.evidence import SMOKE, completed, runs_folder
from benchmarks.report import commit, machine, options, report
from sparring import MultiTurnRLEvaluator, MultiTurnRLTrainer, Trajectory
from sparring.config import load_config
from sparring.environments.suites import sop
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.rescoring import rescore
from sparring.evaluation.seed_intervals import interval_over_seeds_and_tasks
from sparring.evaluation.statistics import Interval, paired_difference
from sparring.models.small import small_model
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import WARM_START
from sparring.run_folders.stored import training_seconds
from sparring.tracking.console import interval
from sparring.training.checkpoint_files import hash_checkpoint
from sparring.training_run.control import Control, continue_warm_start, read_control

ROOT = Path(__file__).parents[1]
SEVERAL_SEEDS = ("customer_service", "email_intent", "know_your_business", "content_flagging")
"""The domains with three seeds. The last one was added because the third one gained nothing."""
CONTROL_DOMAIN = "customer_service"
"""The domain that is also trained with random rewards."""
MIXED = "mixed"
"""All domains at once."""
TRAINED = (*sop.DOMAINS, MIXED)
POLICIES = ("base", "warm start", "warm start continued", "tuned")
SUITE = "sparring.environments.suites.sop"
SMALL = (
    *SMOKE,
    "warm_start.batch_size=2",
    "batch.global_batch_size=1",
    "batch.group_size=2",
    "evaluation.eval_num_tasks=2",
    "evaluation.eval_group_size=1",
    "environment.max_turns=2",
    "sampling.sampling_max_tokens=16",
    "model.name=benchmarks.sop_learning:build_small",
    "model.lora_layers=1",
)
"""Settings of a run that is only a test, with a model from scratch."""
MARGIN = 1.25
"""The steps of a longer control as a multiple of those that would take as long as RL at the speed of the shorter one."""
Row = dict[str, Any]


def build_small(seed: int) -> tuple[Any, Any]:
    """Return a small model with random weights, and its tokenizer."""
    return small_model(seed, sop.DOMAINS[CONTROL_DOMAIN].clerk_log(50), max_positions=1024)


def share_of_fields(trajectory: Trajectory) -> float:
    """Return the share of the answer's fields that are correct, from the components of the stored reward."""
    assert trajectory.reward is not None
    fields = [value > 0 for name, value in trajectory.reward.components.items() if name != "format"]
    return fmean(fields) if fields else 0.0


def cells(domains: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int, bool]]:
    """Return the cells as (domain, seed, whether the rewards are random): first the domains with several seeds. Cells of
    one domain are neighbors, because they share a warm start."""
    found: list[tuple[str, int, bool]] = []
    for domain in sorted(domains, key=lambda one: (one not in SEVERAL_SEEDS, one == MIXED)):
        several = seeds if domain in SEVERAL_SEEDS else seeds[:1]
        found += [(domain, seed, False) for seed in several]
        found += [(domain, seed, True) for seed in several if domain == CONTROL_DOMAIN]
    return found


def recipe_of(domain: str) -> Path:
    """Return the recipe that trains a domain."""
    return ROOT / "recipes" / ("sop_mixed" if domain == MIXED else "sop") / "recipe.toml"


def settings_of(domain: str, overrides: Sequence[str]) -> list[str]:
    """Return the settings that train a domain."""
    module = f"{SUITE}.{domain}"
    return [
        f"environment.target={module}:Desk",
        f"data.train={module}:train_tasks",
        f"data.validation={module}:validation_tasks",
        f"data.held_out={module}:held_out_tasks",
        f"reward.reward={module}:reward",
        f"reward.scorer={module}:scorer",
        f"warm_start.demonstrations={module}:clerk_log",
        *overrides,
    ]


def settings_of_cell(domain: str, overrides: Sequence[str], control_steps: int | None) -> dict[str, Any]:
    """Return what all cells of a domain in a file must have in common."""
    content = json.dumps(tomllib.loads(recipe_of(domain).read_text("utf-8")), sort_keys=True)  # without comments
    recipe = hashlib.sha256(content.encode()).hexdigest()
    return {"overrides": list(overrides), "control steps": control_steps, "recipe": recipe}


def kept_cells(path: Path | None, overrides: Sequence[str], control_steps: int | None, *, resume: bool) -> list[Row]:
    """Return the finished cells of the file. Raises ValueError if they would be lost, or cannot be continued."""
    if path is None or not path.exists():
        if resume and path is None:
            raise ValueError("--resume goes on with the cells of a file; name it with --json")
        return []
    if not resume:
        raise ValueError(f"{path} exists; add --resume to go on with its cells, or choose another file")
    try:
        rows: list[Row] = json.loads(path.read_text("utf-8"))["rows"]
        is_same = [row["settings"] == settings_of_cell(row["domain"], overrides, control_steps) for row in rows]
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a result of this benchmark ({error!r}); choose another file") from error
    if not all(is_same):
        raise ValueError(
            f"{path} has cells with another recipe, other overrides or another --control-steps; choose another file"
        )
    return rows


def name_of(domain: str, seed: int, is_random: bool) -> str:
    """Return the name of the run of a cell."""
    return f"{domain}-{seed}{'-random' if is_random else ''}"


def warm_start_of(domain: str, seed: int, folder: str) -> Path:
    """Return the checkpoint of the warm start of a cell without random rewards."""
    return Path(folder) / name_of(domain, seed, False) / "checkpoints" / WARM_START


def find_start(rows: Sequence[Row], domain: str, folder: str) -> Row | None:
    """Return the cell whose warm start another cell of the domain starts from, or None if its checkpoint is not there."""
    for row in rows:
        if row["domain"] == domain and row["start"] == row["seed"] and not row["random rewards"]:
            checkpoint = warm_start_of(domain, row["seed"], folder)
            if checkpoint.is_dir() and hash_checkpoint(checkpoint) == row["warm start sha256"]:
                return row
    return None


def measure(
    cell: tuple[str, int, bool], rows: Sequence[Row], overrides: Sequence[str], control_steps: int | None, folder: str
) -> Row:
    """Train and evaluate one cell. `rows` are the finished cells."""
    domain, seed, is_random = cell
    began, name, common = time.monotonic(), name_of(*cell), settings_of_cell(domain, overrides, control_steps)
    settings = [*settings_of(domain, overrides), f"run.runs_dir={folder}", f"run.seed={seed}"]
    if is_random:
        settings.append("reward.reward=sparring.rewards:random_reward")
    start = find_start(rows, domain, folder)
    weights = None if start is None else warm_start_of(domain, start["seed"], folder)
    run = Path(folder) / name
    begun_at = find_interrupted(run, {**common, "start": None if start is None else start["warm start sha256"]})
    is_resumed, now = begun_at is not None, commit()
    if is_resumed:
        trainer = MultiTurnRLTrainer.attach(run, quiet=True)
    else:
        trainer = MultiTurnRLTrainer(
            recipe_of(domain), overrides=settings, name=name, model_weights=weights, check=False, quiet=True
        )
    with trainer:
        temperature = trainer.config.serving_temperature
        run = completed(trainer, resume=is_resumed)
    row: Row = {
        "domain": domain,
        "seed": seed,
        "random rewards": is_random,
        "start": seed if start is None else start["seed"],
        "commit": now if begun_at in (None, now) else f"{begun_at}, resumed at {now}",
        "machine": machine(),
        "settings": common,
        "resumed": is_resumed,
        "RL seconds": round(training_seconds(run / "metrics.jsonl")),
    }
    policies = ["tuned"]
    if is_random and start is None:
        policies = ["warm_start", "tuned"]
    elif start is None:
        policies = [one.replace(" ", "_") for one in POLICIES]
        control = train_control(run, control_steps, is_resumed=is_resumed)
        row |= {
            "control seconds": round(control.seconds),
            "control steps": control.steps,
            "control validated": dict(control.validated),
            "warm start sha256": hash_checkpoint(warm_start_of(domain, seed, folder)),
        }
    found = MultiTurnRLEvaluator(run, policies=policies, temperatures=[temperature], quiet=True).evaluate()
    row |= {
        "temperature": temperature,
        "turns": {one.name: fmean(one.turns) for one in found.evaluations},
        "success": {one.name: _by_task(one) for one in found.evaluations},
        "episodes": sum(found.evaluations[-1].samples),
    }
    if not is_random:  # otherwise, the stored rewards are not about the fields
        stored = RunFolder(run)
        fields = rescore(stored, load_config(stored.recipe), "benchmarks.sop_learning:share_of_fields")
        row["fields"] = {one.name: _by_task(one) for one in fields.evaluations}
    row["minutes"] = round((time.monotonic() - began) / 60, 1)
    means = {policy: round(mean(row, "success", policy), 3) for policy in row["success"]}
    print(f"{name}: {means}, {row['minutes']} min", file=sys.stderr, flush=True)
    if domain == MIXED:
        print(table_by_domain(row), file=sys.stderr, flush=True)
    return row


def train_control(run: Path, steps: int | None, *, is_resumed: bool) -> Control:
    """Return the control of a cell. One with these steps that an earlier sitting finished is kept. If `steps` is None and the
    control with the recipe's steps took less time than RL, it is replaced by a longer one. Raises the errors of
    `continue_warm_start`."""
    control = read_control(RunFolder(run)) if is_resumed else None
    if control is None or steps not in (None, control.steps):
        control = continue_warm_start(run, steps=steps, quiet=True)
    if steps is None and control.seconds < control.rl_seconds:
        longer = longer_steps(control)
        print(
            f"{run.name}: the control took less time than RL; training one of {longer} steps",
            file=sys.stderr,
            flush=True,
        )
        control = continue_warm_start(run, steps=longer, quiet=True)
    return control


def longer_steps(control: Control) -> int:
    """Return the steps of a control that takes longer than RL, at the speed of a shorter control."""
    return math.ceil(control.steps * control.rl_seconds / control.seconds * MARGIN)


def find_interrupted(run: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the commit at which an earlier sitting began this run, with the same settings and the same warm start. If there
    is none, delete what is in its way, note commit and settings for a later sitting, and return None."""
    note = run.with_name(f"{run.name}.settings.json")
    if RunFolder.is_run(run) and note.is_file():
        noted = json.loads(note.read_text("utf-8"))
        begun_at = noted.pop("commit", "an unknown commit")
        if noted == settings:
            return str(begun_at)
    shutil.rmtree(run, ignore_errors=True)
    run.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({**settings, "commit": commit()}), "utf-8")
    return None


def _by_task(evaluation: Evaluation) -> dict[str, float]:
    """Return the mean score of each task."""
    return {task: round(score, 4) for task, score in zip(evaluation.task_ids, evaluation.scores, strict=True)}


def mean(row: Row, what: str, policy: str) -> float:
    """Return the mean score of a policy of a cell. `what` is "success" or "fields"."""
    return fmean(row[what][policy].values())


def start_of(row: Row, rows: Sequence[Row]) -> Row:
    """Return the cell with the warm start and the control of a cell."""
    start = (row["domain"], row["start"], False)
    return next(one for one in rows if (one["domain"], one["seed"], one["random rewards"]) == start)


def controls(row: Row, rows: Sequence[Row], what: str) -> Mapping[str, float]:
    """Return the scores by task of the control of a cell: the strongest of base, warm start and continued warm start, or the
    warm start if the rewards of the cell were random."""
    start = row if "warm start" in row[what] else start_of(row, rows)
    if row["random rewards"]:
        return start[what]["warm start"]
    strongest = max((policy for policy in start[what] if policy != "tuned"), key=lambda one: mean(start, what, one))
    return start[what][strongest]


def gain(rows: Sequence[Row], measured: Sequence[Row], what: str) -> tuple[Interval, Interval | None]:
    """Return the gain of the tuned policies of `measured` over their controls: the interval over tasks of the mean over
    these seeds, and the interval for other seeds of RL and tasks, or None for a single seed. `rows` are all cells."""
    pairs = [(controls(row, rows, what), row[what]["tuned"]) for row in measured]
    tasks = [task for task in pairs[0][1] if all(task in before and task in after for before, after in pairs)]
    means = [[fmean(pair[side][task] for pair in pairs) for task in tasks] for side in (0, 1)]
    differences = [{task: after[task] - before[task] for task in tasks} for before, after in pairs]
    return paired_difference(*means), interval_over_seeds_and_tasks(differences, least=-1.0)


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the docs."""
    lines = [
        "| domain | seeds | base | warm start | warm start continued | tuned | gain in success [95%] "
        "| gain in field accuracy [95%] | for other RL seeds and tasks |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for domain in TRAINED:
        rows = [row for row in content["rows"] if row["domain"] == domain and not row["random rewards"]]
        if not rows:
            continue
        means = []
        for policy in POLICIES:
            scores = [mean(row, "success", policy) for row in rows if policy in row["success"]]
            means.append(f"{fmean(scores):.2f}")
        (success, wider), (fields, _) = (gain(content["rows"], rows, what) for what in ("success", "fields"))
        lines.append(
            f"| `{domain}` | {len(rows)} | {' | '.join(means[:-1])} | **{means[-1]}** "
            f"| {interval(success)} | {interval(fields)} | {'' if wider is None else interval(wider)} |"
        )
    return "\n".join(lines)


def table_by_domain(row: Row) -> str:
    """Return the table of a cell that trained all domains at once: the success of each policy in each domain."""
    lines = ["| domain | tasks | " + " | ".join(POLICIES) + " |", "|---" * (2 + len(POLICIES)) + "|"]
    for domain in (*sop.DOMAINS, None):
        scores = {
            policy: [
                score
                for task, score in row["success"][policy].items()
                if domain is None or task.startswith(f"{domain}-held_out-")
            ]
            for policy in POLICIES
        }
        if not scores["tuned"]:
            continue
        name = "all" if domain is None else f"`{domain}`"
        means = " | ".join(f"{fmean(scores[policy]):.2f}" for policy in POLICIES)
        lines.append(f"| {name} | {len(scores['tuned'])} | {means} |")
    return "\n".join(lines)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--domains", nargs="+", choices=TRAINED, default=list(TRAINED), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--control-steps", type=int, help="steps of the control (default: those of the recipe)")
    parser.add_argument("--resume", action="store_true", help="keep the finished cells of the file --json")
    parser.add_argument("--cells", type=int, metavar="N", help="measure at most N cells, and stop")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="folder that keeps the runs")
    arguments = parser.parse_args()
    if arguments.cells is not None and arguments.cells < 1:
        parser.error(f"--cells is {arguments.cells}, but at least 1 cell is measured")
    domains, seeds = list(dict.fromkeys(arguments.domains)), list(dict.fromkeys(arguments.seeds))
    overrides, steps = arguments.overrides, arguments.control_steps
    if arguments.smoke:
        domains, seeds, overrides, steps = [CONTROL_DOMAIN], [0], [*SMALL, *overrides], 2
    try:
        rows = kept_cells(arguments.json, overrides, steps, resume=arguments.resume)
    except ValueError as error:
        parser.error(str(error))
    have = {(row["domain"], row["seed"], row["random rewards"]) for row in rows}
    todo = [cell for cell in cells(domains, seeds) if cell not in have][: arguments.cells]
    code = 0
    with runs_folder(arguments.runs) as folder:
        for cell in todo or [None]:
            if cell is not None:
                rows.append(measure(cell, rows, overrides, steps, folder))
            code = _report(rows, arguments.json, smoke=arguments.smoke)
    return code


def _report(rows: Sequence[Row], path: Path | None, *, smoke: bool) -> int:
    """Report the cells so far, and store them, so that an interrupted benchmark loses at most one cell."""
    figures, targets = {}, {}
    for domain in dict.fromkeys(row["domain"] for row in rows if not row["random rewards"]):
        trained = [row for row in rows if row["domain"] == domain and not row["random rewards"]]
        for what in ("success", "fields"):
            figure = f"{domain}: lower bound of the gain in {what}"
            figures[figure] = gain(rows, trained, what)[0].low
            if domain in SEVERAL_SEEDS:
                targets[figure] = {"at_least": 1e-9}
    if own := [row for row in rows if "control seconds" in row]:
        # Other programs may have run at the same time as other cells.
        figure = "least seconds of a control for each second of RL"
        figures[figure] = min(row["control seconds"] / max(1, row["RL seconds"]) for row in own)
        targets[figure] = {"at_least": 1.0}
    random = [row for row in rows if row["random rewards"]]
    num_cells = {"rewards": len(rows) - len(random), "random rewards": len(random)}
    if random:
        figure = "lower bound of the gain in success with random rewards"
        figures[figure] = gain(rows, random, "success")[0].low
        targets[figure] = {"at_most": 0.0}
    return report(
        "sop_learning",
        rows,
        figures=figures,
        targets=targets,
        path=path,
        sides={f"cells with {kind}": num for kind, num in num_cells.items() if num},
        smoke=smoke,
    )


if __name__ == "__main__":
    sys.exit(main())
