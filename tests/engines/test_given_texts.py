"""Which texts share a pass, and what happens when a pass fails."""

import asyncio
from collections.abc import Sequence

from sparring.engines.given_texts import GivenTexts, Text


def text(size: int, first: int = 1) -> Text:
    return Text(token_ids=(1,) * size, temperature=1.0, first=first)


def test_texts_are_computed_in_passes_of_limited_size_and_an_error_is_that_of_its_pass() -> None:
    passes: list[tuple[str, list[int]]] = []

    def compute(weights: str, texts: Sequence[Text]) -> list[list[float]]:
        sizes = [len(one.token_ids) for one in texts]
        passes.append((weights, sizes))
        if 7 in sizes:
            raise RuntimeError("out of memory")
        return [[-float(size)] * (size - one.first) for size, one in zip(sizes, texts, strict=True)]

    async def scenario() -> list[list[float] | BaseException]:
        given = GivenTexts(compute, max_tokens=10)
        calls = [given.logprobs("a", text(size)) for size in (4, 3, 7, 2, 12)]
        found = await asyncio.gather(
            *calls, given.logprobs("b", text(3, first=2)), given.logprobs("a", text(1)), return_exceptions=True
        )
        # Later requests are not affected.
        return [*found, await given.logprobs("a", text(2))]

    found = asyncio.run(scenario())
    # 4 + 3 + 2 are within 10 tokens; the text of 12 is longer; other weights have a pass of their own.
    assert sorted(passes) == [("a", [2]), ("a", [4, 3, 2]), ("a", [7]), ("a", [12]), ("b", [3])]
    assert [one if isinstance(one, list) else str(one) for one in found] == [
        [-4.0] * 3, [-3.0] * 2, "out of memory", [-2.0], [-12.0] * 11, [-3.0], [], [-2.0],
    ]  # fmt: skip
