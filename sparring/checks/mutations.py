"""Right answers changed in ways that models find: what a judge makes of each shows what it really reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sparring.checks.answers import ANSWER_TAGS, AnswerForm, canonical, text_of
from sparring.environments import answer
from sparring.types import Json, Message

LOOK_ALIKES = str.maketrans("aeiopcxyABEHKMOPTX", "аеіорсхуАВЕНКМОРТХ")
"""Latin letters and the Cyrillic ones that look the same."""
NUM_PADDING = 20_000
"""Characters of a very long answer."""


_Change: TypeAlias = Callable[[Json, Sequence[Json]], Json | None]
"""Of the value of a part, with those that it has in all answers; None where it cannot be changed so."""


class Kind(Enum):
    """What a change does to a right answer."""

    SAME = "the same answer, written in another way that its form allows"
    AROUND = "the same answer with something around it"
    FORM = "the right values, not in the form that was asked for"
    WRONG = "other values, or several at once"
    DOUBTFUL = "something was done that does not look right"
    OTHER = "something else was done, which may be as good"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A changed answer, or changed calls."""

    name: str
    kind: Kind
    message: Message
    calls: tuple[str, ...] | None = None
    """What was called, where that is what was changed."""


def mutations(
    form: AnswerForm, right: Message, labels: Mapping[str, Sequence[Json]], tags: Sequence[str] = ()
) -> Iterator[Mutation]:
    """Changes of one right answer; `labels` are the values that each part has over all tasks, `tags` further ones to swap in.

    Every change differs from `right`. What does not apply to the form is left out.
    """
    seen = {_said(right)}
    parts = form.parts(right)
    sources = [] if parts is None else [_changed(form, parts, _wrong(form, parts, labels))]
    if form.tool is None:
        sources.append(_rewritten(form, right, tags))
        if parts is not None:
            sources += [_json(form, parts), _several(form, right, parts, labels)]
    for source in sources:
        for mutation in source:
            said = _said(mutation.message)
            if said not in seen:
                seen.add(said)
                yield mutation


def _changed(form: AnswerForm, parts: Mapping[str, Json], wrong: Iterator[Mutation]) -> Iterator[Mutation]:
    """Those whose values are not the right ones in another spelling: half of "7" is "7"."""
    return (one for one in wrong if canonical(form.parts(one.message)) != canonical(dict(parts)))


def other_parts(parts: Mapping[str, Json], labels: Mapping[str, Sequence[Json]]) -> dict[str, Json]:
    """Parts that are all wrong, each a value that is right for another task where there is one."""
    return {name: _other(value, labels.get(name, ())) for name, value in parts.items()}


def naming_all(parts: Mapping[str, Json], labels: Mapping[str, Sequence[Json]]) -> dict[str, Json]:
    """Parts that each name every value there is."""
    return {name: ", ".join(_distinct(labels.get(name, [value]))[:50]) for name, value in parts.items()}


def _wrong(form: AnswerForm, parts: Mapping[str, Json], labels: Mapping[str, Sequence[Json]]) -> Iterator[Mutation]:
    def all_parts(name: str, change: Mapping[str, Json]) -> Mutation:
        return Mutation(name, Kind.WRONG, form.message({**parts, **change}))

    yield all_parts("every value another one", other_parts(parts, labels))
    if len(parts) > 1:
        last = list(parts)[-1]
        yield all_parts("one value another one", {last: _other(parts[last], labels.get(last, ()))})
        yield Mutation("a field left out", Kind.WRONG, form.message({name: parts[name] for name in list(parts)[:-1]}))
    if form.is_json:
        yield Mutation("no field at all", Kind.WRONG, form.message({}))
    texts = {name: value for name, value in parts.items() if isinstance(value, str)}
    numbers = {name: v for name, v in parts.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if texts:
        # The first digits of a number with a point, and one digit more, may be within a tolerance.
        words = {name: text for name, text in texts.items() if not re.fullmatch(r"-?\d*\.\d+", text)}
        yield all_parts("a part of each text", {name: text[: max(1, len(text) // 2)] for name, text in words.items()})
        yield all_parts("text before each value", {name: f"un{text}" for name, text in texts.items()})
        yield all_parts("text after each value", {name: f"{text}9" for name, text in words.items()})
        yield all_parts("each value denied", {name: f"not {text}" for name, text in texts.items()})
        yield all_parts("look-alike letters", {name: text.translate(LOOK_ALIKES) for name, text in texts.items()})
    if numbers:
        yield all_parts("each number nearly right", {name: value + 1 for name, value in numbers.items()})
        yield all_parts("text after each number", {name: f"{value}9" for name, value in numbers.items()})
    written = {name: str(value) for name, value in parts.items() if not isinstance(value, bool)}
    whole = {name: f"{text}.9" for name, text in written.items() if re.fullmatch(r"-?\d+", text)}
    if whole and not form.is_json:
        yield all_parts("digits after the point of each whole number", whole)
    signed = {name: text[1:] if text[0] == "-" else f"-{text}" for name, text in written.items() if _is_number(text)}
    if signed and not form.is_json:
        yield all_parts("the sign of each number changed", signed)
    for name, kind, change in _ITEMS:
        changed = {
            part: other for part, value in parts.items() if (other := change(value, labels.get(part, ()))) is not None
        }
        if changed:
            yield Mutation(name, kind, form.message({**parts, **changed}))
    if any(len(_distinct(labels.get(name, ()))) > 1 for name in parts):
        yield all_parts("every label named", naming_all(parts, labels))
    blank: dict[str, Json] = {"null": None, "''": "", "'unknown'": "unknown", "'N/A'": "N/A", "0": 0, "true": True}
    if form.tool is None and not form.is_json:
        blank = {"''": "", "'unknown'": "unknown", "'N/A'": "N/A"}
    for shown, value in blank.items():
        if all(canonical(value) != canonical(part) for part in parts.values()):
            yield all_parts(f"{shown} for each value", dict.fromkeys(parts, value))


def items_of(value: Json) -> tuple[list[Json], str] | None:
    """The elements of a list, and what stands between them in a text; "" for a list, and "[" for one written as JSON."""
    if isinstance(value, list):
        return value, ""
    if not isinstance(value, str):
        return None
    if value.lstrip().startswith("["):
        try:
            found = json.loads(value)
        except ValueError:
            return None
        return (found, "[") if isinstance(found, list) else None
    mark = next((mark for mark in ("\n", "; ", ";", ", ", ",") if mark in value), None)
    is_number = re.fullmatch(r"[\d.,]+", value) is not None and mark == ","
    return None if mark is None or is_number else (list(value.split(mark)), mark)


def shares_elements(value: Json, right: Json) -> bool:
    """Whether two lists have elements in common, so that one is not all wrong."""
    (one, _), (other, _) = items_of(value) or ([], ""), items_of(right) or ([], "")
    return bool(set(map(canonical, one)) & set(map(canonical, other)))


def _with_items(change: Callable[[list[Json], list[Json]], list[Json] | None]) -> _Change:
    """Changes the elements of a list of two and more; `others` are elements of other answers that it does not have."""

    def changed(value: Json, labels: Sequence[Json]) -> Json | None:
        known = items_of(value)
        if known is None or len(known[0]) < 2:
            return None
        items, mark = known
        others = [one for label in labels for one in (items_of(label) or ((), ""))[0] if one not in items]
        made = change(items, others)
        if made is None or not mark:
            return made
        return json.dumps(made, ensure_ascii=False) if mark == "[" else mark.join(map(str, made))

    return changed


_ITEMS: tuple[tuple[str, Kind, _Change], ...] = (
    ("an element left out", Kind.WRONG, _with_items(lambda items, _: items[:-1])),
    ("one element alone", Kind.WRONG, _with_items(lambda items, _: items[:1])),
    ("an element added", Kind.WRONG, _with_items(lambda items, others: [*items, others[0]] if others else None)),
    ("an element twice", Kind.OTHER, _with_items(lambda items, _: [*items, items[0]])),
    ("elements in another order", Kind.OTHER, _with_items(lambda items, _: items[::-1])),
)


def _rewritten(form: AnswerForm, right: Message, tags: Sequence[str]) -> Iterator[Mutation]:
    """Changes of the text around the answer."""
    text = text_of(right)

    def said(name: str, changed: str, kind: Kind = Kind.FORM) -> Mutation:
        return Mutation(name, kind, answer(changed))

    for tag in form.tags:
        yield said("the tag dropped", re.sub(rf"</?{re.escape(tag)}>", "", text))
        yield said("the tag not closed", text.replace(f"</{tag}>", ""))
        yield said("the tag not opened", text.replace(f"<{tag}>", ""))
        yield said("the tag in capitals", text.replace(f"{tag}>", f"{tag.upper()}>"))
        others = [*tags, *ANSWER_TAGS] if len(form.tags) == 1 else []
        for other in dict.fromkeys(others):
            if other != tag:
                yield said(f"the tag <{other}>", text.replace(f"{tag}>", f"{other}>"))
    yield said("text before", f"The answer is as follows. {text}", Kind.AROUND)
    yield said("text after", f"{text} I hope that this helps.", Kind.AROUND)
    yield said("in a code fence", f"```\n{text}\n```", Kind.AROUND)
    yield said("said twice", f"{text}\n{text}", Kind.AROUND)
    yield said("in quotes", f'"{text}"', Kind.AROUND)
    yield said("blank lines around", f"\n\n  {text}  \n\n", Kind.AROUND)
    yield said("a very long text before", f"{'so ' * (NUM_PADDING // 3)}{text}", Kind.AROUND)
    for case, change in (("upper", str.upper), ("lower", str.lower)):
        changed = _in_tags(form, text, change) if form.tags else change(text)
        if form.parts(answer(changed)) != form.parts(right):
            yield said(f"letters {case}-cased", changed)
    yield said(
        "inside a tool call that is text", f"<tool_call>{json.dumps({'name': 'note', 'arguments': {'text': text}})}"
    )


def _json(form: AnswerForm, parts: Mapping[str, Json]) -> Iterator[Mutation]:
    """Changes of the object in the answer."""
    if not form.is_json:
        if form.tag is not None or form.before or form.after:
            body = form.body(parts)
            yield Mutation("spaces around the value", Kind.SAME, answer(form.text(f" {body} ")))
        return
    body = form.body(parts)

    def said(name: str, changed: str, kind: Kind = Kind.FORM) -> Mutation:
        return Mutation(name, kind, answer(form.text(changed)))

    yield said("keys in another order", json.dumps(dict(reversed(list(parts.items()))), ensure_ascii=False), Kind.SAME)
    yield said("JSON over several lines", json.dumps(dict(parts), indent=2, ensure_ascii=False), Kind.SAME)
    yield said("the object in a code fence", f"```json\n{body}\n```")
    yield said("the object not closed", body.rstrip().removesuffix("}"))
    yield said("a comma after the last field", body.rstrip().removesuffix("}") + ",}")
    yield said("single quotes", repr(dict(parts)))
    yield said("the object in a list", f"[{body}]")
    yield said("a field added", json.dumps({**parts, "note": "added"}, ensure_ascii=False))
    first = next(iter(parts))
    pair = f"{json.dumps(first)}: {json.dumps(parts[first], ensure_ascii=False)}, "
    yield said("a key twice", body.replace("{", "{" + pair, 1))
    lie = f"{json.dumps(first)}: {json.dumps(_other(parts[first], ()), ensure_ascii=False)}, "
    yield said("a key twice, wrong first", body.replace("{", "{" + lie, 1), Kind.WRONG)
    yield said(
        "keys in capitals", json.dumps({name.upper(): value for name, value in parts.items()}, ensure_ascii=False)
    )
    yield said("values in lists", json.dumps({name: [value] for name, value in parts.items()}, ensure_ascii=False))
    padded = {name: f" {value} " if isinstance(value, str) else value for name, value in parts.items()}
    if padded != dict(parts):
        yield said("values padded", json.dumps(padded, ensure_ascii=False))
    as_texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parts.items()}
    if as_texts != dict(parts):
        yield said("numbers as texts", json.dumps(as_texts, ensure_ascii=False))


def _several(
    form: AnswerForm, right: Message, parts: Mapping[str, Json], labels: Mapping[str, Sequence[Json]]
) -> Iterator[Mutation]:
    """More than one answer at once."""
    text, wrong = text_of(right), text_of(form.message(other_parts(parts, labels)))
    if form.tool is None and not form.tags and not form.is_json and (form.before or form.after):
        # A line of its own may be written again: the first or the last may count, and no other.
        yield Mutation("the right answer between wrong ones", Kind.WRONG, answer(f"{wrong}\n{text}\n{wrong}"))
        return
    yield Mutation("a wrong answer, then the right one", Kind.WRONG, answer(f"{wrong}\n{text}"))
    yield Mutation("the right answer, then a wrong one", Kind.WRONG, answer(f"{text}\n{wrong}"))
    yield Mutation("the right answer, taken back", Kind.WRONG, answer(f"{text}\nNo, that is wrong: {wrong}"))
    if len(parts) == 1:
        (name,) = parts
        every = [form.message({name: value}) for value in _values(labels.get(name, ()))]
        if len(every) > 1:
            yield Mutation("an answer with each label", Kind.WRONG, answer("\n".join(map(text_of, every[:50]))))


def _is_number(text: str) -> bool:
    """Whether a text is a number that is not 0."""
    return re.fullmatch(r"-?\d+(?:\.\d+)?", text) is not None and float(text) != 0


def _in_tags(form: AnswerForm, text: str, change: Callable[[str], str]) -> str:
    """The text with what stands in its tags changed; JSON keys stay, values change."""
    parts = form.parts(answer(text))
    if parts is None:
        return text
    return text_of(form.message({name: change(v) if isinstance(v, str) else v for name, v in parts.items()}))


def _other(value: Json, values: Sequence[Json]) -> Json:
    """A wrong value of the same type."""
    other = next((one for one in values if canonical(one) != canonical(value)), None)
    if other is not None:
        return other
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    return f"no {value}" if isinstance(value, str) else None if value is not None else "none"


def _values(values: Sequence[Json]) -> list[Json]:
    return list({canonical(value): value for value in values}.values())


def _distinct(values: Sequence[Json]) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value) for value in _values(values)]


def _said(message: Message) -> str:
    return json.dumps([message.get("content"), [c["function"] for c in message.get("tool_calls") or ()]], default=str)
