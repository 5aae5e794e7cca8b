"""Edits of scripts: one trait is added or removed, following the example of another episode of the task, and everything
else stays unchanged.

An edit can change only acts of the policy: its answer, its calls and their arguments. Results, the final state and
tokens follow from these acts, and no edit changes them directly.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

from sparring.agents.scripts import Action, Call, actions_of, edited, left_out
from sparring.detectors.traits import MARK, NUMBER, TOKEN, Key
from sparring.run_folders.history import Digest
from sparring.types import Json, Message

Script: TypeAlias = tuple[Message, ...]

WORD = re.compile(r"\w+")


def with_trait(key: Key, has: bool, script: Script, like: Script, digest: Digest, max_turns: int) -> Script | None:
    """If `has` is true, return the script with a trait, or with more of it. Otherwise, return it without the trait, or
    with less of it.

    `like` is the script of an episode that already has this property, and `digest` belongs to the episode of `script`.
    The result is None if no edit achieves this."""
    kind, *filling = key
    change = _CHANGES.get(kind)
    changed = None if change is None else change(filling, has, script, like, digest, max_turns)
    return None if changed is None or changed == script else changed


def can_change(key: Key) -> bool:
    """Return whether a trait is an act, which an edit can add or remove."""
    return key[0] in _CHANGES


def text_of(script: Script) -> str | None:
    """Return the text of the last message if it is an answer, otherwise None."""
    last = script[-1] if script else {}
    content = last.get("content")
    is_answer = not last.get("tool_calls") and not last.get("malformed_tool_calls")
    return content if isinstance(content, str) and is_answer else None


def _with_text(script: Script, text: str) -> Script:
    return (*script[:-1], {"role": "assistant", "content": text})


def _phrase(filling: Sequence[str], has: bool, script: Script, like: Script, *_: object) -> Script | None:
    text, other = text_of(script), text_of(like)
    if text is None or other is None:
        return None
    return _with_text(script, _put_in(text, other, filling[0]) if has else _taken_out(text, other, filling[0]))


def _taken_out(text: str, other: str, phrase: str) -> str:
    """Replace each occurrence of the phrase with the text that `other` has in the same place."""
    own, others = list(TOKEN.finditer(text)), list(TOKEN.finditer(other))
    places = _places([one[0].casefold() for one in own], phrase.split(" "))
    instead: dict[int, str] = {}
    for tag, begin, end, start, stop in _steps(own, others):
        inside = [place for place in range(begin, end) if place in places]
        if tag == "equal" or not inside:
            continue
        if end - begin == stop - start:
            instead |= {place: others[start + place - begin][0] for place in inside}
        else:
            # If `other` has no more words here, remove only those of the phrase. Otherwise, insert its text instead.
            changed_text = other[others[start].start() : others[stop - 1].end()] if stop - start > end - begin else ""
            instead |= dict.fromkeys(inside, "") | {inside[0]: changed_text}
    return _replaced(text, own, instead)


def _put_in(text: str, other: str, phrase: str) -> str:
    """Insert the phrase from the other text in the place where that text has it."""
    own, others = list(TOKEN.finditer(text)), list(TOKEN.finditer(other))
    places = _places([one[0].casefold() for one in others], phrase.split(" "))
    instead: dict[int, str] = {}
    added: list[tuple[int, str]] = []
    for tag, begin, end, start, stop in _steps(own, others):
        inside = [place for place in range(start, stop) if place in places]
        if tag == "equal" or not inside:
            continue
        if end - begin == stop - start:
            instead |= {begin + place - start: others[place][0] for place in inside}
        else:
            changed_text = other[others[inside[0]].start() : others[inside[-1]].end()]
            instead |= dict.fromkeys(range(begin, end), "")
            added.append((own[begin].start() if begin < len(own) else len(text), changed_text))
    changed = text
    if added:
        for at, changed_text in reversed(added):
            changed = f"{changed[:at].rstrip()} {changed_text} {changed[at:].lstrip()}".strip()
        return changed
    return _replaced(text, own, instead)


def _steps(own: Sequence[re.Match[str]], others: Sequence[re.Match[str]]) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(
        None, [one[0].casefold() for one in own], [one[0].casefold() for one in others], autojunk=False
    ).get_opcodes()


def _places(tokens: Sequence[str], phrase: Sequence[str]) -> set[int]:
    begins = [place for place in range(len(tokens)) if list(tokens[place : place + len(phrase)]) == list(phrase)]
    return {begin + offset for begin in begins for offset in range(len(phrase))}


def _replaced(text: str, tokens: Sequence[re.Match[str]], instead: Mapping[int, str]) -> str:
    for place in sorted(instead, reverse=True):
        one = tokens[place]
        text = f"{text[: one.start()]}{instead[place]}{text[one.end() :]}"
    return re.sub(r"[ \t]{2,}", " ", text).strip()


def _empty_answer(filling: Sequence[str], has: bool, script: Script, like: Script, *_: object) -> Script | None:
    other = text_of(like)
    if text_of(script) is None or (not has and not other):
        return None
    return _with_text(script, "" if has else str(other))


def _ended(
    filling: Sequence[str], has: bool, script: Script, like: Script, digest: Digest, max_turns: int
) -> Script | None:
    """Add an answer at the turn at which `like` has it, or remove the answer and repeat the last call until no turns
    are left."""
    text, other = text_of(script), text_of(like)
    if has:
        return None if text is not None or other is None else (*script[: max(0, len(like) - 1)], like[-1])
    calls = [one for one in script if one.get("tool_calls")] or [one for one in like if one.get("tool_calls")]
    if text is None or not calls:
        return None
    return (*script[:-1], *[calls[-1]] * (max_turns - len(script) + 1))


def _outcome(filling: Sequence[str], has: bool, *others: object) -> Script | None:
    if filling[0] not in ("finished", "max_turns"):
        return None
    return _ended((), has is (filling[0] == "finished"), *others)  # pyright: ignore[reportArgumentType]


def _numbers(filling: Sequence[str], has: bool, script: Script, like: Script, *_: object) -> Script | None:
    text, other = text_of(script), text_of(like)
    if text is None or other is None:
        return None
    own, others = list(NUMBER.finditer(text)), [one[0] for one in NUMBER.finditer(other)]
    if not own or not others:
        return None
    return _with_text(
        script, _replaced(text, own, {place: others[min(place, len(others) - 1)] for place in range(len(own))})
    )


def _argument(filling: Sequence[str], has: bool, script: Script, like: Script, *_: object) -> Script | None:
    """Use the value that `like` passes for this argument in its corresponding call."""
    tool, name = filling[0], filling[-1]
    own = [one for one in actions_of(script) if one.tool == tool]
    others = [one for one in actions_of(like) if one.tool == tool]
    if not own or not others:
        return None
    edits: dict[tuple[int, int], tuple[Call, ...]] = {}
    for number, one in enumerate(own):
        value = others[min(number, len(others) - 1)].arguments
        rest = {key: held for key, held in one.arguments.items() if key != name}
        arguments = {
            key: value[name] if key == name else rest[key] for key in one.arguments if key in rest or name in value
        }
        edits[one.message, one.place] = (
            Call(tool, arguments if name in arguments or name not in value else {**rest, name: value[name]}),
        )
    return edited(script, edits)


def _called(
    filling: Sequence[str], has: bool, script: Script, like: Script, digest: Digest, *_: object
) -> Script | None:
    tool = filling[0]
    if has:
        return _with_calls(script, like, lambda one: one.tool == tool, None)
    return _without(script, [one for one in actions_of(script) if one.tool == tool], digest)


def _with_calls(script: Script, like: Script, fits: Callable[[Action], bool], most: int | None) -> Script | None:
    """Add the calls of `like` that this script lacks, each at its place in the order of `like`."""
    own = [(one.tool, _text(one.arguments)) for one in actions_of(script)]
    changed = list(script)
    ends = text_of(script) is not None
    added = 0
    for number, one in enumerate(actions_of(like)):
        if not fits(one) or (most is not None and added >= most):
            continue
        if (one.tool, _text(one.arguments)) in own:
            own.remove((one.tool, _text(one.arguments)))
            continue
        changed.insert(min(number, len(changed) - ends), _saying(one))
        added += 1
    return tuple(changed) if added else None


def _saying(one: Action) -> Message:
    function = {"name": one.tool, "arguments": dict(one.arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call", "type": "function", "function": function}],
    }


def _without(script: Script, calls: Sequence[Action], digest: Digest) -> Script | None:
    """Remove these calls, and the words that only they returned. In later messages, these words are changed if no other
    result and no prompt contains them."""
    if not calls or len(actions_of(script)) != len(digest.calls):
        return None
    gone = {(one.message, one.place) for one in calls}
    shown_words: set[str] = set()
    known = set(WORD.findall(digest.prompt.casefold()))
    for one, call in zip(actions_of(script), digest.calls, strict=True):
        known |= set(WORD.findall(_text(one.arguments).casefold())) - shown_words
        words = set(WORD.findall(call.result.casefold()))
        if (one.message, one.place) in gone:
            shown_words |= words - known
        else:
            known |= words
    shown_words -= known
    return _with_other_words(left_out(script, calls), shown_words)


def _with_other_words(script: Script, words: set[str]) -> Script:
    """Replace words in arguments and in the answer with different words of the same shape."""

    def other(text: str) -> str:
        return WORD.sub(lambda word: _shifted(word[0]) if word[0].casefold() in words else word[0], text)

    def within(value: Json) -> Json:
        if isinstance(value, str):
            return other(value)
        if isinstance(value, int) and not isinstance(value, bool) and str(value) in words:
            return value + 1
        if isinstance(value, list):
            return [within(one) for one in value]
        return {key: within(one) for key, one in value.items()} if isinstance(value, dict) else value

    edits = {(one.message, one.place): (Call(one.tool, within(dict(one.arguments))),) for one in actions_of(script)}
    changed = edited(script, edits) if words else script
    text = text_of(changed)
    return changed if text is None else _with_text(changed, other(text))


def _shifted(word: str) -> str:
    """Return the word, with each letter and each digit replaced by the next one."""

    def following(letter: str) -> str:
        ends = {"z": "a", "Z": "A", "9": "0"}
        return ends.get(letter, chr(ord(letter) + 1)) if letter.isascii() and letter.isalnum() else letter

    return "".join(map(following, word))


def _from_results(
    filling: Sequence[str], has: bool, script: Script, like: Script, digest: Digest, *_: object
) -> Script | None:
    """Change the words that this tool returned, wherever they are used."""
    if has:
        return None
    shown_words = {
        word for call in digest.calls if call.name == filling[-1] for word in WORD.findall(call.result.casefold())
    }
    shown_words -= set(WORD.findall(digest.prompt.casefold()))
    if len(filling) == 1:
        text = text_of(script)
        if text is None:
            return None
        changed_text = WORD.sub(lambda word: _shifted(word[0]) if word[0].casefold() in shown_words else word[0], text)
        return _with_text(script, changed_text)
    edits = {}
    for one in actions_of(script):
        if one.tool == filling[0] and isinstance(value := one.arguments.get(filling[1]), str):
            changed_text = WORD.sub(
                lambda word: _shifted(word[0]) if word[0].casefold() in shown_words else word[0], value
            )
            edits[one.message, one.place] = (Call(one.tool, {**one.arguments, filling[1]: changed_text}),)
    return edited(script, edits)


def _in_order(kind: str) -> Callable[..., Script | None]:
    def change(filling: Sequence[str], has: bool, script: Script, like: Script, *_: object) -> Script | None:
        names = [one.tool for one in actions_of(script)]
        if kind != "call after":
            return _reordered(script, _moved_to_end(names, filling[0], has, kind))
        later, earlier = filling
        is_there = (earlier, later) in itertools.pairwise(names)
        is_movable = later in names and earlier in names and later != earlier
        if has and not is_there and not is_movable:
            return _with_calls(script, like, lambda one: one.tool in (later, earlier), None)
        return _reordered(script, _moved_after(names, later, earlier, has))

    return change


def _moved_after(names: Sequence[str], later: str, earlier: str, has: bool) -> list[int]:
    """Return an order of the calls: if `has`, `later` directly follows `earlier`, otherwise it does not."""
    order = list(range(len(names)))
    pairs = [at for at in order[1:] if names[at] == later and names[at - 1] == earlier]
    if not has:
        for at in pairs:
            order[at - 1], order[at] = order[at], order[at - 1]
    elif not pairs:
        order.remove(names.index(later))
        order.insert(order.index(names.index(earlier)) + 1, names.index(later))
    return order


def _moved_to_end(names: Sequence[str], tool: str, has: bool, kind: str) -> list[int]:
    """Return an order of the calls: if `has`, a call of `tool` is at this end, otherwise a call of another tool."""
    order = list(range(len(names)))
    end = 0 if kind == "call first" else len(order)
    inside = [at for at in order if (names[at] == tool) is has]
    if inside:
        at = inside[0] if kind == "call last" else inside[-1]
        order.remove(at)
        order.insert(end, at)
    return order


def _reordered(script: Script, order: Sequence[int]) -> Script | None:
    """Return the script with its calls in this order, or None if the order is the present one."""
    calls = actions_of(script)
    if order == list(range(len(calls))):
        return None
    edits = {
        (one.message, one.place): (calls[at].call,)
        for one, at in zip(calls, order, strict=True)
        if calls[at] is not one
    }
    return edited(script, edits)


def _amount(
    filling: Sequence[str], has: bool, script: Script, like: Script, digest: Digest, max_turns: int
) -> Script | None:
    what = filling[0]
    if what in ("calls", "turns", "calls made twice") or what.startswith("calls of "):
        return _with_count(what, has, script, like, digest, max_turns)
    text, other = text_of(script), text_of(like)
    if text is None or other is None:
        return None
    changed = _with_words(what, has, text, other, digest)
    return None if changed is None else _with_text(script, changed)


def _with_count(what: str, has: bool, script: Script, like: Script, digest: Digest, max_turns: int) -> Script | None:
    """Return a script with as many calls as `like` makes. To get there, omit the last calls, add calls of `like`, or
    repeat the last call."""

    def counted(of: Script) -> list[Action]:
        calls = actions_of(of)
        if what.startswith("calls of "):
            return [one for one in calls if one.tool == what.removeprefix("calls of ")]
        if what == "calls made twice":
            seen = [(one.tool, _text(one.arguments)) for one in calls]
            return [one for place, one in enumerate(calls) if seen[place] in seen[:place]]
        return calls

    own, others = counted(script), counted(like)
    if not has:
        return left_out(script, own[len(others) :]) if len(own) > len(others) else None
    missing = len(others) - len(own)
    if missing <= 0:
        return None
    if what != "calls made twice":
        tools = {one.tool for one in others}
        added = _with_calls(script, like, lambda one: one.tool in tools, missing)
        if added is not None:
            return added
    again = (own or actions_of(script) or others)[-1]
    ends = text_of(script) is not None
    return (*script[: len(script) - ends], *[_saying(again)] * missing, *script[len(script) - ends :])


def _with_words(what: str, has: bool, text: str, other: str, digest: Digest) -> str | None:
    match what:
        case "capital letters in the answer":
            return text.upper() if has else text.lower()
        case "characters beyond ASCII in the answer":
            return None if has else text.encode("ascii", "ignore").decode()
        case "lines in the answer":
            return (
                text.replace(" ", "\n", max(0, other.count("\n") - text.count("\n")))
                if has
                else text.replace("\n", " ")
            )
        case "tags, bullets and marks in the answer":
            changed_text = " ".join(one[0].strip() for one in MARK.finditer(other))
            return f"{text} {changed_text}" if has else MARK.sub("", text).strip()
    chosen = _CLASSES.get(what)
    if chosen is None:
        return None
    own, others = (list(chosen(one, digest)) for one in (text, other))
    if not has:
        return _replaced(text, own[len(others) :], dict.fromkeys(range(len(own) - len(others)), ""))
    more = [one[0] for one in others][: max(0, len(others) - len(own))] or [one[0] for one in others][len(own) :]
    have = {one[0].casefold() for one in own}
    new = [one[0] for one in others if one[0].casefold() not in have][: max(0, len(others) - len(own))]
    return " ".join([text, *(new or more)]).strip()


def _class_of(fits: Callable[[str, Digest], bool]) -> Callable[[str, Digest], Iterator[re.Match[str]]]:
    return lambda text, digest: (one for one in WORD.finditer(text) if fits(one[0].casefold(), digest))


def _first_uses(text: str, digest: Digest) -> Iterator[re.Match[str]]:
    seen: set[str] = set()
    for one in WORD.finditer(text):
        if one[0].casefold() not in seen:
            seen.add(one[0].casefold())
            yield one


def _repeats(text: str, digest: Digest) -> Iterator[re.Match[str]]:
    first = {one.start() for one in _first_uses(text, digest)}
    return (one for one in WORD.finditer(text) if one.start() not in first)


def _prompt(digest: Digest) -> set[str]:
    return set(WORD.findall(digest.prompt.casefold()))


def _results(digest: Digest) -> set[str]:
    return {word for call in digest.calls for word in WORD.findall(call.result.casefold())}


_CLASSES: Mapping[str, Callable[[str, Digest], Iterator[re.Match[str]]]] = {
    "words in the answer": lambda text, digest: WORD.finditer(text),
    "different words in the answer": _first_uses,
    "repeated words in the answer": _repeats,
    "numbers in the answer": lambda text, digest: NUMBER.finditer(text),
    "words of the prompt in the answer": _class_of(lambda word, digest: word in _prompt(digest)),
    "words of results in the answer": _class_of(lambda word, digest: word in _results(digest)),
    "words in the answer that neither prompt nor results have": _class_of(
        lambda word, digest: word not in _prompt(digest) | _results(digest)
    ),
}
"""Functions that find the words counted by an amount."""


def _text(value: Json) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


_CHANGES: Mapping[str, Callable[..., Script | None]] = {
    "answer": _phrase, "answer empty": _empty_answer, "answer given": _ended, "answer amount": _numbers, "end": _outcome,
    "argument": _argument, "argument given": _argument, "argument empty": _argument, "argument amount": _argument,
    "call": _called, "call after": _in_order("call after"), "call first": _in_order("call first"),
    "call last": _in_order("call last"), "answer from": _from_results, "argument from": _from_results, "amount": _amount,
}  # fmt: skip
"""The functions that add or remove each kind of trait. The other kinds follow from acts."""
