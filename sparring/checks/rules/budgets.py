"""Rules on budgets of turns, tokens and context, and on the cost of the run. The sizes are measured on sample
episodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, quantiles

from sparring.checks.evidence.own_agent import get_own_agent, has_own_agent
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.token_counts import (
    CHARACTERS_A_TOKEN,
    MOST_CHARACTERS_A_TOKEN,
    count_tokens,
    find_too_long_prompts,
    find_too_long_results,
    find_too_long_turns,
)
from sparring.config import Config
from sparring.findings import Finding, Severity
from sparring.run_folders.stored import read_rows
from sparring.runtime.machine import count_processors
from sparring.types import Json, Outcome, StopReason

MOST_CAPPED = 0.05
MOST_UNFINISHED = 0.10
TURNS_FACTOR = 1.5
_SLOW_PROGRAM = 0.2
"""The seconds of processor time in an episode from which the cost of a program is reported."""
AGAIN = "Run `sparring check RECIPE --only budgets` again: the finding is gone."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers of tokens in the expert's episodes."""

    prompt: int
    """The number of tokens of the longest initial messages, including the tools."""
    tool_output: int
    """The 95th percentile of the number of tokens of tool output in one turn."""
    longest_turn: int
    episode: int
    """The number of tokens of the longest whole episode."""
    mean_sampled: float
    """The mean number of sampled tokens per episode."""
    turns: tuple[int, ...]
    """The number of turns of each episode."""
    counted: str


async def expert_sizes(subject: Subject, characters: float = CHARACTERS_A_TOKEN) -> Sizes:
    """Return the sizes, which the model's tokenizer counts if it is available. Otherwise, they are estimated from the
    number of characters."""
    count = partial(count_tokens, subject, characters)
    prompts, outputs, turns, whole, sampled, lengths = [], [], [], [], [], []
    cls = subject.environment_class
    offered = cls.offered_tools() if cls is not None else ()
    for task in subject.sample:
        expert = subject.expert(task)
        if expert is None:
            continue
        played = await subject.run_episode(task, expert, graded=False)
        sent = [one for one in played.messages if one["role"] == "assistant"][-len(played.turns) :]
        begin = played.messages.index(sent[0])
        prompts.append(count(played.messages[:begin], offered))
        turns += [count([one], ()) for one in sent]
        rest = [one for one in played.messages[begin:] if one["role"] != "assistant"]
        outputs += [count([one], ()) for one in rest] or [0]
        sampled.append(sum(count([one], ()) for one in sent))
        whole.append(prompts[-1] + sampled[-1] + sum(count([one], ()) for one in rest))
        lengths.append(len(played.turns))
    return Sizes(
        prompt=max(prompts),
        tool_output=_high(outputs),
        longest_turn=max(turns),
        episode=max(whole),
        mean_sampled=fmean(sampled),
        turns=tuple(lengths),
        counted="by the model's tokenizer" if subject.chat else f"at {characters:g} characters per token",
    )


async def context(subject: Subject) -> Iterable[Finding]:
    """An episode fits the context: max_turns x (sampling_max_tokens + tool output) + prompt <=
    model.max_sequence_length.

    The rule reports an error if the expert's own episodes do not fit, because then no policy can succeed. It reports a
    warning if the expert's episodes fit, but those of a policy that uses every turn up to its token limit do not. Such
    an episode ends as `max_tokens`, without an answer. The sizes are measured on the expert's episodes. Without an
    expert, the rule reports an error if the initial messages of some tasks alone do not fit, and warns if the result of
    one legal call is longer than the context. Lower `max_turns` or `sampling_max_tokens`, shorten the prompt or the
    tool results, or raise the context.
    """
    config = subject.config
    if subject.lacks("expert"):
        return (
            [*await find_too_long_prompts(subject), *await find_too_long_results(subject)]
            if config.is_trainable
            else ()
        )
    size, limit = await expert_sizes(subject), config.model.max_sequence_length
    surely = size if subject.chat else await expert_sizes(subject, MOST_CHARACTERS_A_TOKEN)
    turns, cap = config.environment.max_turns, config.sampling.sampling_max_tokens
    needed = turns * (cap + size.tool_output) + size.prompt
    evidence: dict[str, Json] = {
        "max_turns": turns,
        "sampling_max_tokens": cap,
        "tool_output": size.tool_output,
        "prompt": size.prompt,
        "needed": needed,
        "max_sequence_length": limit,
        "longest_expert_episode": size.episode,
        "counted": size.counted,
    }
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
            change="Raise model.max_sequence_length, lower environment.max_turns or sampling.sampling_max_tokens, or "
            "shorten the prompt and the tool results.",
            confirm=AGAIN,
        )
    ]


async def turn_tokens(subject: Subject) -> Iterable[Finding]:
    """The expert's longest message fits `sampling_max_tokens`.

    A turn that is truncated at the cap is neither a tool call nor an answer. Without an expert, the rule counts the
    tokens of the correct answers that it found, and of the calls that solve a task. If the message does not fit, raise
    the cap. A higher cap costs nothing as long as turns stay short.
    """
    cap = subject.config.sampling.sampling_max_tokens
    if subject.lacks("expert"):
        return await find_too_long_turns(subject)
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


async def max_turns(subject: Subject) -> Iterable[Finding]:
    """`max_turns` is 1.5 times the number of turns that the tasks take: ceil(1.5 N), where N is the number of turns in
    the expert's longest episode.

    The rule reports an error if the expert itself needs more turns than allowed. It warns if `max_turns` is far above
    the recommended value, because episodes that make no progress run until the limit, and every step waits for them.
    """
    given = subject.config.environment.max_turns
    needed = [_script_length(subject, index) for index in range(len(subject.sample))]
    most, advised = max(needed), math.ceil(TURNS_FACTOR * max(needed))
    evidence: dict[str, Json] = {"max_turns": given, "expert_turns": needed, "advised": advised}
    if given < most:
        severity, symptom = Severity.ERROR, f"the expert needs {most} turns, but max_turns is {given}."
    elif given > 2 * advised:
        severity, symptom = Severity.WARNING, f"max_turns is {given}, but the expert only needs {most}."
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


async def at_limits(subject: Subject) -> Iterable[Finding]:
    """In a stored run, under 5 % of turns end at the token cap, and under 10 % of episodes end at the turn limit
    without an answer.

    Above these shares, the budget determines what is learned, and not the task. Raise `sampling_max_tokens` for the
    first problem and `max_turns` for the second. Completing an episode and being correct are measured separately.
    """
    assert subject.user_inputs.run is not None, "the rule needs a run"
    files = sorted((subject.user_inputs.run / "trajectories").glob("*.jsonl"))
    episodes = [row for file in files for _, row in read_rows(file)]
    stops = [turn["stop_reason"] for row in episodes for turn in row["turns"]]
    return find_limits_met(stops, [row["outcome"] for row in episodes], str(subject.user_inputs.run))


def find_limits_met(stops: Sequence[str], outcomes: Sequence[str], source: str) -> list[Finding]:
    """Return findings on the share of turns that reached the token cap, and on the share of episodes that reached the
    turn limit."""
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
                    symptom=f"{count} of {total} {what} ({count / total:.0%}; the share should be below {most:.0%}).",
                    evidence={"count": count, "of": total, "share": count / total, "most": most, "source": source},
                    change=f"Raise {key} if the task needs more. Otherwise, request shorter messages in the prompt.",
                    confirm="Run a baseline again: the share is below the bound.",
                )
            )
    return found


async def cost(subject: Subject) -> Iterable[Finding]:
    """The note states what the whole run will need: episodes, tokens, and, if the model is loaded, time and memory.

    The estimate uses the expert's episodes. A policy that explores needs more, up to the budget. Without an expert, the
    note states only how many episodes there are, and how many tokens they may sample at most. If the agent is a program
    (`agent.command`), it also states the processor time that its episodes take without the model. Compare the estimate with
    your resources before you start.
    """
    config = subject.config
    if not config.is_trainable or not subject.tasks.train:
        return ()
    steps, episodes = count_planned_episodes(subject)
    ends = _describe_early_end(subject, steps)
    if subject.lacks("expert"):
        most = episodes * _most_sampled(config)
        counts: dict[str, Json] = {"steps": steps, "episodes": episodes, "sampled_tokens_at_most": most}
        return [_with_program(subject, _report_cost(counts, f"at most {most:,} tokens.{ends}", ends), episodes)]
    size = await expert_sizes(subject)
    tokens, most = episodes * size.mean_sampled, episodes * max(size.turns) * config.sampling.sampling_max_tokens
    evidence: dict[str, Json] = {
        "steps": steps,
        "episodes": episodes,
        "sampled_tokens": round(tokens),
        "sampled_tokens_at_most": most,
        "trained_sequence_tokens": episodes * size.episode,
        "counted": size.counted,
    }
    if subject.parts is not None and subject.runs_baseline:
        evidence |= await _measured_cost(subject, episodes, tokens)
    return [_report_cost(evidence, f"about {tokens:,.0f} tokens.{ends}", ends)]


def _most_sampled(config: Config) -> int:
    """Return the largest number of tokens that the policy can sample in one episode."""
    turns = config.agent.max_turns if config.agent.is_foreign else config.environment.max_turns
    longest = config.model.max_sequence_length
    return longest if turns is None else min(longest, turns * config.sampling.sampling_max_tokens)


def _report_cost(evidence: Mapping[str, Json], tokens: str, ends: str) -> Finding:
    steps, episodes = evidence["steps"], evidence["episodes"]
    return Finding(
        rule="budgets.cost",
        severity=Severity.NOTE,
        symptom=f"the run takes {episodes:,} episodes in {steps:,} step{'' if steps == 1 else 's'} and samples {tokens}",
        evidence=evidence,
        change="Raise schedule.max_epochs or lower batch.global_batch_size if you intended more steps."
        if ends
        else "Change nothing if your resources suffice. Otherwise, lower schedule.max_steps or use a smaller batch.",
        confirm="Multiply `timing_s/step` of the first steps by the number of steps in the evidence.",
    )


def _with_program(subject: Subject, cost: Finding, episodes: int) -> Finding:
    """Return the note with the CPU time of the agent's program, which starts anew in every episode, if it was played."""
    if subject.config.agent.command is None or not has_own_agent(subject):
        return cost
    seconds, processors = get_own_agent(subject).processor_seconds, count_processors()
    if seconds is None or seconds < _SLOW_PROGRAM:
        return cost
    minutes = episodes * seconds / processors / 60
    return replace(
        cost,
        symptom=f"{cost.symptom} The agent's program uses {seconds:.1f} s of processor time in each episode, so the training "
        f"episodes take at least {minutes:,.0f} minutes on {processors} processor{'' if processors == 1 else 's'}.",
        evidence={
            **cost.evidence,
            "program_processor_seconds": round(seconds, 2),
            "minutes_at_least": round(minutes, 1),
        },
        change=f"{cost.change} If the time goes into the start of the program (imports), agent.function starts the agent once.",
    )


def _describe_early_end(subject: Subject, steps: int) -> str:
    """Return why the run ends before its last step, or "" if it does not."""
    config = subject.config
    max_steps, batch = config.schedule.max_steps, config.batch.global_batch_size
    if steps >= max_steps:
        return ""
    passes, tasks = config.schedule.max_epochs, len(subject.tasks.train)
    over = f"{passes} pass{'' if passes == 1 else 'es'} over {tasks} task{'' if tasks == 1 else 's'}"
    return f" It ends after {steps} of {max_steps} steps: there are no more batches of {batch} in {over}."


def count_planned_episodes(subject: Subject) -> tuple[int, int]:
    """Return the number of steps and the number of training episodes of the run. The last step of the last epoch uses
    the remaining tasks."""
    config = subject.config
    batch = config.batch.global_batch_size
    groups = min(config.schedule.max_steps * batch, config.schedule.max_epochs * len(subject.tasks.train))
    return math.ceil(groups / batch), groups * config.batch.group_size


async def _measured_cost(subject: Subject, episodes: int, tokens: float) -> dict[str, Json]:
    """Estimate the time from the baseline's sampling rate, and the memory from the weights. The estimate assumes that
    learning takes about as long as sampling."""
    from sparring.checks.evidence.model_episodes import run_model_baseline

    parts = subject.parts
    assert parts is not None, "the estimate needs the loaded model"
    played = await run_model_baseline(subject)
    rate = sum(one.num_sampled_tokens for one in played.trajectories) / max(1e-9, played.evaluation.seconds)
    return {
        "sampled_tokens_a_second": round(rate, 1),
        "hours": round(2 * tokens / max(rate, 1e-9) / 3600, 2),
        "weights_bytes": parts.model.weights_bytes,
        # The gradient and two moments are in fp32.
        "optimizer_bytes": 12 * parts.model.num_trained,
        "cached_tokens": subject.config.engine.kv_cache_tokens,
    }


def _script_length(subject: Subject, index: int) -> int:
    """Return the number of turns in the expert's script, which may exceed `max_turns`."""
    expert = subject.expert(subject.sample[index])
    assert expert is not None and expert.script is not None, "the rule needs an expert"  # noqa: PT018
    return len(expert.script)


def _high(numbers: Sequence[int]) -> int:
    """Return the 95th percentile."""
    return math.ceil(quantiles(numbers, n=20)[-1]) if len(numbers) > 1 else max(numbers, default=0)
