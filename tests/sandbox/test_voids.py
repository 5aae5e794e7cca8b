"""A program that breaks its box fails like any other: nothing that it does is taken for an outage."""

import asyncio

import pytest

from sparring.errors import UsageError
from sparring.sandbox import open_sandbox
from tests.sandbox.voids import HONEST, LIMITS, RIGHT, VOIDS, steps


@pytest.fixture(scope="module")
def ends() -> dict[str, object]:
    """By name: how each step ended after a wrong answer, or the error that it ended with; under "" after an honest one, and
    under "right" after a right answer."""
    try:
        sandbox = open_sandbox(backend="bubblewrap", limits=LIMITS)
    except UsageError as error:
        pytest.skip(f"bubblewrap does not work on this machine: {error}")

    async def played() -> list[object]:
        slots = asyncio.Semaphore(4)

        async def one(code: str) -> object:
            async with slots:
                return await steps(sandbox, code)

        found = await asyncio.gather(*map(one, ["", *VOIDS.values()]), return_exceptions=True)
        return [await steps(sandbox, answer=RIGHT), *found]

    return dict(zip(["right", "", *VOIDS], asyncio.run(played()), strict=True))


@pytest.mark.parametrize("name", VOIDS)
def test_a_wrong_answer_that_breaks_its_box_scores_what_an_honest_one_scores(
    name: str, ends: dict[str, object]
) -> None:
    # No test passed, the grader found no right answer, and a file that was written afterwards is there.
    assert ends[""] == HONEST
    assert ends["right"] == {**HONEST, "unit tests": "passed", "grade": "right"}
    assert ends[name] == HONEST
