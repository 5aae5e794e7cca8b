"""Does the prompt ask for what is scored, in the form in which it is read, with tools that exist?"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparring.chat import inconsistency
from sparring.checks.answers import ANSWER_TAGS, AnswerForm, as_object, tagged, text_of
from sparring.checks.episodes import Episode, clipped, episodes_of, judged
from sparring.checks.golds import Gold, Golds, golds_of
from sparring.checks.graded import with_last
from sparring.checks.registry import check
from sparring.checks.subject import EXPERT, Subject
from sparring.environments import answer
from sparring.findings import Finding, Severity
from sparring.protocols import Chat, SpliceRefused
from sparring.types import Json, Message, Task

EXAMPLE_CHARS = 4_000
"""What is longer is an input and no example of an answer."""
MOST_FORMS = 4
"""Of answers, whose prompts are read."""
_PLACEHOLDER = re.compile(r"<[^<>\n]{1,60}>|\.\.\.|…")
_NO_NAMES = re.compile(
    "right|correct|first|second|next|last|following|same|appropriate|given|relevant|one|it|them|each|tools?|functions?|proper|"
    "other|only|best|matching|this|that|any|every"
)
"""Words before `tool` and after `call` that name none."""
_CALL_WORDS = r"(?:[Cc]all|[Cc]alling|[Uu]se|[Uu]sing|[Rr]un|[Ii]nvoke|[Tt]ool|[Ff]unction|[Aa]sk)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example of an answer as the prompt shows it."""

    tag: str | None
    body: str
    fields: Mapping[str, Json]
    """By name; None where the value cannot be told."""
    is_json: bool


def examples(text: str, form: AnswerForm) -> list[Example]:
    """The objects in a prompt that show how to answer, those of tool calls apart."""
    # A tag around more than one object (a procedure, say) holds no answer.
    whole = [(tag, body) for tag, body in tagged(text) if list(_objects(body)) == [body.strip()]]
    found = [_example(tag, body) for tag, body in whole if len(body) <= EXAMPLE_CHARS]
    inside = [one.body.strip() for one in found if one is not None]
    bare = [_example(None, body) for body in _objects(text) if all(body.strip() not in other for other in inside)]
    known = [one for one in (*found, *bare) if one is not None]
    return [one for one in known if not {"name", "arguments"} <= set(one.fields) and not _is_schema(one.fields)]


def example_in(messages: Sequence[Message], golds: Golds) -> str | None:
    """The text of an example in the prompt as a policy would copy it; None when there is none."""
    prompt = "\n".join(map(text_of, messages))
    form = golds.form
    if form.is_json:
        one = _closest(examples(prompt, form), golds)
        return None if one is None else f"<{one.tag}>{one.body}</{one.tag}>" if one.tag else one.body
    if form.tag is not None:
        bodies = [body for tag, body in tagged(prompt) if tag == form.tag and len(body) <= EXAMPLE_CHARS]
        return form.text(bodies[0]) if bodies else None
    if form.before.strip():
        shown = re.search(rf"{re.escape(form.before.strip())}[ \t]*([^\n]{{1,80}})", prompt)
        return shown[0] if shown else None
    return None


@check("prompt.example")
async def example(subject: Subject) -> Iterable[Finding]:
    """The example of an answer in the prompt has just the fields that are scored, with their types.

    Small models copy the example: a scored field that it lacks is never reported, a field of another task makes the answer
    wrong. Write the example from the ground truth's fields; keep placeholders of the right type.
    """
    golds = await golds_of(subject)
    if golds is None or not golds.form.is_json or not golds.labels():
        return []
    for gold, own in _one_of_each_form(golds):
        prompt = await prompt_of(subject, gold.task)
        shown = _closest(examples(prompt, golds.form), golds)
        if shown is None:
            found = _unnamed(subject, own, prompt)
        else:
            found = [*_fields_that_differ(golds, own, shown), *_types_that_differ(golds, shown), *_not_json(shown)]
        if found:
            return found
    return []


def _one_of_each_form(golds: Golds) -> list[tuple[Gold, tuple[str, ...]]]:
    """A right episode of each form of answer, and its fields: tasks of several kinds have prompts and answers of their own."""
    forms: dict[frozenset[str], tuple[Gold, tuple[str, ...]]] = {}
    for gold in golds.by_task.values():
        if gold.parts is not None:
            forms.setdefault(frozenset(gold.parts), (gold, tuple(gold.parts)))
    return list(forms.values())[:MOST_FORMS]


def _fields_that_differ(golds: Golds, own: Sequence[str], shown: Example) -> Iterator[Finding]:
    missing = [name for name in own if name not in shown.fields]
    unknown = [name for name in shown.fields if name not in golds.labels()]
    if not missing and not unknown:
        return
    near = {name: difflib.get_close_matches(name, missing or own, n=1) for name in unknown}
    said = []
    if missing:
        said.append(f"lacks the scored field{'s' * (len(missing) > 1)} {', '.join(missing)}")
    if unknown:
        said.append(f"has {', '.join(unknown)}, which no right answer has")
    yield Finding(
        rule="prompt.example", severity=Severity.ERROR,
        symptom=f"The prompt's example of an answer {' and '.join(said)}.",
        evidence={
            "example": clipped(shown.body), "missing": missing, "unknown": unknown,
            "nearest": {name: match[0] for name, match in near.items() if match}, "scored": list(own),
        },
        change="Give the example every scored field and no other, spelled as in the ground truth.",
        confirm="The example's fields are those of the expert's answer.",
    )  # fmt: skip


def _types_that_differ(golds: Golds, shown: Example) -> Iterator[Finding]:
    wrong: dict[str, Json] = {}
    for name, values in golds.labels().items():
        value = shown.fields.get(name)
        types = {_type_of(one) for one in values}
        if value is None or _type_of(value) in types:
            continue
        if isinstance(value, str):
            # "true" and "5" are values of another type; "number" or "" only hold a place.
            inner = _parsed(value)
            if inner is None or _type_of(inner) not in types:
                continue
        wrong[name] = {"example": value, "example_type": _type_of(value), "right": values[0], "types": sorted(types)}
    if wrong:
        name, one = next(iter(wrong.items()))
        yield Finding(
            rule="prompt.example", severity=Severity.ERROR,
            symptom=f"The prompt's example gives {name} as {one['example_type']} ({json.dumps(one['example'])}), the "
            f"ground truth "
            f"has {' or '.join(one['types'])}.",
            evidence={"fields": wrong, "example": clipped(shown.body)},
            change="Write the example with the types of the ground truth, or the ground truth with those of the example.",
            confirm="Example and ground truth agree in the type of every field.",
        )  # fmt: skip


def _not_json(shown: Example) -> Iterator[Finding]:
    if not shown.is_json:
        yield Finding(
            rule="prompt.example", severity=Severity.WARNING,
            symptom="The prompt's example of an answer is no JSON, but the answers are read as JSON.",
            evidence={"example": clipped(shown.body)},
            change="Quote keys and texts with double quotes; write null, true and false.",
            confirm="`json.loads` reads the example.",
        )  # fmt: skip


def _unnamed(subject: Subject, own: Sequence[str], prompt: str) -> list[Finding]:
    """Scored fields of which the policy is told nowhere, in a prompt without example."""
    told = prompt + json.dumps(subject.tool_schemas)
    hidden = [name for name in own if name not in told]
    if not hidden:
        return []
    learns = subject.config.warm_start is not None
    return [
        Finding(
            rule="prompt.example", severity=Severity.WARNING if learns else Severity.ERROR,
            symptom=f"The prompt names nowhere the scored field{'s' * (len(hidden) > 1)} {', '.join(hidden)}.",
            evidence={"hidden": hidden, "scored": list(own)},
            change="Say in the prompt which fields an answer has, best by an example in its form.",
            confirm="Every scored field stands in the prompt.",
        )
    ]  # fmt: skip


@check("prompt.tag", needs=("scorer",))
async def tag(subject: Subject) -> Iterable[Finding]:
    """The tag that the prompt asks for is the tag that the scorer reads.

    The right answer is put into every tag that the prompt names and into the usual ones, to see which are paid. Where prompt,
    reward and scorer read different tags, the reward rises and the score falls. Use one tag everywhere.
    """
    golds = await golds_of(subject)
    right = await episodes_of(subject, EXPERT)
    if golds is None or not right or golds.form.tool is not None or len(golds.form.tags) > 1:
        return []
    one = right[0]
    prompt = await prompt_of(subject, one.gold.task)
    asked = asked_tags(prompt)
    if golds.form.tag is None:
        return [*await _asked_in_vain(subject, golds, one, asked), *await _asked_prefix(subject, golds, one, prompt)]
    body = golds.form.body(one.gold.parts or {})
    tags = dict.fromkeys([golds.form.tag, *asked, *ANSWER_TAGS])
    texts = {name: golds.form.text(body, name) for name in tags}
    await subject.judge_ahead([with_last(one.trajectory, answer(text)) for text in texts.values()])
    tried = {name: await _try(subject, golds, one, text) for name, text in texts.items()}
    paid = [name for name, episode in tried.items() if episode.score is not None and episode.score >= 1.0]
    if not paid:
        return []
    rewarded = [name for name, episode in tried.items() if (episode.reward or 0.0) >= (one.reward or 1.0) > 0]
    evidence: dict[str, Json] = {"prompt": asked, "scorer": paid, "reward": rewarded}
    unread = [name for name in asked if name not in paid]
    if unread:
        return [
            Finding(
                rule="prompt.tag", severity=Severity.WARNING if set(asked) & set(paid) else Severity.ERROR,
                symptom=f"The prompt asks for <{'>, <'.join(unread)}>, but the scorer reads <{'>, <'.join(paid)}>.",
                evidence=evidence, change=f"Write <{paid[0]}> in the prompt, in its example too, and have the reward read it.",
                confirm="The right answer in the prompt's tag scores 1.",
            )
        ]  # fmt: skip
    if golds.form.tag not in prompt:
        learns = subject.config.warm_start is not None
        return [
            Finding(
                rule="prompt.tag", severity=Severity.WARNING if learns else Severity.ERROR,
                symptom=f"The scorer reads <{'>, <'.join(paid)}>, which the prompt never names.",
                evidence=evidence, change=f"Say in the prompt that the answer goes into <{paid[0]}>.",
                confirm="The tag stands in the prompt.",
            )
        ]  # fmt: skip
    return []


async def _asked_in_vain(subject: Subject, golds: Golds, one: Episode, asked: Sequence[str]) -> list[Finding]:
    """Tags that the prompt asks for, where right answers have none."""
    text = text_of(one.gold.answer)
    for name in asked:
        episode = await _try(subject, golds, one, f"<{name}>{text}</{name}>")
        if one.score is not None and one.score >= 1.0 and (episode.score or 0.0) < 1.0:
            return [
                Finding(
                    rule="prompt.tag", severity=Severity.ERROR,
                    symptom=f"The prompt asks for <{name}>, but the scorer reads the answer only without it.",
                    evidence={"prompt": list(asked), "scored": clipped(text), "not_scored": f"<{name}>{clipped(text)}</{name}>"},
                    change="Have scorer and expert use the tag of the prompt, or take the tag out of the prompt.",
                    confirm="The right answer in the prompt's tag scores 1.",
                )
            ]  # fmt: skip
    return []


async def _asked_prefix(subject: Subject, golds: Golds, one: Episode, prompt: str) -> list[Finding]:
    """`Total: <number>` in the prompt, where the scorer reads `Sum: 5`."""
    before = golds.form.before.strip()
    asked = [prefix.strip() for prefix in re.findall(r"\b([A-Z][\w ]{0,30}:)[ \t]*<[^<>\n]{1,40}>", prompt)]
    if not before or before in prompt or one.gold.parts is None:
        return []
    for prefix in asked:
        value = golds.form.body(one.gold.parts)
        episode = await _try(subject, golds, one, f"{prefix} {value}{golds.form.after}")
        if one.score is not None and one.score >= 1.0 and (episode.score or 0.0) < 1.0:
            return [
                Finding(
                    rule="prompt.tag", severity=Severity.ERROR,
                    symptom=f"The prompt asks for {prefix!r}, but the scorer reads {before!r}.",
                    evidence={"prompt": asked, "scored": clipped(text_of(one.gold.answer)), "not_scored": f"{prefix} {value}"},
                    change=f"Write {before!r} in the prompt, or have the scorer read {prefix!r}.",
                    confirm="The right answer in the prompt's form scores 1.",
                )
            ]  # fmt: skip
    return []


async def _try(subject: Subject, golds: Golds, right: Episode, text: str) -> Episode:
    return await judged(subject, golds, "tag", right.gold, with_last(right.trajectory, answer(text)))


@check("prompt.tools", needs=("environment",))
async def tools(subject: Subject) -> Iterable[Finding]:
    """The tools that the prompt names exist, and where only the prompt describes the tools, it names them all.

    A tool that does not exist costs turns and teaches errors; one that nobody is told of is not called, unless a warm start
    shows it, which is a note. Spell them as the methods are spelled.
    """
    found: list[Finding] = []
    golds = await golds_of(subject)
    task = subject.sample[0]
    prompt = await prompt_of(subject, task)
    known = set(subject.tools)
    words = _known_words(subject, golds)
    unknown = {name: how for name, how in _named_tools(prompt, words) if name not in known}
    if unknown and (subject.tools or "tool_call" in unknown.values()):
        sure = [
            name
            for name, how in unknown.items()
            if how != "in the text" or difflib.get_close_matches(name, known, 1, 0.75)
        ]
        near = {name: match[0] for name in unknown if (match := difflib.get_close_matches(name, known, 1, 0.6))}
        found.append(
            Finding(
                rule="prompt.tools", severity=Severity.ERROR if sure else Severity.WARNING,
                symptom=f"The prompt names {', '.join(unknown)}, which "
                f"{'is no tool' if len(unknown) == 1 else 'are no tools'}.",
                evidence={"unknown": unknown, "nearest": near, "tools": sorted(known), "task": task.id},
                change="Spell the tools in the prompt as the environment's methods are spelled, or add the missing tool.",
                confirm="Every tool that the prompt names exists.",
            )
        )  # fmt: skip
    cls = subject.environment_class
    if cls is not None and cls.describe_tools == "prompt":
        hidden = [name for name in subject.tools if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", prompt)]
        called = {
            call["function"]["name"] for gold in ([] if golds is None else golds.sampled(subject))
            for message in gold.script for call in message.get("tool_calls") or ()
        }  # fmt: skip
        if hidden:
            # What the demonstrations of a warm start show need not be told.
            is_needed = subject.config.warm_start is None and called & set(hidden)
            found.append(
                Finding(
                    rule="prompt.tools", severity=Severity.ERROR if is_needed else Severity.NOTE,
                    symptom=f"The prompt has to describe the tools (describe_tools = \"prompt\") and does not name "
                    f"{', '.join(hidden)}.",
                    evidence={"hidden": hidden, "called_by_the_expert": sorted(called & set(hidden)), "task": task.id},
                    change='Name each tool and its arguments in the prompt, or set describe_tools = "schema".',
                    confirm="Every tool stands in the prompt.",
                )
            )  # fmt: skip
    return found


@check("prompt.round_trip", needs=("model",))
async def round_trip(subject: Subject) -> Iterable[Finding]:
    """What the expert says survives this model's template: written as tokens and read back it is the same, and nothing of the
    prompt is dropped, and an answer begins as the template asks for one.

    Where it is not, demonstrations teach one thing and episodes are judged by another. Choose a model whose template knows
    tools and system messages, or set describe_tools = "prompt".
    """
    chat = subject.chat
    assert chat is not None, "the rule needs the model"
    cls = subject.environment_class
    offered = () if cls is None else cls.offered_tools()
    assert subject.parts is not None
    problem = inconsistency(subject.parts.policy.tokenizer)
    lost: list[dict[str, Json]] = [] if problem is None else [{"problem": problem}]
    for one in (await episodes_of(subject, EXPERT))[:3]:
        lost += _dropped(chat, one, offered)
        played = [index for index, message in enumerate(one.trajectory.messages) if message.get("role") == "assistant"]
        for index in played:
            lost += _changed(chat, one.trajectory.messages, index, offered)
    if not lost:
        return []
    return [
        Finding(
            rule="prompt.round_trip", severity=Severity.ERROR,
            symptom=f"The model's template does not keep what is said: {lost[0]['problem']}.",
            evidence={"lost": lost[:4]},
            change="Choose a model whose template keeps it, or write the prompt so that it does not need it.",
            confirm="Every message of the expert's episodes is read back as it was.",
        )
    ]  # fmt: skip


def _dropped(chat: Chat, one: Episode, offered: Sequence[Mapping[str, Json]]) -> Iterator[dict[str, Json]]:
    opening = list(one.trajectory.messages)
    opening = opening[: next((i for i, m in enumerate(opening) if m.get("role") == "assistant"), len(opening))]
    text = chat.decode(chat.render(opening, offered))
    for message in opening:
        words = " ".join(text_of(message).split())
        if words not in " ".join(text.split()):
            yield {
                "problem": f"a {message.get('role')} message of the prompt is not in what the model reads",
                "message": clipped(words),
            }
    if offered and chat.render(opening, offered) == chat.render(opening, ()):
        names = [schema["function"]["name"] for schema in offered]
        yield {"problem": f"the tools {', '.join(names)} are not in what the model reads", "tools": names}


def _changed(
    chat: Chat, messages: Sequence[Message], index: int, offered: Sequence[Mapping[str, Json]]
) -> Iterator[dict[str, Json]]:
    """What comes back of one assistant message, and whether the next ones can follow it."""
    said = messages[index]
    ids = chat.answer(said, offered)
    back = chat.parse(ids, offered)
    if _said(back) != _said(said):
        yield {
            "problem": "a message is read back changed",
            "said": _said(said),
            "read": _said(back),
            "text": chat.decode(ids),
        }
    following = list(messages[index + 1 :])
    new = following[: next((i for i, m in enumerate(following) if m.get("role") == "assistant"), len(following))]
    if new:
        try:
            chat.extend((*chat.render(list(messages[:index]), offered), *ids), new, offered, stopped=True)
        except SpliceRefused as error:
            yield {"problem": f"the template cannot continue a conversation: {error}", "said": _said(said)}


def _said(message: Message) -> Json:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    arguments = [as_object(c["arguments"]) if isinstance(c["arguments"], str) else dict(c["arguments"]) for c in calls]
    return {
        "content": text_of(message).strip(),
        "calls": [[call["name"], given] for call, given in zip(calls, arguments, strict=True)],
    }


async def prompt_of(subject: Subject, task: Task) -> str:
    """The text of an episode's opening messages, as `reset` gives them. Raises what `Subject.opened` raises."""
    return "\n".join(map(text_of, await subject.opening(task)))


def asked_tags(prompt: str) -> list[str]:
    """The tags in which a prompt wants the answer: around an object or a placeholder, or of a usual name."""
    asked = [name for name in re.findall(r"</?([A-Za-z_][\w-]*)>", prompt) if name in ANSWER_TAGS]
    for name, body in tagged(prompt):
        holds_place = not body.strip() or _PLACEHOLDER.fullmatch(body.strip()) or body.strip().startswith("{")
        if holds_place and len(body) <= EXAMPLE_CHARS:
            asked.append(name)
    words = re.findall(r"<([A-Za-z_][\w-]*)>(?=(?: and </?\1>)? tags?\b)", prompt)
    return list(dict.fromkeys([*asked, *words]))


def _closest(found: Sequence[Example], golds: Golds) -> Example | None:
    """The example that is of the answer: in its tag, or with a third of its fields."""
    scored = set(golds.labels())
    rated = [
        (len(scored & set(one.fields)) + (one.tag is not None and one.tag == golds.form.tag), one) for one in found
    ]
    best = max(rated, key=lambda pair: pair[0], default=None)
    if best is None or 3 * best[0] < max(1, len(scored)):
        return None
    return best[1]


def _example(name: str | None, body: str) -> Example | None:
    if "{" not in body:
        return None
    read = as_object(body)
    filled = _PLACEHOLDER.sub("0", re.sub(r"\"[^\"\n]*\"", lambda m: m[0] if ":" not in m[0] else '"text"', body))
    is_json = read is not None or as_object(filled) is not None or as_object(_PLACEHOLDER.sub('""', body)) is not None
    if read is None:
        names = re.findall(r"[{,\n]\s*[\"']?([A-Za-z_][\w ]*?)[\"']?\s*:", body)
        read = dict.fromkeys(names)
    return Example(tag=name, body=body, fields=read, is_json=is_json) if read else None


def _objects(text: str) -> Iterator[str]:
    """The outermost {...} of a text."""
    depth, begin = 0, 0
    for place, character in enumerate(text):
        if character == "{":
            begin = place if depth == 0 else begin
            depth += 1
        elif character == "}" and depth:
            depth -= 1
            if depth == 0 and place - begin <= EXAMPLE_CHARS:
                yield text[begin : place + 1]


def _is_schema(fields: Mapping[str, Json]) -> bool:
    return {"type", "function"} <= set(fields) or {"type", "properties"} <= set(fields)


def _named_tools(prompt: str, known: set[str]) -> Iterator[tuple[str, str]]:
    """Names that a prompt uses as tools, and how it says so. `known` words that are something else are left out."""
    for name in re.findall(r"\{\s*\"name\"\s*:\s*\"([^\"]+)\"\s*,\s*\"(?:arguments|parameters)\"", prompt):
        yield name, "in a tool call"
    for listed in re.findall(
        r"^\s*[Tt]ools?:\s*([\w`, ]+)\.?\s*$|\b[Tt]ools?: ([\w`]+(?:, (?:and )?[\w`]+)+)", prompt, flags=re.M
    ):
        for name in re.findall(r"\w+", "".join(listed)):
            if name != "and":
                yield name, "in a list of tools"
    identifier = r"([A-Za-z]+(?:_[A-Za-z0-9]+)+|[a-z]+[A-Z]\w+|[A-Z][a-z]+[A-Z]\w+)"
    for name in re.findall(rf"`?\b{identifier}`?\(", prompt):
        if name not in known:
            yield name, "as a call"
    for name in re.findall(rf"\b{_CALL_WORDS}(?: the)?(?: tool| function)? [`\"']?{identifier}\b", prompt):
        if name not in known:
            yield name, "in the text"
    for name in re.findall(rf"\b{_CALL_WORDS}(?: the)?(?: tool| function)? `(\w+)`", prompt):
        if name not in known:
            yield name, "in the text"

    for name in [
        *re.findall(r"\bthe (\w+) (?:tool|function)\b", prompt),
        *re.findall(r"\b[Cc]all (\w+) with\b", prompt),
    ]:
        if name not in known and not _NO_NAMES.fullmatch(name):
            yield name, "in the text"


def _known_words(subject: Subject, golds: Golds | None) -> set[str]:
    """Names that are something else than a tool: arguments, fields, values of the answer."""
    words = {name for tool in subject.tools.values() for name in tool.hints}
    for task in subject.sample:
        words |= set(_keys(dict(task.fields)))
    if golds is not None:
        labels = golds.labels()
        words |= set(labels) | {value for values in labels.values() for value in values if isinstance(value, str)}
        words |= set(golds.form.tags)
    return words


def _keys(value: Json) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _keys(item)


def _type_of(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if value is None:
        return "null"
    return "text" if isinstance(value, str) else "list" if isinstance(value, list | tuple) else "object"


def _parsed(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:
        return None
