"""The format of a recipe's reference answers and of their parts, inferred from several answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from sparring.environments import answer, tool_call
from sparring.types import Json, Message, Task, Trajectory

ANSWER_TAGS = (
    "final_output",
    "final_response",
    "final_decision",
    "answer",
    "response",
    "output",
    "result",
    "final_answer",
)
"""Tags that prompts often request. The checks try these tags and the tags of the prompt with the scorer."""

_NESTED = re.compile(r"(?=<([A-Za-z_][\w-]*)>(.*?)</\1>)", flags=re.DOTALL)
_TAGGED = re.compile(r"<([A-Za-z_][\w-]*)>(.*?)</\1>", flags=re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The format that the last messages of correct episodes share.

    An answer is either the arguments of a call to `tool`, or a text that consists of `before`, the answer in `tags`,
    and `after`. With at most one tag, the answer is a JSON object, or a single text, which is the part named "". With
    several tags, each tag contains the text of the part with the same name.
    """

    tool: str | None = None
    tags: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    is_json: bool = False

    @property
    def tag(self) -> str | None:
        """The only tag, or None if there are none or several."""
        return self.tags[0] if len(self.tags) == 1 else None

    def parts(self, message: Message) -> dict[str, Json] | None:
        """Return the named parts of an answer, or None if the message does not have this format."""
        if self.tool is not None:
            return _get_arguments(message, self.tool)
        text = get_text(message)
        if len(self.tags) > 1:
            found = dict(_TAGGED.findall(text))
            return {tag: found[tag].strip() for tag in self.tags} if set(self.tags) <= found.keys() else None
        body = _cut_between(text, self.before, self.after)
        if body is not None and self.tag is not None:
            body = _cut_between(body.strip(), f"<{self.tag}>", f"</{self.tag}>")
        if body is None:
            return None
        return parse_object(body) if self.is_json else {"": body.strip()}

    def message(self, parts: Mapping[str, Json]) -> Message:
        """Return the answer that consists of these parts."""
        if self.tool is not None:
            return tool_call(self.tool, **parts)
        return answer(self.text(self.body(parts)))

    def body(self, parts: Mapping[str, Json]) -> str:
        """Return the text between the tags. With several tags, the text includes the tags."""
        if len(self.tags) > 1:
            return "\n".join(f"<{tag}>{_plain(parts.get(tag, ''))}</{tag}>" for tag in self.tags)
        return json.dumps(dict(parts), ensure_ascii=False) if self.is_json else _plain(next(iter(parts.values()), ""))

    def text(self, body: str, tag: str | None = None) -> str:
        """Return the whole answer around a body. `tag` replaces the format's own tag."""
        if self.tag is not None:
            body = f"<{tag or self.tag}>{body}</{tag or self.tag}>"
        return f"{self.before}{body}{self.after}"


def detect_answer_form(messages: Sequence[Message]) -> AnswerForm:
    """Return the most specific format that all these answers share. The result is more reliable if the answers differ
    from each other."""
    tools = {_get_last_tool(message) for message in messages}
    if len(tools) == 1 and None not in tools:
        return AnswerForm(tool=tools.pop())
    texts = [get_text(message) for message in messages]
    tagged = _detect_tagged_form(texts)
    if tagged is not None:
        return tagged
    if all(parse_object(text) is not None for text in texts):
        return AnswerForm(is_json=True)
    if len(set(texts)) < 2:
        return AnswerForm()
    before = _cut_to_whole_words(_common_start(texts))
    after = _cut_to_whole_words(_common_start([text[len(before) :][::-1] for text in texts]))[::-1]
    return AnswerForm(before=before, after=after)


def _detect_tagged_form(texts: Sequence[str]) -> AnswerForm | None:
    """Return the format with tags that all texts share, or None if there is no such format."""
    tags = {tuple(tag for tag, _ in _TAGGED.findall(text)) for text in texts}
    if len(tags) != 1:
        return None
    found = tags.pop()
    thoughts = {tuple(body for tag, body in _TAGGED.findall(text) if tag.lower() in _THOUGHT_TAGS) for text in texts}
    if len(thoughts) == 1:
        found = tuple(tag for tag in found if tag.lower() not in _THOUGHT_TAGS) or found
    if len(found) > 1 and len(set(found)) == len(found):
        return AnswerForm(tags=found)
    if len(found) != 1:
        return None
    outside = [re.split(rf"<{found[0]}>.*</{found[0]}>", text, maxsplit=1, flags=re.DOTALL) for text in texts]
    bodies = [dict(_TAGGED.findall(text))[found[0]] for text in texts]
    return AnswerForm(
        tags=found,
        before=_get_common([before for before, _ in outside]),
        after=_get_common([after for _, after in outside]),
        is_json=all(parse_object(body) is not None for body in bodies),
    )


def get_text(message: Message) -> str:
    """Return the text of a message, or "" if its content is not text."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def parse_object(text: str) -> dict[str, Json] | None:
    """Return the JSON object in a string, or None if the string is not a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def canonical(value: Json) -> str:
    """Return the same string for equal JSON values: 1 and 1.0 are equal, but 1 does not equal true or "1". A value that
    JSON cannot represent is converted to text."""
    return json.dumps(_integral(value), sort_keys=True, ensure_ascii=False, default=str)


def find_tagged(text: str) -> list[tuple[str, str]]:
    """Return (tag, body) of every tag in a string, including nested tags, except those of tool calls."""
    return [(tag, body) for tag, body in _NESTED.findall(text) if tag not in ("tool_call", "tool_calls", "tools")]


def find_frames(prompt: str) -> list[tuple[str, str]]:
    """Return the text before and after the answer for each answer format that a prompt shows, the simplest first:
    `Price: <cents>`, `<dose>X mg</dose>`, [[Jo Doe]], `31.5 hours`, `LEADER`."""
    found: list[tuple[str, str]] = []
    for before, name, after in re.findall(r"([^\n`\"']*)<([A-Za-z][^<>\n/]*)>([^\n`\"'.,;)]*)", prompt):
        if f"</{name}>" not in prompt:
            starts = [before, before.rpartition(": ")[2], *re.findall(r"(?:\A|\s)(\S+ ?)\Z", before)]
            found += [(start.lstrip(), after.rstrip()) for start in starts]
    for tag, body in find_tagged(prompt):
        place = re.search(rf"{_PLACEHOLDER}|\d+(?:\.\d+)?", body)
        if place is not None and parse_object(body) is None:
            found.append((f"<{tag}>{body[: place.start()]}", f"{body[place.end() :]}</{tag}>"))
    for start, end in _BRACKETS:
        found += [(start, end)] * (re.search(rf"{re.escape(start)}[^\n]+?{re.escape(end)}", prompt) is not None)
    if re.search(r"```.*```", prompt, re.DOTALL):
        found.append(("```\n", "\n```"))
    for quoted in re.findall(r"`([^`\n]{1,60})`|\"([^\"\n]{1,60})\"", prompt):
        text = max(quoted)
        places = list(re.finditer(rf"{_PLACEHOLDER}|(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text))
        if len(places) == 1:
            found.append((text[: places[0].start()], text[places[0].end() :]))
    for word, sign in re.findall(r"\b([A-Z][A-Z_]{2,})\b(:| ?=)?", prompt):
        found.append((f"{word}{sign} ", ""))
    found += [(word, "") for word in re.findall(r"(?m)^\s*([A-Za-z][\w ]{1,20}: )\d", prompt)]
    found += [(word, "") for word in re.findall(r"\b((?:[Tt]he )?(?:[Ff]inal )?[Aa]nswer(?: is)?: )", prompt)]
    return [one for one in dict.fromkeys(found) if one != ("", "")][:_MOST_FRAMES]


_PLACEHOLDER = r"\b[XNY]\b|\.\.\.|\{\w*\}"
_BRACKETS = (("[[", "]]"), ("((", "))"), ("{{", "}}"), ("**", "**"), ("\\boxed{", "}"), ("<<", ">>"))
_MOST_FRAMES = 16


def write_answers(task: Task, prompt: str) -> Iterator[tuple[tuple[str, ...], Message]]:
    """Yield answers for a recipe without an expert: values of the task's fields, written in the formats that a prompt
    shows. Each answer comes with a key that identifies answers built in the same way in other tasks."""
    shown = dict.fromkeys(tag for tag, _ in find_tagged(prompt))
    thoughts = [tag for tag in shown if tag.lower() in _THOUGHT_TAGS]
    tags = [tag for tag in dict.fromkeys((*shown, *ANSWER_TAGS)) if tag not in thoughts]
    objects = [keys for body in re.findall(r"\{[^{}]*\}", prompt) if (keys := _KEYS.findall(body))]
    for name, value in task.fields.items():
        for kind, text in _write_alone(value, objects).items():
            yield (name, kind), answer(text)
            for tag in tags:
                yield (name, kind, tag), answer(f"<{tag}>{text}</{tag}>")
    for before, after in find_frames(prompt):
        for name, one in task.fields.items():
            if isinstance(one, str | int | float):
                yield (name, "frame", before, after), answer(f"{before}{one}{after}")
    for way, text in _write_together(task, objects, [tag for tag in shown if tag not in thoughts]):
        yield way, answer(text)
        for tag in tags if way[0] == "object" else ():
            yield (*way, tag), answer(f"<{tag}>{text}</{tag}>")
    if thoughts:
        before = "\n".join(f"<{tag}>{_THOUGHT}</{tag}>" for tag in thoughts)
        for way, message in write_answers(
            task, _TAGGED.sub(lambda found: "" if found[1] in thoughts else found[0], prompt)
        ):
            yield ("after a thought", *way), answer(f"{before}\n{get_text(message)}")


def _write_alone(value: Json, objects: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the texts of an answer that consists of one value, keyed by the kind of text. `objects` are the keys of
    the JSON objects that the prompt shows."""
    texts = {"text": value} if isinstance(value, str) else {}
    # In a list of accepted spellings, each spelling is an answer.
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        texts["spelling"] = value[0]
    with suppress(TypeError):  # some keys cannot be written as JSON
        texts["JSON"] = json.dumps(value, ensure_ascii=False, default=str)
        for key in dict.fromkeys(("answer", *(keys[0] for keys in objects if len(keys) == 1))):
            texts[f"object {key}"] = json.dumps({key: value}, ensure_ascii=False, default=str)
    return texts


_KEYS = re.compile(r"[\"'](\w+)[\"']\s*:")
_THOUGHT_TAGS = {
    "think",
    "thinking",
    "thought",
    "thoughts",
    "reasoning",
    "reason",
    "scratchpad",
    "analysis",
    "plan",
    "explanation",
}
_THOUGHT = "I have looked it up."


def _write_together(
    task: Task, objects: Sequence[Sequence[str]], tags: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield answers with several parts, written as one object or with one tag per part. Each part is the field of the
    same name."""
    leaves = {str(name): value for name, value in task.fields.items()}
    leaves |= {str(key): one for value in task.fields.values() if isinstance(value, dict) for key, one in value.items()}

    def of(key: str) -> str | None:
        near = [name for name in leaves if name == key] or [name for name in leaves if key in re.split(r"[_\W]", name)]
        return near[0] if len(near) == 1 else None

    for keys in objects:
        names = [of(key) for key in keys]
        if len(keys) > 1 and None not in names:
            parts = {key: leaves[str(name)] for key, name in zip(keys, names, strict=True)}
            yield ("object", *keys), json.dumps(parts, ensure_ascii=False, default=str)
    names = [of(tag) for tag in tags]
    if len(tags) > 1 and None not in names:
        yield ("tags", *tags), "\n".join(f"<{tag}>{_plain(leaves[str(of(tag))])}</{tag}>" for tag in tags)


@final
class ReadFields(dict[str, Any]):
    """The fields of a task. They record the paths that a grader reads (`read`) and the missing paths that it looks for
    (`missed`)."""

    def __init__(self, fields: Mapping[str, Json], path: tuple[str, ...] = (), root: ReadFields | None = None) -> None:
        super().__init__(fields)
        self._path = path
        self.read: set[tuple[str, ...]] = root.read if root is not None else set()
        self.missed: set[tuple[str, ...]] = root.missed if root is not None else set()
        self._root = root or self

    def _note(self, key: str) -> Any:
        value = super().__getitem__(key)
        self.read.add((*self._path, key))
        return ReadFields(value, (*self._path, key), self._root) if isinstance(value, Mapping) else value

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._note(key)

    def __contains__(self, key: object) -> bool:
        known = super().__contains__(key)
        if not known and isinstance(key, str):
            self.missed.add((*self._path, key))
        return known

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key and record the read, or return `default` if the key does not exist."""
        return self._note(key) if key in self else default

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().keys()))

    def keys(self) -> Any:
        """Return the keys without recording a read."""
        return list(super().keys())

    def values(self) -> Any:
        """Return the values and record a read of each."""
        return [self._note(key) for key in self]

    def items(self) -> Any:
        """Return (key, value) pairs and record a read of each value."""
        return [(key, self._note(key)) for key in self]

    def __eq__(self, other: object) -> bool:
        self.items()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def find_most_frequent(values: Sequence[Json]) -> tuple[Json, int]:
    """Return the most frequent value and its count."""
    counts = Counter(map(canonical, values))
    first, count = counts.most_common(1)[0]
    return next(value for value in values if canonical(value) == first), count


def get_opening(trajectory: Trajectory) -> list[Message]:
    """Return the messages before the policy's first message."""
    roles = [message.get("role") for message in trajectory.messages]
    end = len(roles) if trajectory.turns == () or "assistant" not in roles else _first_played(trajectory)
    return list(trajectory.messages[:end])


def _first_played(trajectory: Trajectory) -> int:
    first = trajectory.turns[0].message
    return next((i for i, message in enumerate(trajectory.messages) if message == first), len(trajectory.messages))


def _get_arguments(message: Message, tool: str) -> dict[str, Json] | None:
    calls = [call["function"] for call in message.get("tool_calls") or () if call["function"]["name"] == tool]
    if not calls:
        return None
    arguments = calls[-1]["arguments"]
    return parse_object(arguments) if isinstance(arguments, str) else dict(arguments)


def _get_last_tool(message: Message) -> str | None:
    calls = message.get("tool_calls") or ()
    return calls[-1]["function"]["name"] if calls else None


def _cut_between(text: str, before: str, after: str) -> str | None:
    if not text.startswith(before) or not text.endswith(after) or len(text) < len(before) + len(after):
        return None
    return text[len(before) : len(text) - len(after)]


def _get_common(texts: Sequence[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else ""


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    length = next(
        (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )
    return first[:length]


def _cut_to_whole_words(prefix: str) -> str:
    """Return a common prefix without its incomplete last word: `Total: ` for `Total: 1`, the prefix of totals 11 and 12."""
    return re.sub(r"[\w.+-]+\Z", "", prefix)


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _integral(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else canonical(key): _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(canonical, value))
    return value
