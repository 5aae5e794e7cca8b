"""Rules on prompts: they request what is scored, in the format that is read, and name only tools that exist."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparring.chat import inconsistency
from sparring.checks.evidence.answer_forms import ANSWER_TAGS, AnswerForm, find_tagged, get_text, parse_object
from sparring.checks.evidence.grading_inputs import replace_last_message
from sparring.checks.evidence.reference_episodes import ReferenceEpisode, ReferenceEpisodes, find_references
from sparring.checks.evidence.scripted_episodes import Episode, clip, get_episodes, grade_episode
from sparring.checks.evidence.subject import EXPERT, Subject
from sparring.environments import answer
from sparring.findings import Finding, Severity
from sparring.protocols import Chat, SpliceRefused
from sparring.types import Json, Message, Task

EXAMPLE_CHARS = 4_000
"""A value with more characters is an input, not an example of an answer."""
MOST_FORMS = 4
"""The maximum number of answer formats whose prompts are read."""
_PLACEHOLDER = re.compile(r"<[^<>\n]{1,60}>|\.\.\.|…")
_NO_NAMES = re.compile(
    "right|correct|first|second|next|last|following|same|appropriate|given|relevant|one|it|them|each|tools?|functions?|proper|"
    "other|only|best|matching|this|that|any|every"
)
"""Words before `tool` and after `call` that are not tool names."""
_CALL_WORDS = r"(?:[Cc]all|[Cc]alling|[Uu]se|[Uu]sing|[Rr]un|[Ii]nvoke|[Tt]ool|[Ff]unction|[Aa]sk)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example of an answer in the prompt."""

    tag: str | None
    body: str
    fields: Mapping[str, Json]
    """The values, keyed by name. An unknown value is None."""
    is_json: bool


def examples(text: str, form: AnswerForm) -> list[Example]:
    """Return the objects in a prompt that show how to answer, except those of tool calls."""
    # A tag around more than one object (a procedure, for example) contains no answer.
    whole = [(tag, body) for tag, body in find_tagged(text) if list(_objects(body)) == [body.strip()]]
    found = [_example(tag, body) for tag, body in whole if len(body) <= EXAMPLE_CHARS]
    inside = [one.body.strip() for one in found if one is not None]
    bare = [_example(None, body) for body in _objects(text) if all(body.strip() not in other for other in inside)]
    known = [one for one in (*found, *bare) if one is not None]
    return [one for one in known if not {"name", "arguments"} <= set(one.fields) and not _is_schema(one.fields)]


def find_example(messages: Sequence[Message], references: ReferenceEpisodes) -> str | None:
    """Return the example in the prompt as a policy would copy it, or None if there is no example."""
    prompt = "\n".join(map(get_text, messages))
    form = references.form
    if form.is_json:
        one = _closest(examples(prompt, form), references)
        return None if one is None else f"<{one.tag}>{one.body}</{one.tag}>" if one.tag else one.body
    if form.tag is not None:
        bodies = [body for tag, body in find_tagged(prompt) if tag == form.tag and len(body) <= EXAMPLE_CHARS]
        return form.text(bodies[0]) if bodies else None
    if form.before.strip():
        shown = re.search(rf"{re.escape(form.before.strip())}[ \t]*([^\n]{{1,80}})", prompt)
        return shown[0] if shown else None
    return None


async def example(subject: Subject) -> Iterable[Finding]:
    """The example of an answer in the prompt has exactly the fields that are scored, with their types.

    Small models copy the example. They never report a scored field that is missing from the example, and an extra field
    from another task makes the answer wrong. Write the example with the fields of the ground truth and with
    placeholders of the correct type.
    """
    references = await find_references(subject)
    if references is None or not references.form.is_json or not references.labels():
        return []
    for reference, own in _one_of_each_form(references):
        prompt = await get_prompt(subject, reference.task)
        shown = _closest(examples(prompt, references.form), references)
        if shown is None:
            found = _unnamed(subject, own, prompt)
        else:
            found = [
                *_fields_that_differ(references, own, shown),
                *_types_that_differ(references, shown),
                *_not_json(shown),
            ]
        if found:
            return found
    return []


def _one_of_each_form(references: ReferenceEpisodes) -> list[tuple[ReferenceEpisode, tuple[str, ...]]]:
    """Return one correct episode for each answer format, with its fields. Each kind of task has its own prompts and
    answers."""
    forms: dict[frozenset[str], tuple[ReferenceEpisode, tuple[str, ...]]] = {}
    for reference in references.by_task.values():
        if reference.parts is not None:
            forms.setdefault(frozenset(reference.parts), (reference, tuple(reference.parts)))
    return list(forms.values())[:MOST_FORMS]


def _fields_that_differ(references: ReferenceEpisodes, own: Sequence[str], shown: Example) -> Iterator[Finding]:
    missing = [name for name in own if name not in shown.fields]
    unknown = [name for name in shown.fields if name not in references.labels()]
    if not missing and not unknown:
        return
    near = {name: difflib.get_close_matches(name, missing or own, n=1) for name in unknown}
    differences = []
    if missing:
        differences.append(f"lacks the scored field{'s' * (len(missing) > 1)} {', '.join(missing)}")
    if unknown:
        differences.append(f"has {', '.join(unknown)}, which no right answer has")
    yield Finding(
        rule="prompt.example",
        severity=Severity.ERROR,
        symptom=f"The prompt's example of an answer {' and '.join(differences)}.",
        evidence={
            "example": clip(shown.body),
            "missing": missing,
            "unknown": unknown,
            "nearest": {name: match[0] for name, match in near.items() if match},
            "scored": list(own),
        },
        change="Give the example every scored field and no other field, spelled as in the ground truth.",
        confirm="The example's fields are those of the expert's answer.",
    )


def _types_that_differ(references: ReferenceEpisodes, shown: Example) -> Iterator[Finding]:
    wrong: dict[str, Json] = {}
    for name, values in references.labels().items():
        value = shown.fields.get(name)
        types = {_type_of(one) for one in values}
        if value is None or _type_of(value) in types:
            continue
        if isinstance(value, str):
            # "true" and "5" are values of another type; "number" or "" are placeholders.
            inner = _parsed(value)
            if inner is None or _type_of(inner) not in types:
                continue
        wrong[name] = {"example": value, "example_type": _type_of(value), "right": values[0], "types": sorted(types)}
    if wrong:
        name, one = next(iter(wrong.items()))
        yield Finding(
            rule="prompt.example",
            severity=Severity.ERROR,
            symptom=f"The prompt's example gives {name} as {one['example_type']} ({json.dumps(one['example'])}), but "
            f"the ground truth has {' or '.join(one['types'])}.",
            evidence={"fields": wrong, "example": clip(shown.body)},
            change="Write the example with the types of the ground truth, or the ground truth with those of the "
            "example.",
            confirm="The example and the ground truth agree in the type of every field.",
        )


def _not_json(shown: Example) -> Iterator[Finding]:
    if not shown.is_json:
        yield Finding(
            rule="prompt.example",
            severity=Severity.WARNING,
            symptom="The prompt's example of an answer is not JSON, but the answers are read as JSON.",
            evidence={"example": clip(shown.body)},
            change="Quote keys and texts with double quotes, and write null, true and false.",
            confirm="`json.loads` reads the example.",
        )


def _unnamed(subject: Subject, own: Sequence[str], prompt: str) -> list[Finding]:
    """Return a finding if the prompt has no example and some scored fields are not mentioned anywhere."""
    visible = prompt + json.dumps(subject.tool_schemas)
    hidden = [name for name in own if name not in visible]
    if not hidden:
        return []
    learns = subject.config.warm_start is not None
    return [
        Finding(
            rule="prompt.example",
            severity=Severity.WARNING if learns else Severity.ERROR,
            symptom=f"The prompt does not name the scored field{'s' * (len(hidden) > 1)} {', '.join(hidden)}.",
            evidence={"hidden": hidden, "scored": list(own)},
            change="State in the prompt which fields an answer has, preferably with an example.",
            confirm="The prompt names every scored field.",
        )
    ]


async def tag(subject: Subject) -> Iterable[Finding]:
    """The scorer reads the tag that the prompt requests.

    The rule puts the correct answer into every tag that the prompt names and into the common tags, and records which of
    them are rewarded. If the prompt, the reward and the scorer use different tags, the reward rises and the score
    falls. Use one tag everywhere.
    """
    references = await find_references(subject)
    right = await get_episodes(subject, EXPERT)
    if references is None or not right or references.form.tool is not None or len(references.form.tags) > 1:
        return []
    one = right[0]
    prompt = await get_prompt(subject, one.reference.task)
    asked = asked_tags(prompt)
    if references.form.tag is None:
        return [
            *await _asked_in_vain(subject, references, one, asked),
            *await _asked_prefix(subject, references, one, prompt),
        ]
    body = references.form.body(one.reference.parts or {})
    tags = dict.fromkeys([references.form.tag, *asked, *ANSWER_TAGS])
    texts = {name: references.form.text(body, name) for name in tags}
    await subject.grade_ahead([replace_last_message(one.trajectory, answer(text)) for text in texts.values()])
    tried = {name: await _try(subject, references, one, text) for name, text in texts.items()}
    paid = [name for name, episode in tried.items() if episode.score is not None and episode.score >= 1.0]
    if not paid:
        return []
    rewarded = [name for name, episode in tried.items() if (episode.reward or 0.0) >= (one.reward or 1.0) > 0]
    evidence: dict[str, Json] = {"prompt": asked, "scorer": paid, "reward": rewarded}
    unread = [name for name in asked if name not in paid]
    if unread:
        return [
            Finding(
                rule="prompt.tag",
                severity=Severity.WARNING if set(asked) & set(paid) else Severity.ERROR,
                symptom=f"The prompt requests <{'>, <'.join(unread)}>, but the scorer reads <{'>, <'.join(paid)}>.",
                evidence=evidence,
                change=f"Write <{paid[0]}> in the prompt and in its example, and let the reward read it.",
                confirm="The right answer in the prompt's tag scores 1.",
            )
        ]
    if references.form.tag not in prompt:
        learns = subject.config.warm_start is not None
        return [
            Finding(
                rule="prompt.tag",
                severity=Severity.WARNING if learns else Severity.ERROR,
                symptom=f"The scorer reads <{'>, <'.join(paid)}>, which the prompt never names.",
                evidence=evidence,
                change=f"State in the prompt that the answer belongs in <{paid[0]}>.",
                confirm="The prompt names the tag.",
            )
        ]
    return []


async def _asked_in_vain(
    subject: Subject, references: ReferenceEpisodes, one: Episode, asked: Sequence[str]
) -> list[Finding]:
    """Return a finding if the prompt requests tags that correct answers do not have."""
    text = get_text(one.reference.answer)
    for name in asked:
        episode = await _try(subject, references, one, f"<{name}>{text}</{name}>")
        if one.score is not None and one.score >= 1.0 and (episode.score or 0.0) < 1.0:
            return [
                Finding(
                    rule="prompt.tag",
                    severity=Severity.ERROR,
                    symptom=f"The prompt requests <{name}>, but the scorer reads the answer only without it.",
                    evidence={
                        "prompt": list(asked),
                        "scored": clip(text),
                        "not_scored": f"<{name}>{clip(text)}</{name}>",
                    },
                    change="Let the scorer and the expert use the tag of the prompt, or remove the tag from the prompt.",
                    confirm="The right answer in the prompt's tag scores 1.",
                )
            ]
    return []


async def _asked_prefix(subject: Subject, references: ReferenceEpisodes, one: Episode, prompt: str) -> list[Finding]:
    """Return a finding on a prefix, such as `Total: <number>` in the prompt although the scorer reads `Sum: 5`."""
    before = references.form.before.strip()
    asked = [prefix.strip() for prefix in re.findall(r"\b([A-Z][\w ]{0,30}:)[ \t]*<[^<>\n]{1,40}>", prompt)]
    if not before or before in prompt or one.reference.parts is None:
        return []
    for prefix in asked:
        value = references.form.body(one.reference.parts)
        episode = await _try(subject, references, one, f"{prefix} {value}{references.form.after}")
        if one.score is not None and one.score >= 1.0 and (episode.score or 0.0) < 1.0:
            return [
                Finding(
                    rule="prompt.tag",
                    severity=Severity.ERROR,
                    symptom=f"The prompt requests {prefix!r}, but the scorer reads {before!r}.",
                    evidence={
                        "prompt": asked,
                        "scored": clip(get_text(one.reference.answer)),
                        "not_scored": f"{prefix} {value}",
                    },
                    change=f"Write {before!r} in the prompt, or let the scorer read {prefix!r}.",
                    confirm="The right answer in the prompt's form scores 1.",
                )
            ]
    return []


async def _try(subject: Subject, references: ReferenceEpisodes, right: Episode, text: str) -> Episode:
    return await grade_episode(
        subject, references, "tag", right.reference, replace_last_message(right.trajectory, answer(text))
    )


async def tools(subject: Subject) -> Iterable[Finding]:
    """The tools that the prompt names exist. If only the prompt describes the tools, it names all of them.

    Calls to a tool that does not exist cost turns and teach the model mistakes. A model does not call a tool that is
    not described. If a warm start demonstrates such a tool, the finding is a note. Spell the names of tools like those
    of their methods.
    """
    found: list[Finding] = []
    references = await find_references(subject)
    task = subject.sample[0]
    prompt = await get_prompt(subject, task)
    known = set(subject.tools)
    words = _known_words(subject, references)
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
                rule="prompt.tools",
                severity=Severity.ERROR if sure else Severity.WARNING,
                symptom=f"The prompt names {', '.join(unknown)}, which "
                f"{'is not a tool' if len(unknown) == 1 else 'are not tools'}.",
                evidence={"unknown": unknown, "nearest": near, "tools": sorted(known), "task": task.id},
                change="Spell the tools in the prompt like the environment's methods, or add the missing tool.",
                confirm="Every tool that the prompt names exists.",
            )
        )
    cls = subject.environment_class
    if cls is not None and cls.describe_tools == "prompt":
        hidden = [name for name in subject.tools if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", prompt)]
        called = {
            call["function"]["name"]
            for reference in ([] if references is None else references.sampled(subject))
            for message in reference.script
            for call in message.get("tool_calls") or ()
        }
        if hidden:
            # Tools that the demonstrations of a warm start show need no description.
            is_needed = subject.config.warm_start is None and called & set(hidden)
            found.append(
                Finding(
                    rule="prompt.tools",
                    severity=Severity.ERROR if is_needed else Severity.NOTE,
                    symptom=f'The prompt has to describe the tools (describe_tools = "prompt"), but does not name '
                    f"{', '.join(hidden)}.",
                    evidence={"hidden": hidden, "called_by_the_expert": sorted(called & set(hidden)), "task": task.id},
                    change='Name each tool and its arguments in the prompt, or set describe_tools = "schema".',
                    confirm="The prompt names every tool.",
                )
            )
    return found


async def round_trip(subject: Subject) -> Iterable[Finding]:
    """This model's chat template preserves the expert's messages. When they are converted to tokens and parsed back,
    they are unchanged. No part of the prompt is dropped, and an answer begins as the template requires.

    Otherwise, what demonstrations teach differs from what is graded in episodes. Choose a model whose template supports
    tools and system messages, or set describe_tools = "prompt".
    """
    chat = subject.chat
    assert chat is not None, "the rule needs the model"
    cls = subject.environment_class
    offered = () if cls is None else cls.offered_tools()
    assert subject.parts is not None
    problem = inconsistency(subject.parts.model.tokenizer)
    lost: list[dict[str, Json]] = [] if problem is None else [{"problem": problem}]
    for one in (await get_episodes(subject, EXPERT))[:3]:
        lost += _dropped(chat, one, offered)
        played = [index for index, message in enumerate(one.trajectory.messages) if message.get("role") == "assistant"]
        for index in played:
            lost += _changed(chat, one.trajectory.messages, index, offered)
    if not lost:
        return []
    return [
        Finding(
            rule="prompt.round_trip",
            severity=Severity.ERROR,
            symptom=f"The model's template does not preserve messages: {lost[0]['problem']}.",
            evidence={"lost": lost[:4]},
            change="Choose a model whose template preserves such messages, or write a prompt that does not need them.",
            confirm="Every message of the expert's episodes is parsed back unchanged.",
        )
    ]


def _dropped(chat: Chat, one: Episode, offered: Sequence[Mapping[str, Json]]) -> Iterator[dict[str, Json]]:
    opening = list(one.trajectory.messages)
    opening = opening[: next((i for i, m in enumerate(opening) if m.get("role") == "assistant"), len(opening))]
    text = chat.decode(chat.render(opening, offered))
    for message in opening:
        words = " ".join(get_text(message).split())
        if words not in " ".join(text.split()):
            yield {
                "problem": f"a {message.get('role')} message of the prompt is not in what the model reads",
                "message": clip(words),
            }
    if offered and chat.render(opening, offered) == chat.render(opening, ()):
        names = [schema["function"]["name"] for schema in offered]
        yield {"problem": f"the tools {', '.join(names)} are not in what the model reads", "tools": names}


def _changed(
    chat: Chat, messages: Sequence[Message], index: int, offered: Sequence[Mapping[str, Json]]
) -> Iterator[dict[str, Json]]:
    """Yield what changes when an assistant message is parsed back, and whether the next messages can follow it."""
    original = messages[index]
    ids = chat.answer(original, offered)
    back = chat.parse(ids, offered)
    if _plain_message(back) != _plain_message(original):
        yield {
            "problem": "a message is changed when it is parsed back",
            "said": _plain_message(original),
            "read": _plain_message(back),
            "text": chat.decode(ids),
        }
    following = list(messages[index + 1 :])
    new = following[: next((i for i, m in enumerate(following) if m.get("role") == "assistant"), len(following))]
    if new:
        try:
            chat.extend((*chat.render(list(messages[:index]), offered), *ids), new, offered, stopped=True)
        except SpliceRefused as error:
            yield {"problem": f"the template cannot continue a conversation: {error}", "said": _plain_message(original)}


def _plain_message(message: Message) -> Json:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    arguments = [
        parse_object(c["arguments"]) if isinstance(c["arguments"], str) else dict(c["arguments"]) for c in calls
    ]
    return {
        "content": get_text(message).strip(),
        "calls": [[call["name"], given] for call, given in zip(calls, arguments, strict=True)],
    }


async def get_prompt(subject: Subject, task: Task) -> str:
    """Return the text of an episode's initial messages, as `reset` returns them. Raises what `Subject.opened`
    raises."""
    return "\n".join(map(get_text, await subject.opening(task)))


def asked_tags(prompt: str) -> list[str]:
    """Return the tags that a prompt requires around the answer. These tags enclose an object or a placeholder, or have
    a common name."""
    asked = [name for name in re.findall(r"</?([A-Za-z_][\w-]*)>", prompt) if name in ANSWER_TAGS]
    for name, body in find_tagged(prompt):
        holds_place = not body.strip() or _PLACEHOLDER.fullmatch(body.strip()) or body.strip().startswith("{")
        if holds_place and len(body) <= EXAMPLE_CHARS:
            asked.append(name)
    words = re.findall(r"<([A-Za-z_][\w-]*)>(?=(?: and </?\1>)? tags?\b)", prompt)
    return list(dict.fromkeys([*asked, *words]))


def _closest(found: Sequence[Example], references: ReferenceEpisodes) -> Example | None:
    """Return the example of the answer: an object that is in the answer's tag, or has at least a third of the answer's
    fields."""
    scored = set(references.labels())
    rated = [
        (len(scored & set(one.fields)) + (one.tag is not None and one.tag == references.form.tag), one) for one in found
    ]
    best = max(rated, key=lambda pair: pair[0], default=None)
    if best is None or 3 * best[0] < max(1, len(scored)):
        return None
    return best[1]


def _example(name: str | None, body: str) -> Example | None:
    if "{" not in body:
        return None
    read = parse_object(body)
    filled = _PLACEHOLDER.sub("0", re.sub(r"\"[^\"\n]*\"", lambda m: m[0] if ":" not in m[0] else '"text"', body))
    is_json = (
        read is not None or parse_object(filled) is not None or parse_object(_PLACEHOLDER.sub('""', body)) is not None
    )
    if read is None:
        names = re.findall(r"[{,\n]\s*[\"']?([A-Za-z_][\w ]*?)[\"']?\s*:", body)
        read = dict.fromkeys(names)
    return Example(tag=name, body=body, fields=read, is_json=is_json) if read else None


def _objects(text: str) -> Iterator[str]:
    """Yield the outermost {...} of a string."""
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
    """Yield the names that a prompt uses as tools, and where it uses them. The words in `known`, which mean something
    else, are left out."""
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


def _known_words(subject: Subject, references: ReferenceEpisodes | None) -> set[str]:
    """Return the names that are not tools: arguments, fields, and values of the answer."""
    words = {name for tool in subject.tools.values() for name in tool.hints}
    for task in subject.sample:
        words |= set(_keys(dict(task.fields)))
    if references is not None:
        labels = references.labels()
        words |= set(labels) | {value for values in labels.values() for value in values if isinstance(value, str)}
        words |= set(references.form.tags)
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
