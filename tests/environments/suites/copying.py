"""A policy without reason: it calls every tool with every value it has seen, and copies what the tools returned into the answer.

Which source fills which field it learns from the labels of training tasks, so that it copies as cleverly as copying can.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from sparring.environments import execute, opened
from sparring.environments.base import reset
from sparring.environments.suites.sop import SopDomain
from sparring.environments.tools import fits, tools_of
from sparring.types import Json, Task

Sources: TypeAlias = Mapping[str, Json]
"""Everything that an episode has shown, by where it was seen."""

MOST_CALLS = 40
"""Of one tool in one round; there are three."""

MOST_WORDS = 12
"""A field with more answers than these is about names, codes or numbers."""


async def observed(domain: SopDomain, task: Task) -> Sources:
    """What all tools say to all values from the request, the prompt's queries and earlier answers."""
    seen: dict[str, list[Json]] = {}
    async with opened(desk := domain.desk(), task):
        prompt, *_, request = [message["content"] for message in await reset(desk, task)]
        values: list[Json] = [_as_number(word) for word in re.findall(r"[\w.@-]*\w", request)]
        seen.update({f"request {place}": [value] for place, value in enumerate(values)})
        queries = re.findall(r"SELECT[^\n`\"]*", prompt)
        queries += [f"SELECT * FROM {table}" for table in re.findall(r"(\w+)\(\w+, ", prompt)]
        called: set[str] = set()
        for _ in range(3):
            for name, tool in tools_of(domain.desk).items():
                calls = _calls(tool.hints, values, queries)
                for arguments in itertools.islice(calls, MOST_CALLS):
                    if (key := f"{name} {arguments}") in called:
                        continue
                    called.add(key)
                    result = await execute(desk, name, arguments)
                    if result.error is None:
                        for path, value in _scalars(json.loads(result.content)):
                            seen.setdefault(f"{name} {path}", []).append(value)
                            if value not in values:
                                values.append(value)
    sources: dict[str, Json] = {}
    for place, found in seen.items():
        sources |= {f"first {place}": found[0], f"last {place}": found[-1]}
        sources[f"most frequent {place}"] = Counter(found).most_common(1)[0][0]
        numbers = [value for value in found if isinstance(value, int | float)]
        if numbers:
            sources |= {f"largest {place}": max(numbers), f"smallest {place}": min(numbers)}
    return sources


class Copier:
    """For each field the source that was right most often, chosen together: a place to copy from, or a constant."""

    def __init__(self, tasks: Sequence[Task], observations: Sequence[Sources], num_candidates: int = 10) -> None:
        answers = [{field: json.dumps(value) for field, value in task.fields["answer"].items()} for task in tasks]
        self._fields = tuple(answers[0])
        self._answers = {field: Counter(answer[field] for answer in answers) for field in self._fields}
        known = [self._known(sources) for sources in observations]
        candidates = []
        for field in self._fields:
            right = Counter(
                place
                for answer, sources in zip(answers, known, strict=True)
                for place, value in sources.items()
                if value == answer[field] and place.partition(" of ")[2] in ("", field)
            )
            ranked = [place for place, _ in right.most_common()]
            constants = [place for place in ranked if place.startswith("constant")]
            candidates.append([*dict.fromkeys([*ranked[:num_candidates], *constants])])
        self.plan: Sequence[str] = max(
            itertools.product(*candidates),
            key=lambda plan: sum(
                all(sources.get(place) == answer[field] for field, place in zip(self._fields, plan, strict=True))
                for answer, sources in zip(answers, known, strict=True)
            ),
        )

    def answer(self, sources: Sources) -> Mapping[str, Json]:
        known = self._known(sources)
        return {
            field: json.loads(known.get(place, "null")) for field, place in zip(self._fields, self.plan, strict=True)
        }

    def _known(self, sources: Sources) -> dict[str, str]:
        """The sources as JSON, with constants and with what was seen of each field's vocabulary."""
        known = {place: json.dumps(value) for place, value in sources.items()}
        seen = list(known.values())
        for field, answers in self._answers.items():
            # Of names and codes, which differ between tasks, only the shape is known.
            kind = _shape if len(answers) > MOST_WORDS else str
            words = {kind(value) for value in answers}
            matching = [value for value in seen if kind(value) in words]
            if matching:
                known |= {f"first word of {field}": matching[0], f"last word of {field}": matching[-1]}
                known[f"most frequent word of {field}"] = Counter(matching).most_common(1)[0][0]
            known |= {
                f"constant {number} of {field}": value for number, (value, _) in enumerate(answers.most_common(8))
            }
        return known


def _calls(hints: Mapping[str, object], values: Sequence[Json], queries: Sequence[str]) -> Iterator[dict[str, Json]]:
    choices = []
    for name, hint in hints.items():
        fitting = queries if name == "sql" else [value for value in values if fits(value, hint)]
        choices.append(list(fitting))
    for combination in itertools.product(*choices):
        yield dict(zip(hints, combination, strict=True))


def _scalars(value: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _scalars(item, f"{path}.{key}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _scalars(item, f"{path}.{place}")
    elif value is not None:
        yield path, value


def _shape(text: str) -> str:
    """A99 for K42."""
    return re.sub(r"[a-z]+", "a", re.sub(r"[A-Z]", "A", re.sub(r"\d", "9", text)))


def _as_number(word: str) -> Json:
    return int(word) if word.isdecimal() else word
