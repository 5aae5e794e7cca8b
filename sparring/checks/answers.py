"""How the right answers of a recipe are written, and what is in them: read off several of them."""

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
"""Tags that prompts ask for often; what a scorer reads is tried with these and with those of the prompt."""

_NESTED = re.compile(r"(?=<([A-Za-z_][\w-]*)>(.*?)</\1>)", flags=re.DOTALL)
_TAGGED = re.compile(r"<([A-Za-z_][\w-]*)>(.*?)</\1>", flags=re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What the last messages of right episodes have in common.

    An answer is either the arguments of the call of `tool`, or text: `before`, the answer in `tags`, `after`. With one tag or
    none the answer is a JSON object, or one plain text whose name is ""; several tags name one plain text each.
    """

    tool: str | None = None
    tags: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    is_json: bool = False

    @property
    def tag(self) -> str | None:
        return self.tags[0] if len(self.tags) == 1 else None

    def parts(self, message: Message) -> dict[str, Json] | None:
        """The named parts of an answer; None when the message is not in this form."""
        if self.tool is not None:
            return _arguments(message, self.tool)
        text = text_of(message)
        if len(self.tags) > 1:
            found = dict(_TAGGED.findall(text))
            return {tag: found[tag].strip() for tag in self.tags} if set(self.tags) <= found.keys() else None
        body = _between(text, self.before, self.after)
        if body is not None and self.tag is not None:
            body = _between(body.strip(), f"<{self.tag}>", f"</{self.tag}>")
        if body is None:
            return None
        return as_object(body) if self.is_json else {"": body.strip()}

    def message(self, parts: Mapping[str, Json]) -> Message:
        """The answer that says `parts`."""
        if self.tool is not None:
            return tool_call(self.tool, **parts)
        return answer(self.text(self.body(parts)))

    def body(self, parts: Mapping[str, Json]) -> str:
        """What stands between the tags. With several tags, those too."""
        if len(self.tags) > 1:
            return "\n".join(f"<{tag}>{_plain(parts.get(tag, ''))}</{tag}>" for tag in self.tags)
        return json.dumps(dict(parts), ensure_ascii=False) if self.is_json else _plain(next(iter(parts.values()), ""))

    def text(self, body: str, tag: str | None = None) -> str:
        """The whole answer around a body; `tag` takes the place of the form's own."""
        if self.tag is not None:
            body = f"<{tag or self.tag}>{body}</{tag or self.tag}>"
        return f"{self.before}{body}{self.after}"


def answer_form(messages: Sequence[Message]) -> AnswerForm:
    """The form that all these answers are in, as narrow as they allow. The more of them differ, the better it is known."""
    tools = {_last_tool(message) for message in messages}
    if len(tools) == 1 and None not in tools:
        return AnswerForm(tool=tools.pop())
    texts = [text_of(message) for message in messages]
    tags = {tuple(tag for tag, _ in _TAGGED.findall(text)) for text in texts}
    if len(tags) == 1:
        found = tags.pop()
        if len(found) > 1 and len(set(found)) == len(found):
            return AnswerForm(tags=found)
        if len(found) == 1:
            outside = [re.split(rf"<{found[0]}>.*</{found[0]}>", text, maxsplit=1, flags=re.DOTALL) for text in texts]
            bodies = [_TAGGED.findall(text)[0][1] for text in texts]
            return AnswerForm(
                tags=found,
                before=_same([before for before, _ in outside]),
                after=_same([after for _, after in outside]),
                is_json=all(as_object(body) is not None for body in bodies),
            )
    if all(as_object(text) is not None for text in texts):
        return AnswerForm(is_json=True)
    if len(set(texts)) < 2:
        return AnswerForm()
    before = _whole_words(_common_start(texts))
    after = _whole_words(_common_start([text[len(before) :][::-1] for text in texts]))[::-1]
    return AnswerForm(before=before, after=after)


def text_of(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def as_object(text: str) -> dict[str, Json] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def canonical(value: Json) -> str:
    """One text for equal JSON values: 1 and 1.0 are equal, 1 and true or "1" are not. What JSON has no form for is its text."""
    return json.dumps(_integral(value), sort_keys=True, ensure_ascii=False, default=str)


def tagged(text: str) -> list[tuple[str, str]]:
    """(tag, body) of everything that stands in tags, also in others, those of tool calls apart."""
    return [(tag, body) for tag, body in _NESTED.findall(text) if tag not in ("tool_call", "tool_calls", "tools")]


def frames_of(prompt: str) -> list[tuple[str, str]]:
    """What stands before and after the answer, in each form that a prompt shows: `Price: <cents>`, `<dose>X mg</dose>`, [[Jo
    Doe]], `31.5 hours`, `LEADER`; the plainest first."""
    found: list[tuple[str, str]] = []
    for before, name, after in re.findall(r"([^\n`\"']*)<([A-Za-z][^<>\n/]*)>([^\n`\"'.,;)]*)", prompt):
        if f"</{name}>" not in prompt:
            starts = [before, before.rpartition(": ")[2], *re.findall(r"(?:\A|\s)(\S+ ?)\Z", before)]
            found += [(start.lstrip(), after.rstrip()) for start in starts]
    for tag, body in tagged(prompt):
        place = re.search(rf"{_PLACEHOLDER}|\d+(?:\.\d+)?", body)
        if place is not None and as_object(body) is None:
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


def written_answers(
    task: Task, read: Sequence[str], tags: Sequence[str], frames: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[tuple[str, ...], Message]]:
    """Ways to write the answer that the fields `read` of a task may hold, for a recipe without expert; each with what it is known
    by in other tasks, too."""
    values = {name: task.fields[name] for name in read if name in task.fields}
    for name, value in values.items():
        texts = {"text": value} if isinstance(value, str) else {}
        # Of a list of spellings that count, each is an answer.
        if isinstance(value, list | tuple) and value and isinstance(value[0], str):
            texts["spelling"] = value[0]
        with suppress(TypeError):  # keys that JSON has no form for
            texts["JSON"] = json.dumps(value, ensure_ascii=False, default=str)
            texts["object"] = json.dumps({"answer": value}, ensure_ascii=False, default=str)
        for kind, text in texts.items():
            yield (name, kind), answer(text)
            for tag in tags:
                yield (name, kind, tag), answer(f"<{tag}>{text}</{tag}>")
    for before, after in frames:
        for name, one in values.items():
            if isinstance(one, str | int | float):
                yield (name, "frame", before, after), answer(f"{before}{one}{after}")


@final
class ReadFields(dict[str, Any]):
    """The fields of a task, which note in `read` and `missed` what a judge asks of them, as paths."""

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
        return self._note(key) if key in self else default

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().keys()))

    def keys(self) -> Any:
        return list(super().keys())

    def values(self) -> Any:
        return [self._note(key) for key in self]

    def items(self) -> Any:
        return [(key, self._note(key)) for key in self]

    def __eq__(self, other: object) -> bool:
        self.items()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def most_frequent(values: Sequence[Json]) -> tuple[Json, int]:
    """The value that is there most often, and how often."""
    counts = Counter(map(canonical, values))
    first, count = counts.most_common(1)[0]
    return next(value for value in values if canonical(value) == first), count


def opening_of(trajectory: Trajectory) -> list[Message]:
    """The messages before the policy's first."""
    roles = [message.get("role") for message in trajectory.messages]
    end = len(roles) if trajectory.turns == () or "assistant" not in roles else _first_played(trajectory)
    return list(trajectory.messages[:end])


def _first_played(trajectory: Trajectory) -> int:
    first = trajectory.turns[0].message
    return next((i for i, message in enumerate(trajectory.messages) if message == first), len(trajectory.messages))


def _arguments(message: Message, tool: str) -> dict[str, Json] | None:
    calls = [call["function"] for call in message.get("tool_calls") or () if call["function"]["name"] == tool]
    if not calls:
        return None
    arguments = calls[-1]["arguments"]
    return as_object(arguments) if isinstance(arguments, str) else dict(arguments)


def _last_tool(message: Message) -> str | None:
    calls = message.get("tool_calls") or ()
    return calls[-1]["function"]["name"] if calls else None


def _between(text: str, before: str, after: str) -> str | None:
    if not text.startswith(before) or not text.endswith(after) or len(text) < len(before) + len(after):
        return None
    return text[len(before) : len(text) - len(after)]


def _same(texts: Sequence[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else ""


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    length = next(
        (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )
    return first[:length]


def _whole_words(prefix: str) -> str:
    """A prefix cut back to where a word ends, so that `Total: 1` of 11 and 12 becomes `Total: `."""
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
