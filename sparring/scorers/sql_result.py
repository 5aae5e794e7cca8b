"""Scores a query by its rows, which must equal the rows of the reference query. Each query runs on its own database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from sparring.errors import DataError
from sparring.protocols import Scorer
from sparring.sandbox import SqlDatabase, SqlError
from sparring.scorers.conduct import by_behavior, conduct
from sparring.scorers.unit_tests import Candidate, fenced_code
from sparring.types import Json, Score, Task, Trajectory


def sql_result(
    database: Callable[[Task], SqlDatabase],
    candidate: Candidate | None = None,
    *,
    reference: str = "query",
    ordered: bool = False,
) -> Scorer:
    """Return a scorer that gives 1.0 if a query returns the rows of the reference query, else 0.0. Column names are
    ignored.

    `database` creates a new database for a task. `candidate` finds the query. By default, the query is the only fenced
    block (`sql`) of the last message. `reference` is the name of the task field that contains the correct query. Rows
    may be in any order, unless `ordered` is true. Parts: `format` (a query was found), `runs` (the query ran), and the
    conduct of the episode.

    Raises DataError when the reference query fails or its result exceeds the limits.
    """
    find = candidate or fenced_code("sql")

    async def sql_result_score(trajectory: Trajectory) -> Score:
        query = find(trajectory)
        parts = {"format": float(query is not None), "runs": 0.0, **conduct(trajectory)}
        if query is None:
            return Score(0.0, parts)
        task = trajectory.task
        try:
            expected = await asyncio.to_thread(_rows, database(task), task.fields[reference])
        except SqlError as error:
            raise DataError(f"Task {task.id}: the reference query fails ({error}); correct it.") from error
        if expected is None:
            raise DataError(
                f"Task {task.id}: the reference query returns more rows than the limits allow; raise the limits."
            )
        try:
            given = await asyncio.to_thread(_rows, database(task), query)
        except SqlError:
            return Score(0.0, parts)
        is_right = given is not None and (given == expected if ordered else Counter(given) == Counter(expected))
        return Score(float(is_right), parts | {"runs": 1.0})

    return by_behavior(sql_result_score)


def _rows(database: SqlDatabase, query: str) -> list[tuple[Json, ...]] | None:
    """Return the rows without column names, or None if there are more rows than can be compared."""
    try:
        rows, is_whole = database.rows(query)
    finally:
        database.close()
    return [tuple(row.values()) for row in rows] if is_whole else None
