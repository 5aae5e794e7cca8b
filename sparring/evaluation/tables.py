"""Evaluations as tables for the console (title, columns, rows), and notes that qualify the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from sparring.evaluation.across_runs import Compared
from sparring.evaluation.across_seeds import AcrossSeeds
from sparring.evaluation.comparison import Comparison
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.statistics import Interval
from sparring.tracking.console import interval
from sparring.tracking.refused import refused_reasons
from sparring.types import Outcome

Table: TypeAlias = tuple[str, list[str], list[list[object]]]

MOST_IDS = 12
"""The number of task ids that a line lists. The file contains all of them."""
MOST_CULPRITS = 4


def result_table(evaluations: Sequence[Evaluation], *, title: str) -> Table:
    """Return the table of success rate, score and other results, with one row per evaluation. The title states what all
    rows have in common."""
    settings = {one.setting for one in evaluations}
    sizes = {f"{len(one.task_ids)} x {one.group_size}" for one in evaluations}
    any_lost = any(one.lost for one in evaluations)
    rows: list[list[object]] = [
        [
            one.name,
            *([one.setting] if len(settings) > 1 else []),
            interval(one.success),
            interval(one.score),
            sum(one.rewards) / len(one.rewards),
            sum(one.turns) / len(one.turns),
            *([f"{len(one.task_ids)} x {one.group_size}"] if len(sizes) > 1 else []),
            *(_bounds_cells(one) if any_lost else []),
        ]
        for one in evaluations
    ]
    columns = ["policy", *(["sampled"] if len(settings) > 1 else []), "success", "score", "reward", "turns"]
    columns += ["tasks"] if len(sizes) > 1 else []
    columns += BOUNDS_COLUMNS if any_lost else []
    shared = [*(settings if len(settings) == 1 else ()), *(f"{size} episodes" for size in sizes if len(sizes) == 1)]
    whole = ", ".join([title, *shared, f"scored by {_list_scorers(evaluations)}"])
    return f"{whole} (95 % intervals in brackets)", columns, rows


def outcome_table(evaluations: Sequence[Evaluation]) -> Table:
    """Return the table of how episodes ended. It shows whether a policy gives incorrect answers or reaches no
    answer."""
    rows: list[list[object]] = []
    for one in evaluations:
        known = one.outcomes
        ended = ["" if outcome not in known else _share(known[outcome]) for outcome in BUDGETS]
        completion = _share(sum(one.completions) / len(one.completions))
        rows.append([one.name, one.setting, f"{one.success.mean:.2f}", completion, *ended, _share(one.lost_share)])
    return (
        "outcomes of episodes",
        ["policy", "sampled", "success", "completion", *(outcome.value for outcome in BUDGETS), "lost"],
        rows,
    )


BUDGETS = (Outcome.MAX_TURNS, Outcome.MAX_TOKENS, Outcome.POLICY_ERROR)


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


BOUNDS_COLUMNS = ["lost", "success, lost as wrong to right", "score, lost as wrong to right"]


def _bounds_cells(one: Evaluation) -> list[object]:
    if not one.lost:
        return ["0", "", ""]
    score = "" if one.score_bounds is None else str(one.score_bounds)
    return [f"{one.num_lost} ({one.lost_share:.0%})", str(one.success_bounds), score]


def pass_table(evaluations: Sequence[Evaluation]) -> Table | None:
    """Return the table of pass@k and pass^k, or None if every policy ran each task once."""
    repeated = [one for one in evaluations if one.group_size > 1]
    if not repeated:
        return None
    largest = max(one.group_size for one in repeated)
    shown = sorted({1, largest, *(2**power for power in range(1, largest.bit_length()) if 2**power <= largest)})
    rows: list[list[object]] = []
    for one in repeated:
        passes = one.passes()
        cells = [f"{passes[k][place]:.2f}" if k in passes else "" for place in (0, 1) for k in shown]
        rows.append([one.name, one.setting, *cells])
    columns = ["policy", "sampled", *(f"pass@{k}" for k in shown), *(f"pass^{k}" for k in shown)]
    return "at least one of k right (pass@k), all of k right (pass^k)", columns, rows


def comparison_table(evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison]) -> Table | None:
    """Return the table of paired differences in success rate, or None if there are no comparisons."""
    if not comparisons:
        return None
    by_label = {one.label: one for one in evaluations}
    is_one_setting = len({one.setting for one in evaluations}) == 1
    any_lost = any(one.bounds is not None for one in comparisons)

    def shown(label: str) -> str:
        one = by_label.get(label)
        return label if one is None else one.name if is_one_setting else f"{one.name} ({one.setting})"

    rows: list[list[object]] = [
        [
            f"{shown(one.after)} - {shown(one.before)}",
            interval(one.difference),
            p_value(one.p_value),
            len(one.fixed),
            len(one.broken),
            len(one.unchanged),
            "" if one.tasks_needed is None else one.tasks_needed,
            *([_difference_bounds(one)] if any_lost else []),
        ]
        for one in comparisons
    ]
    columns = ["comparison", "difference in success", "p", "fixed", "broken", "unchanged", "tasks needed"]
    columns += [DIFFERENCE_COLUMN] if any_lost else []
    return "paired by task", columns, rows


DIFFERENCE_COLUMN = "difference with lost episodes"


def _difference_bounds(one: Comparison | None) -> str:
    if one is None or one.bounds is None:
        return ""
    return f"{one.bounds.worst:+.2f} to {one.bounds.best:+.2f}" + (", sign open" if one.is_sign_open else "")


def across_table(rows: Sequence[Compared]) -> Table:
    """Return the table of evaluations of several runs. Each difference is from the first row with the same tasks and
    settings."""
    any_lost = any(row.evaluation.lost for row in rows)
    cells: list[list[object]] = [
        [
            row.source,
            row.evaluation.name,
            row.evaluation.setting,
            row.evaluation.split,
            interval(row.evaluation.success),
            interval(row.evaluation.score),
            "" if row.difference is None else interval(row.difference.difference),
            "" if row.difference is None else p_value(row.difference.p_value),
            len(row.evaluation.task_ids),
            *([*_bounds_cells(row.evaluation), _difference_bounds(row.difference)] if any_lost else []),
        ]
        for row in rows
    ]
    columns = ["from", "policy", "sampled", "split", "success", "score", "difference from the first", "p", "tasks"]
    columns += [*BOUNDS_COLUMNS, DIFFERENCE_COLUMN] if any_lost else []
    scorers = _list_scorers([row.evaluation for row in rows])
    return f"side by side, scored by {scorers} (95 % intervals in brackets)", columns, cells


def p_value(value: float) -> str:
    """Return a p-value as text."""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def notes(evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison]) -> list[str]:
    """Return the notes that qualify the numbers: the scorer, lost episodes and changed tasks."""
    lines = [f"note: {caveat}" for caveat in dict.fromkeys(one.criterion.caveat for one in evaluations) if caveat]
    criteria = {(one.criterion.scorer, one.criterion.success_threshold) for one in evaluations}
    if len(criteria) > 1:
        lines.append("note: different scorers or thresholds were used, and their numbers cannot be compared")
    lines += [note for one in evaluations for note in _about_lost(one)]
    lines += [note for one in evaluations for note in _about_refused(one)]
    for one in evaluations:
        if one.agreement.disagreements or (one is evaluations[-1] and one.agreement.num):
            lines.append(_about_agreement(one))
    lines += [note for one in comparisons for note in _about_open_sign(one)]
    lines += [note for one in comparisons[-1:] for note in _about_changed_tasks(one)]
    return lines


def _about_lost(one: Evaluation) -> Iterator[str]:
    counted = ("lost_rollouts", "client_errors", "unrewarded", "policy_timeouts")
    lost, refused, unrewarded, late = (_count(one, name) for name in counted)
    if late:
        yield (
            f"note: {late} of {sum(one.samples)} episodes of {one.name} ({one.setting}) were not finished in time "
            "and were scored in their unfinished state: a busy machine makes a policy look weak; raise "
            "rollout.rollout_timeout, or evaluate again"
        )
    if lost:
        causes = (
            f"{lost - refused - unrewarded} because of infrastructure, {refused} because the gateway refused their "
            f"client's requests, {unrewarded} because the agent returned no reward"
        )
        yield (
            f"note: {lost} episodes of {one.name} ({one.setting}) were lost: {causes}; success is "
            f"{one.success_bounds.worst:.2f} if they count as wrong and {one.success_bounds.best:.2f} if they "
            f"count as right; k above {min(one.samples)} is not defined"
        )


def _about_refused(one: Evaluation) -> Iterator[str]:
    if refused := refused_reasons(one.metrics):
        reasons = ", ".join(f"{reason} ({number:.0f})" for reason, number in refused.items())
        yield (
            f"warning: the gateway refused requests of the episodes of {one.name} ({one.setting}), so the client "
            f"and not the policy may explain these numbers: {reasons}; docs/gateway.md lists what the gateway "
            "accepts"
        )


def _about_agreement(one: Evaluation) -> str:
    at_fault = ", ".join(f"{name} ({count})" for name, count in list(one.agreement.culprits.items())[:MOST_CULPRITS])
    return f"{one.name} ({one.setting}): {one.agreement.summary()}" + (f"; {at_fault}" if at_fault else "")


def _about_open_sign(one: Comparison) -> Iterator[str]:
    if one.bounds is not None and one.is_sign_open:
        yield (
            f"note: lost episodes could decide whether {one.after} is better than {one.before}: if they had "
            f"counted, the difference would lie between {one.bounds.worst:+.2f} and {one.bounds.best:+.2f}; run "
            "the lost episodes again before you rely on the difference"
        )


def _about_changed_tasks(one: Comparison) -> Iterator[str]:
    for what, ids in (("fixed", one.fixed), ("broken", one.broken)):
        if ids:
            more = f", and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
            yield f"{what} by {one.after} against {one.before}: {', '.join(ids[:MOST_IDS])}{more}"


def seeds_table(family: AcrossSeeds) -> Table:
    """Return the table of results over several seeds. It shows the success rate of each policy with its interval over
    tasks, followed by the mean with both intervals."""
    names = list(family.policies)
    controls = list(family.gains)[:1]
    rows: list[list[object]] = []
    for one in family.seeds:
        gains = [one.differences.get(control) for control in controls]
        stands = f"{one.status}, step {one.step}" if one.claim is None else ""
        stands = "outlier" if family.outlier is not None and family.outlier.seed == one.seed else stands
        rows.append(
            [
                f"{one.seed} ({stands})" if stands else str(one.seed),
                *("" if name not in one.evaluations else interval(one.evaluations[name].success) for name in names),
                *("" if gain is None else interval(gain.difference) for gain in gains),
            ]
        )
    columns = ["seed", *names, *(f"tuned - {control}" for control in controls)]
    over = [*family.policies.values(), *(family.gains[control] for control in controls)]
    if len(family.finished) > 1:
        rows.append(["mean, over seeds", *(_over(one.mean, one.seeds) for one in over)])
        rows.append(["over seeds and tasks", *(_over(one.mean, one.seeds_and_tasks) for one in over)])
    return (
        f"{family.name}: success on {family.setting} (95 % intervals in brackets; for a single seed, over tasks)",
        columns,
        rows,
    )


def gains_table(family: AcrossSeeds) -> Table | None:
    """Return the table of the tuned policy's gain over each control, strongest first. Return None if there are fewer
    than two controls, because `seeds_table` then shows the gain."""
    if len(family.gains) < 2:
        return None
    rows: list[list[object]] = [
        [f"tuned - {control}", _over(one.mean, one.seeds), _over(one.mean, one.seeds_and_tasks)]
        for control, one in family.gains.items()
    ]
    return "mean over seeds, paired by task", ["comparison", "over seeds", "over seeds and tasks"], rows


def _over(mean: float, found: Interval | None) -> str:
    return f"{mean:.2f}" if found is None else interval(found)


def _count(evaluation: Evaluation, name: str) -> int:
    return next((int(value) for known, value in evaluation.metrics.items() if known.endswith(f"/{name}")), 0)


def _list_scorers(evaluations: Sequence[Evaluation]) -> str:
    names = dict.fromkeys(one.criterion.scorer or "the training reward" for one in evaluations)
    return " and ".join(names)
