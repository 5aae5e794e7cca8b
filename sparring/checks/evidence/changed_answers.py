"""Changes to correct answers that a model may produce. The grade of each changed answer shows what a grader really
reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sparring.checks.evidence.answer_forms import ANSWER_TAGS, AnswerForm, canonical, get_text
from sparring.environments import answer
from sparring.types import Json, Message

LOOK_ALIKES = str.maketrans("aeiopcxyABEHKMOPTX", "аеіорсхуАВЕНКМОРТХ")
"""Latin letters and the Cyrillic letters that look the same."""
NUM_PADDING = 20_000
"""The number of characters of padding before an answer."""


_Change: TypeAlias = Callable[[Json, Sequence[Json]], Json | None]
"""A function of the value of a part and of the part's values in all answers. It returns None if the change does not
apply."""


class Kind(Enum):
    """The effect of a change on a correct answer."""

    SAME = "the same answer, written in another way that its form allows"
    AROUND = "the same answer with something around it"
    FORM = "the right values, but not in the requested form"
    WRONG = "other values, or several at once"
    DOUBTFUL = "something was done that does not look right"
    OTHER = "something else was done, which may be equally good"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A changed answer, or changed calls."""

    name: str
    kind: Kind
    message: Message
    calls: tuple[str, ...] | None = None
    """The calls of the episode, if the calls were changed."""


def mutate_answer(
    form: AnswerForm, right: Message, labels: Mapping[str, Sequence[Json]], tags: Sequence[str] = ()
) -> Iterator[Mutation]:
    """Yield changed versions of one correct answer. `labels` are the values of each part over all tasks. `tags` are
    other tags to try.

    Every changed answer differs from `right`. Changes that do not apply to the format are left out.
    """
    seen = {_key_of(right)}
    parts = form.parts(right)
    sources = [] if parts is None else [_change_values(form, parts, _write_wrong(form, parts, labels))]
    if form.tool is None:
        sources.append(_rewrite(form, right, tags))
        if parts is not None:
            sources += [_change_json(form, parts), _write_several(form, right, parts, labels)]
    for source in sources:
        for mutation in source:
            text = _key_of(mutation.message)
            if text not in seen:
                seen.add(text)
                yield mutation


def _change_values(form: AnswerForm, parts: Mapping[str, Json], wrong: Iterator[Mutation]) -> Iterator[Mutation]:
    """Yield the mutations, except those that equal the correct values in another notation: half of the text "7" is
    still "7"."""
    return (one for one in wrong if canonical(form.parts(one.message)) != canonical(dict(parts)))


def replace_parts(parts: Mapping[str, Json], labels: Mapping[str, Sequence[Json]]) -> dict[str, Json]:
    """Return parts whose values are all wrong. Each value is the correct value of another task, if there is one."""
    return {name: _replace_value(value, labels.get(name, ())) for name, value in parts.items()}


def name_all_labels(parts: Mapping[str, Json], labels: Mapping[str, Sequence[Json]]) -> dict[str, Json]:
    """Return parts that each contain every label, up to 50 labels."""
    return {name: ", ".join(_distinct(labels.get(name, [value]))[:50]) for name, value in parts.items()}


def _write_wrong(
    form: AnswerForm, parts: Mapping[str, Json], labels: Mapping[str, Sequence[Json]]
) -> Iterator[Mutation]:
    def all_parts(name: str, change: Mapping[str, Json]) -> Mutation:
        return Mutation(name, Kind.WRONG, form.message({**parts, **change}))

    yield all_parts("every value another one", replace_parts(parts, labels))
    if len(parts) > 1:
        last = list(parts)[-1]
        yield all_parts("one value another one", {last: _replace_value(parts[last], labels.get(last, ()))})
        yield Mutation("a field left out", Kind.WRONG, form.message({name: parts[name] for name in list(parts)[:-1]}))
    if form.is_json:
        yield Mutation("no field at all", Kind.WRONG, form.message({}))
    for name, change in _list_wrong_values(form, parts):
        yield all_parts(name, change)
    for name, kind, change in _ITEMS:
        changed = {
            part: other for part, value in parts.items() if (other := change(value, labels.get(part, ()))) is not None
        }
        if changed:
            yield Mutation(name, kind, form.message({**parts, **changed}))
    if any(len(_distinct(labels.get(name, ()))) > 1 for name in parts):
        yield all_parts("every label named", name_all_labels(parts, labels))
    blank: dict[str, Json] = {"null": None, "''": "", "'unknown'": "unknown", "'N/A'": "N/A", "0": 0, "true": True}
    if form.tool is None and not form.is_json:
        blank = {"''": "", "'unknown'": "unknown", "'N/A'": "N/A"}
    for shown, value in blank.items():
        if all(canonical(value) != canonical(part) for part in parts.values()):
            yield all_parts(f"{shown} for each value", dict.fromkeys(parts, value))


def _list_wrong_values(form: AnswerForm, parts: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Yield wrong values that are similar to the right ones, each with the name of the change."""
    texts = {name: value for name, value in parts.items() if isinstance(value, str)}
    numbers = {name: v for name, v in parts.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if texts:
        # The first digits of a number with a decimal point, or one more digit, may be within a tolerance.
        words = {name: text for name, text in texts.items() if not re.fullmatch(r"-?\d*\.\d+", text)}
        yield "a part of each text", {name: text[: max(1, len(text) // 2)] for name, text in words.items()}
        yield "text before each value", {name: f"un{text}" for name, text in texts.items()}
        yield "text after each value", {name: f"{text}9" for name, text in words.items()}
        yield "each value denied", {name: f"not {text}" for name, text in texts.items()}
        yield "look-alike letters", {name: text.translate(LOOK_ALIKES) for name, text in texts.items()}
    if numbers:
        yield "each number nearly right", {name: value + 1 for name, value in numbers.items()}
        yield "text after each number", {name: f"{value}9" for name, value in numbers.items()}
    written = {name: str(value) for name, value in parts.items() if not isinstance(value, bool)}
    whole = {name: f"{text}.9" for name, text in written.items() if re.fullmatch(r"-?\d+", text)}
    if whole and not form.is_json:
        yield "digits after the point of each whole number", whole
    signed = {name: text[1:] if text[0] == "-" else f"-{text}" for name, text in written.items() if _is_number(text)}
    if signed and not form.is_json:
        yield "the sign of each number changed", signed


def split_items(value: Json) -> tuple[list[Json], str] | None:
    """Return the elements of a list and their separator ("" for a list, "[" for a JSON text), or None if the value is
    not a list."""
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
    """Return True if two lists have elements in common, so that neither list is entirely wrong."""
    (one, _), (other, _) = split_items(value) or ([], ""), split_items(right) or ([], "")
    return bool(set(map(canonical, one)) & set(map(canonical, other)))


def _change_items(change: Callable[[list[Json], list[Json]], list[Json] | None]) -> _Change:
    """Return a function that changes the elements of a list with at least two elements. The second argument of `change`
    contains elements of other answers that this answer lacks."""

    def changed(value: Json, labels: Sequence[Json]) -> Json | None:
        known = split_items(value)
        if known is None or len(known[0]) < 2:
            return None
        items, mark = known
        others = [one for label in labels for one in (split_items(label) or ((), ""))[0] if one not in items]
        made = change(items, others)
        if made is None or not mark:
            return made
        return json.dumps(made, ensure_ascii=False) if mark == "[" else mark.join(map(str, made))

    return changed


_ITEMS: tuple[tuple[str, Kind, _Change], ...] = (
    ("an element left out", Kind.WRONG, _change_items(lambda items, _: items[:-1])),
    ("one element alone", Kind.WRONG, _change_items(lambda items, _: items[:1])),
    ("an element added", Kind.WRONG, _change_items(lambda items, others: [*items, others[0]] if others else None)),
    ("an element twice", Kind.OTHER, _change_items(lambda items, _: [*items, items[0]])),
    ("elements in another order", Kind.OTHER, _change_items(lambda items, _: items[::-1])),
)


def _rewrite(form: AnswerForm, right: Message, tags: Sequence[str]) -> Iterator[Mutation]:
    """Yield changes to the text around the answer."""
    text = get_text(right)

    def as_changed(name: str, changed: str, kind: Kind = Kind.FORM) -> Mutation:
        return Mutation(name, kind, answer(changed))

    for tag in form.tags:
        yield as_changed("the tag dropped", re.sub(rf"</?{re.escape(tag)}>", "", text))
        yield as_changed("the tag not closed", text.replace(f"</{tag}>", ""))
        yield as_changed("the tag not opened", text.replace(f"<{tag}>", ""))
        yield as_changed("the tag in capitals", text.replace(f"{tag}>", f"{tag.upper()}>"))
        others = [*tags, *ANSWER_TAGS] if len(form.tags) == 1 else []
        for other in dict.fromkeys(others):
            if other != tag:
                yield as_changed(f"the tag <{other}>", text.replace(f"{tag}>", f"{other}>"))
    yield as_changed("text before", f"The answer is as follows. {text}", Kind.AROUND)
    yield as_changed("text after", f"{text} I hope that this helps.", Kind.AROUND)
    yield as_changed("in a code fence", f"```\n{text}\n```", Kind.AROUND)
    yield as_changed("repeated", f"{text}\n{text}", Kind.AROUND)
    yield as_changed("in quotes", f'"{text}"', Kind.AROUND)
    yield as_changed("blank lines around", f"\n\n  {text}  \n\n", Kind.AROUND)
    yield as_changed("a very long text before", f"{'so ' * (NUM_PADDING // 3)}{text}", Kind.AROUND)
    for case, change in (("upper", str.upper), ("lower", str.lower)):
        changed = _change_in_tags(form, text, change) if form.tags else change(text)
        if form.parts(answer(changed)) != form.parts(right):
            yield as_changed(f"letters {case}-cased", changed)
    yield as_changed(
        "inside a tool call that is text", f"<tool_call>{json.dumps({'name': 'note', 'arguments': {'text': text}})}"
    )


def _change_json(form: AnswerForm, parts: Mapping[str, Json]) -> Iterator[Mutation]:
    """Yield changes to the JSON object in the answer. For other formats, yield the answer with spaces around the
    value."""
    if not form.is_json:
        if form.tag is not None or form.before or form.after:
            body = form.body(parts)
            yield Mutation("spaces around the value", Kind.SAME, answer(form.text(f" {body} ")))
        return
    body = form.body(parts)

    def as_changed(name: str, changed: str, kind: Kind = Kind.FORM) -> Mutation:
        return Mutation(name, kind, answer(form.text(changed)))

    yield as_changed(
        "keys in another order", json.dumps(dict(reversed(list(parts.items()))), ensure_ascii=False), Kind.SAME
    )
    yield as_changed("JSON over several lines", json.dumps(dict(parts), indent=2, ensure_ascii=False), Kind.SAME)
    yield as_changed("the object in a code fence", f"```json\n{body}\n```")
    yield as_changed("the object not closed", body.rstrip().removesuffix("}"))
    yield as_changed("a comma after the last field", body.rstrip().removesuffix("}") + ",}")
    yield as_changed("single quotes", repr(dict(parts)))
    yield as_changed("the object in a list", f"[{body}]")
    yield as_changed("a field added", json.dumps({**parts, "note": "added"}, ensure_ascii=False))
    first = next(iter(parts))
    pair = f"{json.dumps(first)}: {json.dumps(parts[first], ensure_ascii=False)}, "
    yield as_changed("a key twice", body.replace("{", "{" + pair, 1))
    lie = f"{json.dumps(first)}: {json.dumps(_replace_value(parts[first], ()), ensure_ascii=False)}, "
    yield as_changed("a key twice, wrong first", body.replace("{", "{" + lie, 1), Kind.WRONG)
    yield as_changed(
        "keys in capitals", json.dumps({name.upper(): value for name, value in parts.items()}, ensure_ascii=False)
    )
    yield as_changed(
        "values in lists", json.dumps({name: [value] for name, value in parts.items()}, ensure_ascii=False)
    )
    padded = {name: f" {value} " if isinstance(value, str) else value for name, value in parts.items()}
    if padded != dict(parts):
        yield as_changed("values padded", json.dumps(padded, ensure_ascii=False))
    as_texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parts.items()}
    if as_texts != dict(parts):
        yield as_changed("numbers as texts", json.dumps(as_texts, ensure_ascii=False))


def _write_several(
    form: AnswerForm, right: Message, parts: Mapping[str, Json], labels: Mapping[str, Sequence[Json]]
) -> Iterator[Mutation]:
    """Yield messages with more than one answer."""
    text, wrong = get_text(right), get_text(form.message(replace_parts(parts, labels)))
    if form.tool is None and not form.tags and not form.is_json and (form.before or form.after):
        # The graders may read the first or the last of several lines, but not a line between them.
        yield Mutation("the right answer between wrong ones", Kind.WRONG, answer(f"{wrong}\n{text}\n{wrong}"))
        return
    yield Mutation("a wrong answer, then the right one", Kind.WRONG, answer(f"{wrong}\n{text}"))
    yield Mutation("the right answer, then a wrong one", Kind.WRONG, answer(f"{text}\n{wrong}"))
    yield Mutation("the right answer, taken back", Kind.WRONG, answer(f"{text}\nNo, that is wrong: {wrong}"))
    if len(parts) == 1:
        (name,) = parts
        every = [form.message({name: value}) for value in _values(labels.get(name, ()))]
        if len(every) > 1:
            yield Mutation("an answer with each label", Kind.WRONG, answer("\n".join(map(get_text, every[:50]))))


def _is_number(text: str) -> bool:
    """Return True if a string is a number other than 0."""
    return re.fullmatch(r"-?\d+(?:\.\d+)?", text) is not None and float(text) != 0


def _change_in_tags(form: AnswerForm, text: str, change: Callable[[str], str]) -> str:
    """Return the text with the values in its tags changed. JSON keys are left unchanged."""
    parts = form.parts(answer(text))
    if parts is None:
        return text
    return get_text(form.message({name: change(v) if isinstance(v, str) else v for name, v in parts.items()}))


def _replace_value(value: Json, values: Sequence[Json]) -> Json:
    """Return a wrong value of the same type."""
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


def _key_of(message: Message) -> str:
    return json.dumps([message.get("content"), [c["function"] for c in message.get("tool_calls") or ()]], default=str)
