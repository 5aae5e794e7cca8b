"""Token counts of prompts, results and turns, compared with the limits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from sparring.checks.evidence.explore import explore_task
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.subject import Subject, write_transcript
from sparring.findings import Finding, Severity
from sparring.types import Message, Task, ToolSchema

CHARACTERS_A_TOKEN = 3.5
"""The typical number of characters per token in English, code and JSON, for estimates without the tokenizer."""
MOST_CHARACTERS_A_TOKEN = 6.0
"""An upper bound on the average number of characters per token. A text that is too long at this rate is certainly too
long."""
MESSAGE_TOKENS = 6
"""The number of tokens that a chat template adds to a message."""
FEWEST = 2
"""The minimum number of tasks with a text that is probably too long before they are reported. One task is enough if its
text is certainly too long."""
AGAIN = "Run `sparring check RECIPE --only budgets` again: the finding is gone."


def count_tokens(subject: Subject, characters: float, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> int:
    """Return the number of tokens of messages and tools. The model's tokenizer counts them; without it, the number is
    estimated from the number of characters per token."""
    if subject.chat is not None:
        if len(messages) == 1 and messages[0]["role"] == "assistant":
            return len(subject.chat.answer(messages[0], tools))
        model = subject.parts.model if subject.parts else None
        if model is not None and not (messages and messages[0]["role"] == "tool"):
            return len(subject.chat.render(messages, tools))
        text = "\n".join(line for _, line in write_transcript(messages))
        return len(model.tokenizer.encode(text)) + MESSAGE_TOKENS if model is not None else len(text)
    text = "".join(line for _, line in write_transcript(messages)) + (json.dumps(list(tools)) if tools else "")
    return math.ceil(len(text) / characters) + MESSAGE_TOKENS * len(messages)


async def find_too_long_prompts(subject: Subject) -> list[Finding]:
    """Return a finding on initial messages that are longer than the context."""
    limit, cls = subject.config.model.max_sequence_length, subject.environment_class
    offered = cls.offered_tools() if cls is not None else ()
    tasks = {one.id: one for one in (*subject.sample, *subject.looked_at)}
    sizes: dict[str, tuple[int, int]] = {}
    with subject.timing.as_far_as_it_goes():
        for task in tasks.values():
            if not task.messages and task not in subject.sample:
                continue
            opening = list(task.messages) or await subject.opening(task)
            sizes[task.id] = _measure_sizes(subject, opening, offered)
    found = _find_worst(sizes, limit)
    if found is None:
        return []
    severity, long = found
    worst = max(long, key=lambda name: long[name])
    return [
        Finding(
            rule="budgets.context",
            severity=severity,
            symptom=f"the initial messages of {len(long)} of {len(sizes)} tasks are longer than the context of {limit} "
            f"tokens: task {worst} has about {long[worst]}.",
            evidence={"tokens": dict(list(long.items())[:8]), "max_sequence_length": limit, "of": len(sizes)},
            change="Shorten these prompts, leave the tasks out, or raise model.max_sequence_length.",
            confirm=AGAIN,
        )
    ]


async def find_too_long_turns(subject: Subject) -> list[Finding]:
    """Return a finding on messages of reference episodes that are longer than the limit for a turn."""
    references = await find_references(subject) if subject.config.is_trainable else None
    cap = subject.config.sampling.sampling_max_tokens
    scripts = {} if references is None else {name: reference.script for name, reference in references.by_task.items()}
    sizes: dict[str, tuple[int, int]] = {}
    for name, script in scripts.items():
        turns = [_measure_sizes(subject, [one], ()) for one in script]
        sizes[name] = max(surely for surely, _ in turns), max(about for _, about in turns)
    found = _find_worst(sizes, cap)
    if found is None:
        return []
    severity, long = found
    worst = max(long, key=lambda name: long[name])
    return [
        Finding(
            rule="budgets.turn_tokens",
            severity=severity,
            symptom=f"the reference messages of {len(long)} of {len(sizes)} tasks are longer than a turn may be, with "
            f"sampling_max_tokens = {cap}: in task {worst}, about {long[worst]} tokens.",
            evidence={"tokens": dict(list(long.items())[:8]), "sampling_max_tokens": cap, "of": len(sizes)},
            change=f"Set sampling.sampling_max_tokens to {math.ceil(1.5 * long[worst])} or more, or request shorter "
            "messages.",
            confirm=AGAIN,
        )
    ]


def _measure_sizes(subject: Subject, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, int]:
    """Return the minimum and the probable number of tokens of messages."""
    return (
        count_tokens(subject, MOST_CHARACTERS_A_TOKEN, messages, tools),
        count_tokens(subject, CHARACTERS_A_TOKEN, messages, tools),
    )


def _find_worst(sizes: Mapping[str, tuple[int, int]], limit: int) -> tuple[Severity, dict[str, int]] | None:
    """Return the tasks whose sizes exceed a limit, and a severity that depends on how certain this is. Return None if
    there are too few tasks."""
    surely = {name: about for name, (least, about) in sizes.items() if least > limit}
    probably = {name: about for name, (_, about) in sizes.items() if about > limit}
    if surely:
        return Severity.ERROR, surely
    return (Severity.WARNING, probably) if len(probably) >= FEWEST else None


async def find_too_long_results(subject: Subject) -> list[Finding]:
    """Return findings on legal calls whose results are longer than the context."""
    limit, longest, num = subject.config.model.max_sequence_length, dict[str, tuple[int, Task, str]](), 0
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            tried = await explore_task(subject, task)
            num += 1
            for one in tried.tried:
                if one.is_legal:
                    message: Message = {"role": "tool", "content": one.result.content}
                    tokens = count_tokens(subject, CHARACTERS_A_TOKEN, [message], ())
                    if tokens > max(limit, longest.get(one.call.tool, (0,))[0]):
                        longest[one.call.tool] = tokens, task, str(one.call)
    return [_report_too_long_result(subject, tool, one, num) for tool, one in longest.items()]


def _report_too_long_result(subject: Subject, tool: str, longest: tuple[int, Task, str], num_tasks: int) -> Finding:
    limit, (tokens, task, called) = subject.config.model.max_sequence_length, longest
    return Finding(
        rule="budgets.context",
        severity=Severity.WARNING,
        symptom=f"one result of {tool} has about {tokens} tokens, but the context has {limit} for a whole episode.",
        evidence={
            "tool": tool,
            "task": task.id,
            "call": called,
            "tokens": tokens,
            "max_sequence_length": limit,
            "tasks_tried": num_tasks,
            "counted": f"at {CHARACTERS_A_TOKEN:g} characters per token"
            if subject.chat is None
            else "by the model's tokenizer",
        },
        change=f"Make {tool} return less at a time, or raise model.max_sequence_length.",
        confirm=AGAIN,
    )
