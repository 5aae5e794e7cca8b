"""Do turns, tokens and context suffice for the task, and what will the run cost? Sizes are measured on played episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, quantiles

from sparring.checks.explore import explored
from sparring.checks.registry import check
from sparring.checks.subject import Subject, transcript
from sparring.findings import Finding, Severity
from sparring.tracking.stored import rows
from sparring.types import Json, Message, Outcome, StopReason, Task, ToolSchema

CHARACTERS_A_TOKEN = 3.5
"""Of English, code and JSON in the vocabularies in use, where the model is not at hand to count."""
MOST_CHARACTERS_A_TOKEN = 6.0
"""More than that no text has: what does not fit at this rate does not fit."""
MESSAGE_TOKENS = 6
"""What a chat template puts around a message."""
MOST_CAPPED = 0.05
MOST_UNFINISHED = 0.10
TURNS_FACTOR = 1.5
AGAIN = "Run `sparring check RECIPE --only budgets` again: the finding is gone."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of the expert's episodes."""

    prompt: int
    """The longest opening, tools included."""
    tool_output: int
    """What the tools answer to one turn, at the 95th percentile."""
    longest_turn: int
    episode: int
    """The longest whole one."""
    mean_sampled: float
    """Of an episode."""
    turns: tuple[int, ...]
    """Of each episode."""
    counted: str


async def expert_sizes(subject: Subject, characters: float = CHARACTERS_A_TOKEN) -> Sizes:
    """Counted by the model's tokenizer where it is at hand, else from the number of characters."""
    count = partial(_num_tokens, subject, characters)
    prompts, outputs, turns, whole, sampled, lengths = [], [], [], [], [], []
    cls = subject.environment_class
    offered = cls.offered_tools() if cls is not None else ()
    for task in subject.sample:
        expert = subject.expert(task)
        if expert is None:
            continue
        played = await subject.play(task, expert, judged=False)
        said = [one for one in played.messages if one["role"] == "assistant"][-len(played.turns) :]
        begin = played.messages.index(said[0])
        prompts.append(count(played.messages[:begin], offered))
        turns += [count([one], ()) for one in said]
        rest = [one for one in played.messages[begin:] if one["role"] != "assistant"]
        outputs += [count([one], ()) for one in rest] or [0]
        sampled.append(sum(count([one], ()) for one in said))
        whole.append(prompts[-1] + sampled[-1] + sum(count([one], ()) for one in rest))
        lengths.append(len(played.turns))
    return Sizes(
        prompt=max(prompts), tool_output=_high(outputs), longest_turn=max(turns), episode=max(whole),
        mean_sampled=fmean(sampled), turns=tuple(lengths),
        counted="by the model's tokenizer" if subject.chat else f"at {characters:g} characters a token",
    )  # fmt: skip


@check("budgets.context", needs=("environment",))
async def context(subject: Subject) -> Iterable[Finding]:
    """An episode fits the context: max_turns x (sampling_max_tokens + tool output) + prompt <= model.max_sequence_length.

    An error when the expert's own episodes do not fit: then nobody can succeed. A warning when only the budget of a policy
    that uses every turn to its end does not: such an episode ends as `max_tokens`, without an answer. Sizes are measured on
    the expert's episodes. Without an expert, a warning where the result of one legal call is longer than the context. Lower
    `max_turns` or `sampling_max_tokens`, shorten prompt or tool answers, or raise the context.
    """
    config = subject.config
    if subject.lacks("expert"):
        return await _too_long_results(subject) if config.is_trainable else ()
    size, limit = await expert_sizes(subject), config.model.max_sequence_length
    surely = size if subject.chat else await expert_sizes(subject, MOST_CHARACTERS_A_TOKEN)
    turns, cap = config.environment.max_turns, config.sampling.sampling_max_tokens
    needed = turns * (cap + size.tool_output) + size.prompt
    evidence: dict[str, Json] = {
        "max_turns": turns, "sampling_max_tokens": cap, "tool_output": size.tool_output, "prompt": size.prompt,
        "needed": needed, "max_sequence_length": limit, "longest_expert_episode": size.episode, "counted": size.counted,
    }  # fmt: skip
    is_hopeless = surely.episode > limit
    if not config.is_trainable or (not is_hopeless and needed <= limit):
        return ()
    return [
        Finding(
            rule="budgets.context",
            severity=Severity.ERROR if is_hopeless else Severity.WARNING,
            symptom=f"the expert's longest episode has {surely.episode} tokens, but the context holds {limit}."
            if is_hopeless
            else f"{turns} turns may need {needed} tokens, but the context holds {limit}.",
            evidence=evidence,
            change="Raise model.max_sequence_length, lower environment.max_turns or sampling.sampling_max_tokens, or shorten "
            "the prompt and what the tools answer.",
            confirm=AGAIN,
        )
    ]


async def _too_long_results(subject: Subject) -> list[Finding]:
    """Legal calls, found by trying, whose results leave no room for anything else."""
    limit, longest, num = subject.config.model.max_sequence_length, dict[str, tuple[int, Task, str]](), 0
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            tried = await explored(subject, task)
            num += 1
            for one in tried.tried:
                if one.is_legal:
                    message: Message = {"role": "tool", "content": one.result.content}
                    tokens = _num_tokens(subject, CHARACTERS_A_TOKEN, [message], ())
                    if tokens > max(limit, longest.get(one.call.tool, (0,))[0]):
                        longest[one.call.tool] = tokens, task, str(one.call)
    return [
        Finding(
            rule="budgets.context",
            severity=Severity.WARNING,
            symptom=f"one result of {tool} has about {tokens} tokens, but the context holds {limit} for a whole episode.",
            evidence={
                "tool": tool, "task": task.id, "call": called, "tokens": tokens, "max_sequence_length": limit,
                "tasks_tried": num, "counted": f"at {CHARACTERS_A_TOKEN:g} characters a token" if subject.chat is None else
                "by the model's tokenizer",
            },
            change=f"Have {tool} return less at a time, or raise model.max_sequence_length.",
            confirm=AGAIN,
        )
        for tool, (tokens, task, called) in longest.items()
    ]  # fmt: skip


@check("budgets.turn_tokens", needs=("expert",))
async def turn_tokens(subject: Subject) -> Iterable[Finding]:
    """The expert's longest message fits `sampling_max_tokens`.

    A turn that is cut at the cap is no tool call and no answer. Raise the cap; it costs nothing where turns stay short.
    """
    cap = subject.config.sampling.sampling_max_tokens
    size = await expert_sizes(subject)
    surely = size if subject.chat else await expert_sizes(subject, MOST_CHARACTERS_A_TOKEN)
    if size.longest_turn <= cap:
        return ()
    return [
        Finding(
            rule="budgets.turn_tokens",
            severity=Severity.ERROR if surely.longest_turn > cap else Severity.WARNING,
            symptom=f"the expert's longest turn has {size.longest_turn} tokens, but sampling_max_tokens is {cap}.",
            evidence={"longest_turn": size.longest_turn, "sampling_max_tokens": cap, "counted": size.counted},
            change=f"Set sampling.sampling_max_tokens to {math.ceil(1.5 * size.longest_turn)} or more.",
            confirm=AGAIN,
        )
    ]


@check("budgets.max_turns", needs=("expert",))
async def max_turns(subject: Subject) -> Iterable[Finding]:
    """`max_turns` is 1.5 times what the task takes: ceil(1.5 N), N being the expert's turns in its longest episode.

    An error when the expert itself needs more turns than there are. Far more than advised is a warning: episodes that go
    nowhere are played to their end, and every step waits for them.
    """
    given = subject.config.environment.max_turns
    needed = [_script_length(subject, index) for index in range(len(subject.sample))]
    most, advised = max(needed), math.ceil(TURNS_FACTOR * max(needed))
    evidence: dict[str, Json] = {"max_turns": given, "expert_turns": needed, "advised": advised}
    if given < most:
        severity, symptom = Severity.ERROR, f"the expert needs {most} turns, but max_turns is {given}."
    elif given > 2 * advised:
        severity, symptom = Severity.WARNING, f"max_turns is {given}, where the expert needs {most}."
    elif given != advised:
        severity, symptom = Severity.NOTE, f"max_turns is {given}; ceil(1.5 x {most}) = {advised} is advised."
    else:
        return ()
    return [
        Finding(
            rule="budgets.max_turns",
            severity=severity,
            symptom=symptom,
            evidence=evidence,
            change=f"Set environment.max_turns = {advised}.",
            confirm=AGAIN,
        )
    ]


@check("budgets.at_limits", needs=("run",))
async def at_limits(subject: Subject) -> Iterable[Finding]:
    """In a stored run, under 5 % of turns end at the token cap, and under 10 % of episodes at the turn limit unanswered.

    More than that and the budget, not the task, decides what is learned. Raise `sampling_max_tokens` for the first and
    `max_turns` for the second; completion and correctness are different numbers.
    """
    assert subject.given.run is not None, "the rule needs a run"
    files = sorted((subject.given.run / "trajectories").glob("*.jsonl"))
    episodes = [row for file in files for _, row in rows(file)]
    stops = [turn["stop_reason"] for row in episodes for turn in row["turns"]]
    return limits_met(stops, [row["outcome"] for row in episodes], str(subject.given.run))


def limits_met(stops: Sequence[str], outcomes: Sequence[str], source: str) -> list[Finding]:
    """Findings on how many turns met the token cap, and how many episodes the turn limit."""
    found = []
    capped, unfinished = stops.count(StopReason.LENGTH), outcomes.count(Outcome.MAX_TURNS)
    for count, total, most, what, key in (
        (capped, len(stops), MOST_CAPPED, "turns end at sampling_max_tokens", "sampling.sampling_max_tokens"),
        (
            unfinished,
            len(outcomes),
            MOST_UNFINISHED,
            "episodes end at max_turns without an answer",
            "environment.max_turns",
        ),
    ):
        if total and count / total >= most:
            found.append(
                Finding(
                    rule="budgets.at_limits",
                    severity=Severity.WARNING,
                    symptom=f"{count} of {total} {what} ({count / total:.0%}; less than {most:.0%} is sound).",
                    evidence={"count": count, "of": total, "share": count / total, "most": most, "source": source},
                    change=f"Raise {key}, if the task needs as much; else shorten what the policy is asked to say.",
                    confirm="Play a baseline again: the share is below the bound.",
                )
            )
    return found


@check("budgets.cost", needs=("expert",), seconds=1800.0)
async def cost(subject: Subject) -> Iterable[Finding]:
    """What the whole run will take, as a note: episodes, tokens, and with the model at hand time and memory.

    Estimated from the expert's episodes: a policy that wanders takes more, up to the budget. Compare it with what you have
    before you start.
    """
    config, size = subject.config, await expert_sizes(subject)
    if not config.is_trainable or not subject.tasks.train:
        return ()
    max_steps, batch = config.schedule.max_steps, config.batch.global_batch_size
    steps, episodes = planned_episodes(subject)
    ends = (
        f" It ends after {steps} of {max_steps} steps: {config.schedule.max_epochs} passes over {len(subject.tasks.train)} tasks "
        f"fill no more batches of {batch}."
        if steps < max_steps
        else ""
    )
    tokens, most = episodes * size.mean_sampled, episodes * max(size.turns) * config.sampling.sampling_max_tokens
    evidence: dict[str, Json] = {
        "steps": steps, "episodes": episodes, "sampled_tokens": round(tokens),
        "sampled_tokens_at_most": most, "trained_sequence_tokens": episodes * size.episode, "counted": size.counted,
    }  # fmt: skip
    if subject.parts is not None and subject.plays_baseline:
        evidence |= await _measured_cost(subject, episodes, tokens)
    return [
        Finding(
            rule="budgets.cost",
            severity=Severity.NOTE,
            symptom=f"the run plays {episodes} episodes and samples about {tokens:,.0f} tokens.{ends}",
            evidence=evidence,
            change="Raise schedule.max_epochs or lower batch.global_batch_size, if more steps were meant."
            if ends
            else "Nothing, if you have that; else fewer schedule.max_steps or a smaller batch.",
            confirm="`timing_s/step` of the first steps, times the steps of the evidence.",
        )
    ]


def planned_episodes(subject: Subject) -> tuple[int, int]:
    """Steps and training episodes of the run. The last step of the last epoch takes what is left."""
    config = subject.config
    batch = config.batch.global_batch_size
    groups = min(config.schedule.max_steps * batch, config.schedule.max_epochs * len(subject.tasks.train))
    return math.ceil(groups / batch), groups * config.batch.group_size


async def _measured_cost(subject: Subject, episodes: int, tokens: float) -> dict[str, Json]:
    """Time from the rate of the baseline's sampling, memory from the weights; learning takes about as long as sampling."""
    from sparring.checks.baseline import model_baseline

    parts = subject.parts
    assert parts is not None, "asked only with the model at hand"
    played = await model_baseline(subject)
    rate = sum(one.num_sampled_tokens for one in played.trajectories) / max(1e-9, played.evaluation.seconds)
    weights = sum(one.numel() * one.element_size() for one in parts.policy.module.parameters())
    trained = parts.policy.num_trained
    return {
        "sampled_tokens_a_second": round(rate, 1),
        "hours": round(2 * tokens / max(rate, 1e-9) / 3600, 2),
        "weights_bytes": weights,
        # Gradient and two moments in fp32.
        "optimizer_bytes": 12 * trained,
        "cached_tokens": subject.config.engine.kv_cache_tokens,
    }


def _script_length(subject: Subject, index: int) -> int:
    """Turns of the expert's script, which `max_turns` may cut when it is played."""
    expert = subject.expert(subject.sample[index])
    assert expert is not None and expert.script is not None, "the rule needs an expert"  # noqa: PT018
    return len(expert.script)


def _num_tokens(subject: Subject, characters: float, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> int:
    if subject.chat is not None:
        if len(messages) == 1 and messages[0]["role"] == "assistant":
            return len(subject.chat.answer(messages[0], tools))
        policy = subject.parts.policy if subject.parts else None
        if policy is not None and not (messages and messages[0]["role"] == "tool"):
            return len(subject.chat.render(messages, tools))
        text = "\n".join(line for _, line in transcript(messages))
        return len(policy.tokenizer.encode(text)) + MESSAGE_TOKENS if policy is not None else len(text)
    text = "".join(line for _, line in transcript(messages)) + (json.dumps(list(tools)) if tools else "")
    return math.ceil(len(text) / characters) + MESSAGE_TOKENS * len(messages)


def _high(numbers: Sequence[int]) -> int:
    """The 95th percentile."""
    return math.ceil(quantiles(numbers, n=20)[-1]) if len(numbers) > 1 else max(numbers, default=0)
