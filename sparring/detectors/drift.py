"""Rules for degenerating answers: copies of the prompt's example, one answer for all tasks, changed lengths, and calls
written as text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from sparring.detectors.evidence import are_scored, mean, named, score, shown, steps_of, when, windows
from sparring.detectors.trend import LIKELY, SURE, trend
from sparring.findings import Finding, Severity
from sparring.run_folders.history import Digest, History

CERTAIN = 4.0
COPIED_SHARE = 0.15
"""The smallest share of the answers that are copies of the prompt's example."""
WRONG_SHARE = 0.7
"""The smallest share of the copies that the scorer rejects."""
SAME_SHARE = 0.5
"""The smallest share of the last answers that are the same."""
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


def copied_from_example(history: History) -> Iterable[Finding]:
    """Report that more and more answers are copied from the prompt, mostly from its example, and that the scorer
    rejects them.

    An answer with several words counts as copied if its own prompt contains it. Any answer counts as copied if its
    content follows words like "example" or "e.g." in the prompt, or is inside a tag there.
    """
    compared = windows(history)
    if compared is None:
        return

    def copies(digest: Digest) -> float:
        return float(is_copied(digest))

    copied = [one for one in compared.now if copies(one.digest)]
    rate, grows = mean(compared.now, copies), compared.change(copies)
    if rate.value < COPIED_SHARE:
        return
    if are_scored(copied):
        wrong = [one for one in copied if score(one.digest) < history.success_threshold]
        if len(wrong) < WRONG_SHARE * len(copied) or not grows.exceeds(LIKELY):
            return
        copied = wrong
    elif not grows.exceeds(CERTAIN):
        return
    yield Finding(
        rule="answers.copied_from_example",
        severity=Severity.WARNING,
        symptom=f"{rate.value:.0%} of the answers of {when(compared.now)} are copied from the prompt; at first, it was "
        f"{rate.value - grows.value:.0%}.",
        evidence={
            "steps": steps_of(compared.now),
            "share": round(rate.value, 4),
            "rise": round(grows.value, 4),
            "examples": shown(copied),
        },
        change="In the example, use values that no task has, or remove the example. The reward must reject these "
        "values.",
        confirm="A copy of the example earns the same as a wrong answer, and the share of copies falls.",
        step=history.last_step,
        trajectories=named(copied),
    )


def same_for_all_tasks(history: History) -> Iterable[Finding]:
    """Report that at least half of the answers are the same, far more than at first, although the score does not rise.

    Case, spaces and punctuation are ignored. With a scorer, the finding is a note, because the alarms report incorrect
    episodes that are rewarded.
    """
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
    if not grows.exceeds(CERTAIN) or (are_scored(compared.all) and compared.change(score).exceeds(LIKELY)):
        return
    yield Finding(
        rule="answers.same_for_all_tasks",
        severity=Severity.NOTE if are_scored(compared.all) else Severity.WARNING,
        symptom=f"{len(same) / len(compared.now):.0%} of the answers of {when(compared.now)}, in {len(tasks[text])} "
        f"of {num_tasks} tasks, are {text[:60]!r}.",
        evidence={
            "steps": steps_of(compared.now),
            "answer": text[:400],
            "tasks": len(tasks[text]),
            "rise": round(grows.value, 4),
            "examples": shown(same),
        },
        change="Find the part of the reward that pays for this answer in any task, and make it compare with the "
        "task's own answer.",
        confirm="A constant answer earns a reward only in tasks for which it is right.",
        step=history.last_step,
        trajectories=named(same),
    )


def length_drift(history: History) -> Iterable[Finding]:
    """Report that episodes have 50 % more sampled tokens than at first, or 40 % fewer, and that no rise of the score
    explains this.

    With a scorer, the finding is a note, because `reward.mechanism` reports whether length is rewarded.
    """
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
        symptom=f"episodes of {when(seen.windows.now)} have {now:.0f} sampled tokens on average; at first they had "
        f"{before:.0f}.",
        evidence={**seen.as_json(), "tokens": [round(before, 1), round(now, 1)], "examples": shown(extreme)},
        change="Read the longest and the shortest episodes. If length itself is paid, remove it from the reward or "
        "limit it.",
        confirm="Long and short episodes of equal score earn the same.",
        step=history.last_step,
        trajectories=named(extreme),
    )


def format_drift(history: History) -> Iterable[Finding]:
    """Report that more and more tool calls are malformed or written as plain text."""
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
        symptom=f"{len(drifted) / len(compared.now):.0%} of the episodes of {when(compared.now)} write tool calls as "
        f"text, {change.value:.0%} more than at first.",
        evidence={"steps": steps_of(compared.now), "rise": round(change.value, 4), "examples": shown(drifted)},
        change="Lower optimizer.learning_rate, and subtract a small reward for a malformed call instead of ignoring "
        "it.",
        confirm="`rollout/agent/malformed_tool_calls` falls, and episodes call tools again.",
        step=history.last_step,
        trajectories=named(drifted),
    )


def is_copied(digest: Digest) -> bool:
    """Return whether the prompt contains the answer (if the answer has several words), or shows it as an example."""
    answer, prompt = _normal(digest.answer), _normal(digest.prompt)
    if len(answer.split()) > 1 and f" {answer} " in f" {prompt} ":
        return True
    payload = _normal(_payload(digest.answer))
    if not payload:
        return False
    examples = [match["text"] for match in _EXAMPLE.finditer(digest.prompt)]
    texts = [*examples, *(match[2] for match in _TAGGED.finditer(digest.prompt))]
    return any(f" {payload} " in f" {_normal(text)} " for text in texts)


def writes_calls_as_text(digest: Digest) -> bool:
    return digest.num_malformed > 0 or any(_TEXT_CALL.search(text) for text in digest.texts)


def _payload(text: str) -> str:
    tagged = _TAGGED.search(text)
    return tagged[2] if tagged is not None else text


def _normal(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
