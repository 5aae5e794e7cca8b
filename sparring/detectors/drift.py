"""What answers turn into: the prompt's example, one text for all tasks, calls written as text, ever longer ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from sparring.detectors.evidence import are_judged, mean, named, score, shown, steps_of, when, windows
from sparring.detectors.registry import detector
from sparring.detectors.trend import LIKELY, SURE, trend
from sparring.findings import Finding, Severity
from sparring.history import Digest, History

CERTAIN = 4.0
COPIED_SHARE = 0.15
"""Of the answers, from which on copies of the prompt's example are spoken of."""
WRONG_SHARE = 0.7
"""Of the copies, that a scorer must reject."""
SAME_SHARE = 0.5
"""Of the tasks, that get the same answer."""
FEWEST_TASKS = 8
LONGER, SHORTER = 1.5, 0.6
TEXT_CALLS_RISE = 0.1

_EXAMPLE = re.compile(
    r"\b(?:examples?|ex|e\.?g|for instance|such as|like|sample|of the form|format|template|demo(?:nstration)?)\b"
    r"(?P<text>.{1,600})",
    flags=re.DOTALL | re.IGNORECASE,
)
_TAGGED = re.compile(r"<([\w-]+)>(.*?)</\1>", flags=re.DOTALL)
_TEXT_CALL = re.compile(
    r"</?tool_call>|<function=|\"name\"\s*:\s*\"[\w.-]+\"\s*,\s*\"(?:arguments|parameters)\"\s*:|^\s*[a-z_]\w*\([^)\n]*\)\s*$",
    flags=re.MULTILINE,
)


@detector("answers.copied_from_example")
def copied_from_example(history: History) -> Iterable[Finding]:
    """Answers are what the prompt itself says, its example above all: more and more of them, and the scorer rejects them. Copied
    is an answer of several words that stands in its own prompt, and one whose payload follows words like "example" or "e.g."
    there, or stands there in a tag."""
    compared = windows(history)
    if compared is None:
        return

    def copies(digest: Digest) -> float:
        return float(is_copied(digest))

    copied = [one for one in compared.now if copies(one.digest)]
    rate, grows = mean(compared.now, copies), compared.change(copies)
    if rate.value < COPIED_SHARE:
        return
    if are_judged(copied):
        wrong = [one for one in copied if score(one.digest) < history.success_threshold]
        if len(wrong) < WRONG_SHARE * len(copied) or not grows.exceeds(LIKELY):
            return
        copied = wrong
    elif not grows.exceeds(CERTAIN):
        return
    yield Finding(
        rule="answers.copied_from_example",
        severity=Severity.WARNING,
        symptom=f"{rate.value:.0%} of the answers of {when(compared.now)} are copied from the prompt; at first "
        f"{rate.value - grows.value:.0%}.",
        evidence={
            "steps": steps_of(compared.now),
            "share": round(rate.value, 4),
            "rise": round(grows.value, 4),
            "examples": shown(copied),
        },
        change="Give the example values that no task has, or none at all, and make the reward reject them.",
        confirm="A copy of the example earns what a wrong answer earns; the share of copies falls.",
        step=history.last_step,
        trajectories=named(copied),
    )


@detector("answers.same_for_all_tasks")
def same_for_all_tasks(history: History) -> Iterable[Finding]:
    """One answer, case, spaces and punctuation apart, is given to half of the tasks or more, far more than at first, and the
    score does not rise with it. A note where a scorer grades: whether that is paid for being wrong is for the alarms."""
    compared = windows(history)
    if compared is None:
        return
    tasks: dict[str, set[str]] = defaultdict(set)
    for one in compared.now:
        tasks[_normal(one.digest.answer)].add(one.digest.task_id)
    tasks.pop("", None)
    num_tasks = len({one.digest.task_id for one in compared.now})
    if not tasks or num_tasks < FEWEST_TASKS:
        return
    text = max(tasks, key=lambda key: len(tasks[key]))
    same = [one for one in compared.now if _normal(one.digest.answer) == text]
    if len(same) < SAME_SHARE * len(compared.now):
        return
    grows = compared.change(lambda digest: float(_normal(digest.answer) == text))
    if not grows.exceeds(CERTAIN) or (are_judged(compared.all) and compared.change(score).exceeds(LIKELY)):
        return
    yield Finding(
        rule="answers.same_for_all_tasks",
        severity=Severity.NOTE if are_judged(compared.all) else Severity.WARNING,
        symptom=f"{len(same) / len(compared.now):.0%} of the answers of {when(compared.now)}, in {len(tasks[text])} "
        f"of {num_tasks} tasks, are {text[:60]!r}.",
        evidence={
            "steps": steps_of(compared.now),
            "answer": text[:400],
            "tasks": len(tasks[text]),
            "rise": round(grows.value, 4),
            "examples": shown(same),
        },
        change="Find out what pays for this answer whatever the task, and make the reward compare with the task's own.",
        confirm="A constant answer earns no more than its share of the tasks.",
        step=history.last_step,
        trajectories=named(same),
    )


@detector("answers.length_drift")
def length_drift(history: History) -> Iterable[Finding]:
    """Episodes have half as many sampled tokens again as at first, or two fifths less, and no score that rises says why. A note
    where a scorer grades: whether length is what is paid is for `reward.mechanism`."""
    seen = trend(history)
    if seen is None or (seen.scores is not None and seen.scores.exceeds(LIKELY)):
        return
    before, now = seen.windows.means(lambda digest: digest.num_tokens)
    change = seen.windows.change(lambda digest: digest.num_tokens)
    if not (change.exceeds(CERTAIN) or (-change).exceeds(CERTAIN)) or SHORTER * before < now < LONGER * before:
        return
    extreme = sorted(seen.windows.now, key=lambda one: (-1 if now > before else 1) * one.digest.num_tokens)
    yield Finding(
        rule="answers.length_drift",
        severity=Severity.WARNING if seen.scores is None else Severity.NOTE,
        symptom=f"episodes of {when(seen.windows.now)} have {now:.0f} sampled tokens on average, and had {before:.0f} "
        "at first.",
        evidence={**seen.as_json(), "tokens": [round(before, 1), round(now, 1)], "examples": shown(extreme)},
        change="Read the longest and the shortest episodes; if length itself pays, take that out of the reward or bound it.",
        confirm="At equal score long and short episodes earn the same.",
        step=history.last_step,
        trajectories=named(extreme),
    )


@detector("tools.format_drift")
def format_drift(history: History) -> Iterable[Finding]:
    """Calls that cannot be read, or are written as text, become more."""
    compared = windows(history)
    if compared is None:
        return
    change = compared.change(lambda digest: float(writes_calls_as_text(digest)))
    if not change.exceeds(SURE, over=TEXT_CALLS_RISE / 2) or change.value < TEXT_CALLS_RISE:
        return
    drifted = [one for one in compared.now if writes_calls_as_text(one.digest)]
    yield Finding(
        rule="tools.format_drift",
        severity=Severity.WARNING,
        symptom=f"{len(drifted) / len(compared.now):.0%} of the episodes of {when(compared.now)} write calls as text, "
        f"{change.value:.0%} more than at first.",
        evidence={"steps": steps_of(compared.now), "rise": round(change.value, 4), "examples": shown(drifted)},
        change="Lower optimizer.learning_rate, and take a little off for a call that cannot be read instead of ignoring it.",
        confirm="`rollout/agent/malformed_tool_calls` falls; episodes call tools again.",
        step=history.last_step,
        trajectories=named(drifted),
    )


def is_copied(digest: Digest) -> bool:
    """Whether the prompt says the answer, in several words, or gives it as an example."""
    said, prompt = _normal(digest.answer), _normal(digest.prompt)
    if len(said.split()) > 1 and f" {said} " in f" {prompt} ":
        return True
    payload = _normal(_payload(digest.answer))
    if not payload:
        return False
    examples = [match["text"] for match in _EXAMPLE.finditer(digest.prompt)]
    texts = [*examples, *(match[2] for match in _TAGGED.finditer(digest.prompt))]
    return any(f" {payload} " in f" {_normal(text)} " for text in texts)


def writes_calls_as_text(digest: Digest) -> bool:
    return digest.num_malformed > 0 or any(_TEXT_CALL.search(text) for text in digest.said)


def _payload(text: str) -> str:
    tagged = _TAGGED.search(text)
    return tagged[2] if tagged is not None else text


def _normal(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
