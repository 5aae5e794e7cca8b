"""Symptoms in the episodes: exhausted budgets, failing tools, loops and poor answers.

The rules follow MTRL's budget rules, its list of questions for reading trajectories, and its table for evaluations.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

from sparring.config import Config
from sparring.detectors.evidence import Episode, named, shown
from sparring.diagnosis.course import JUDGE_AFTER, LIKELY, STALL_STEPS, is_flat, thirds
from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.diagnosis.proposal import SAME, possible, warmer
from sparring.findings import Finding, Severity
from sparring.run_folders.history import Digest
from sparring.types import Json, Outcome

MOST_CUT, MOST_OUT_OF_TURNS = 0.05, 0.10
"""MTRL's bounds: the share of episodes with a turn cut at the token limit, and of episodes that use up their turns
without an answer."""
MOST, RAMBLING = 0.5, 0.5
"""Two limits. If more than this share of episodes is cut and none is right, nothing else can be learned about them.
Above this entropy, in nats per token, the limit is not the reason why a policy does not finish: it rambles."""
FIRST_STEPS = 2
"""The number of first steps whose episodes come from nearly the initial policy."""
MOST_TOKENS = 8192
"""The largest number of tokens per turn that MTRL allows."""
FEWEST_TURNS, FEWEST_TOKENS = 4, 32
"""The smallest proposed limits for the turns of an episode and the tokens of a turn. One call and the answer after it
need about this many."""
FEWEST = 24
"""The smallest number of late episodes for which a share is computed."""
MOST_TOOL_ERRORS, BROKEN_TOOLS = 0.15, 0.5
"""The share of calls that may fail, and the share of calls that raise exceptions above which nothing can be learned
with the tools."""
FOR_TOOL_ERRORS = {
    "unknown_tool": "Use the same tool names in the prompt as in the environment: the policy calls tools that do not exist.",
    "bad_json": "Show the call format in the prompt, or warm-start on demonstrations that use it: arguments are not JSON.",
    "wrong_type": "Describe the type of each argument in the tools' descriptions: the policy uses the wrong types.",
    "fixture_miss": "Record the calls that the policy makes: the recorded answers do not include them.",
}
FIX_THE_TOOLS = (
    "Fix the tools: they raise errors. `sparring check` calls them with the arguments that the schemas allow."
)
"""The changes for failed calls: one for each kind of failure that the policy or the recorded answers cause, and one for
all other kinds."""
LOOP = 3
"""The number of calls to the same tool with the same arguments in one episode from which the episode counts as a
loop."""
MANY = 0.2
FLUENT, POOR = 0.9, 0.3
"""The share of episodes that end by themselves, and the share of those that are right."""
CERTAIN = -0.1
"""The mean log-probability of sampled tokens above which the policy is certain: the sampled token has nine tenths of
the probability."""
SHORT_ANSWER = 2
"""The largest number of words of a very short answer."""
FOR_FAILURES = {
    "looping": "Read the episodes: they use up their turns. Return an error from tools that get the same call again, "
    "and explain in the prompt how an episode ends.",
    "short_answers": "Check that the prompt has the format that the model was trained with (`sparring check RECIPE --only "
    "prompt`): answers are empty or one word, and no tool is called.",
    "broken": "Find the broken part: `sparring check RECIPE` tests the expert, the tools and the dataset's answers "
    "without the model.",
}
"""The changes for a run without a right episode, by the pattern of its episodes."""
NEAR_LIMIT = 0.8
"""With at least this share of `max_turns`, an episode has nearly used up its turns."""
AMPLE = 1.5
"""A multiple of the turns that right episodes need. With this many turns, more turns do not help."""


def _share(episodes: Sequence[Episode], is_one: Callable[[Digest], bool]) -> tuple[float, list[Episode]]:
    found = [one for one in episodes if is_one(one.digest)]
    return len(found) / len(episodes), found


def _exceeds(share: float, episodes: Sequence[Episode], bound: float) -> bool:
    """Return whether a share exceeds a bound by at least two standard errors."""
    return share - LIKELY * math.sqrt(share * (1 - share) / len(episodes)) > bound


def _is_hopeless(observed: Observed, share: float) -> bool:
    """Return True if most episodes are truncated and none is correct, although the policy is certain of its tokens."""
    is_sure = observed.now("rollout/logprob/entropy", math.inf) < RAMBLING
    return share >= MOST and is_sure and not any(observed.succeeds(one.digest) for one in observed.late)


def _max_turns(observed: Observed) -> int | None:
    config = observed.config
    return config.agent.max_turns if config.agent.is_foreign else config.environment.max_turns


def _turns_needed(right: Iterable[Episode]) -> int:
    """Return the number of turns that is sufficient for nine tenths of the episodes, or 0 without episodes."""
    turns = sorted(one.digest.num_turns for one in right)
    return turns[math.ceil(0.9 * len(turns)) - 1] if turns else 0


def _repeats(digest: Digest) -> int:
    """Return how often the most frequent call was made."""
    return max(Counter(digest.calls).values(), default=0)


def failing_tools(observed: Observed) -> Iterable[Finding]:
    """Report that many tool calls fail, and that their share does not fall.

    Calls to unknown tools, and arguments that are not JSON or have the wrong type, are caused by the policy and the
    prompt. Tools that raise exceptions are a fault of the environment. The finding is an error if half of the calls
    raise an exception.
    """
    share = _lasting_share_of_errors(observed)
    if share < MOST_TOOL_ERRORS:
        return
    kinds = _kinds_of_tool_errors(observed)
    worst = max(kinds, key=lambda kind: kinds[kind], default="tool_raised")
    is_broken = worst == "tool_raised" and share >= BROKEN_TOOLS
    yield Finding(
        rule="tools.failing",
        severity=Severity.ERROR if is_broken else Severity.WARNING,
        symptom=f"{share:.0%} of the last tool calls failed, mostly as {worst}.",
        evidence={
            "steps": observed.late_steps,
            "share": round(share, 4),
            "an_episode": {k: round(v, 4) for k, v in kinds.items()},
            "examples": shown(observed.late),
        },
        change=FOR_TOOL_ERRORS.get(worst, FIX_THE_TOOLS),
        confirm="rollout/agent/tool_errors falls.",
        step=observed.history.last_step,
        trajectories=named(observed.late),
        confirm_after=JUDGE_AFTER,
    )


def _lasting_share_of_errors(observed: Observed) -> float:
    """Return the share of the last tool calls that failed, or 0 if there were no calls or if this share falls."""
    calls, errors = observed.series("rollout/agent/tool_calls"), observed.series("rollout/agent/tool_errors")
    if not calls or not sum(calls[-LATE_STEPS:]):
        return 0.0
    course = thirds([error / max(call, 1e-9) for error, call in zip(errors, calls, strict=False)])
    if course is not None and (-course).exceeds(3.0):
        return 0.0
    return sum(errors[-LATE_STEPS:]) / sum(calls[-LATE_STEPS:])


def _kinds_of_tool_errors(observed: Observed) -> dict[str, float]:
    """Return how often each kind of error occurs in a late episode."""
    prefix = "rollout/agent/tool_errors/"
    return {
        name.removeprefix(prefix): observed.now(name)
        for name in sorted({name for one in observed.trained for name in one.metrics})
        if name.startswith(prefix) and observed.now(name) > 0
    }


def looping(observed: Observed) -> Iterable[Finding]:
    """Report that many episodes make the same call with the same arguments at least three times, and are rarely
    correct."""
    if len(observed.late) < FEWEST:
        return
    share, loops = _share(observed.late, lambda digest: _repeats(digest) >= LOOP)
    wrong = [one for one in loops if not observed.succeeds(one.digest)]
    if share < MANY or len(wrong) < 0.8 * len(loops):
        return
    yield Finding(
        rule="episodes.looping",
        severity=Severity.WARNING,
        symptom=f"{share:.0%} of the last episodes make the same call at least {LOOP} times, and {len(wrong)} of these "
        f"{len(loops)} are wrong.",
        evidence={
            "steps": observed.late_steps,
            "share": round(share, 4),
            "turns": round(observed.now("rollout/turns/mean"), 2),
            "max_turns": _max_turns(observed),
            "examples": shown(loops),
        },
        change="Return an error from a tool that gets the same call again, or end such episodes: when the answer is "
        "the same, the policy repeats the call.",
        confirm="The share of such episodes falls, and so does rollout/turns/mean.",
        step=observed.history.last_step,
        trajectories=named(wrong),
        confirm_after=JUDGE_AFTER,
    )


def cut_turns(observed: Observed) -> Iterable[Finding]:
    """Report that more than 5 % of the episodes have a turn that was truncated at `sampling_max_tokens`, before its
    call or answer was complete.

    The finding is an error if most episodes are truncated, none is correct, and the policy is certain of its tokens (it
    does not ramble).
    """
    if len(observed.late) < FEWEST:
        return
    share, cut = _share(observed.late, lambda digest: digest.num_cut > 0)
    limit = observed.config.sampling.sampling_max_tokens
    if not _exceeds(share, observed.late, MOST_CUT):
        return
    enough = min(max(2 * limit, FEWEST_TOKENS), MOST_TOKENS)
    settings = possible(observed.config, {"sampling.sampling_max_tokens": enough}) if limit < MOST_TOKENS else {}
    yield Finding(
        rule="budgets.turn_tokens_in_training",
        severity=Severity.ERROR if _is_hopeless(observed, share) else Severity.WARNING,
        symptom=f"{share:.0%} of the last episodes have a turn that was cut at sampling_max_tokens = {limit}.",
        evidence=_evidence_of_cuts(observed, cut),
        change=f"Raise the tokens of a turn to {enough}."
        if settings
        else "Request shorter turns in the prompt: the limit is already at its maximum.",
        confirm="Less than 5 % of the episodes are cut (rollout/truncated_turns falls).",
        step=observed.history.last_step,
        trajectories=named(cut),
        settings=settings,
        confirm_after=JUDGE_AFTER,
    )


def _evidence_of_cuts(observed: Observed, cut: Sequence[Episode]) -> dict[str, Json]:
    return {
        "steps": observed.late_steps,
        "share": round(len(cut) / len(observed.late), 4),
        "sampling_max_tokens": observed.config.sampling.sampling_max_tokens,
        "response_mean": round(observed.now("rollout/tokens/response_mean"), 1),
        "success_of_cut": _success_of(observed, cut),
        "success_of_others": _success_of(observed, [one for one in observed.late if one.digest.num_cut == 0]),
    }


def out_of_turns(observed: Observed) -> Iterable[Finding]:
    """Report that more than 10 % of the episodes use up their turns without an answer, although they do not loop.

    Also report that the first episodes used up their turns, and that correct episodes still need every turn. The policy
    has then learned to answer before it knows enough. The proposal is twice as many turns, and at least four, because
    the number of turns that truncated episodes need is unknown. The finding is an error if most episodes are truncated,
    none is correct, and they do not repeat themselves."""
    limit = _max_turns(observed)
    if len(observed.late) < FEWEST or limit is None:
        return
    played, steps = observed.late, observed.late_steps
    share, out = _share(played, lambda digest: digest.outcome is Outcome.MAX_TURNS)
    usual = _turns_needed(one for one in played if observed.succeeds(one.digest)) or limit
    if not _exceeds(share, played, MOST_OUT_OF_TURNS) and usual >= limit and not observed.is_solved:
        first = [one for one in observed.trained[:FIRST_STEPS] if one.train]
        played = [Episode((one.step, digest.task_id), digest) for one in first for digest in one.train] or played
        share, out = _share(played, lambda digest: digest.outcome is Outcome.MAX_TURNS)
        steps = [one.step for one in first]
    if not _exceeds(share, played, MOST_OUT_OF_TURNS):
        return
    when = "last" if played is observed.late else "first"
    loops, _ = _share(observed.late, lambda digest: _repeats(digest) >= LOOP)
    is_hopeless = when == "last" and loops < MANY and _is_hopeless(observed, share)
    section = "agent" if observed.config.agent.is_foreign else "environment"
    enough = max(2 * limit, FEWEST_TURNS)
    yield Finding(
        rule="budgets.turns_in_training",
        severity=Severity.ERROR if is_hopeless else Severity.WARNING,
        symptom=f"{share:.0%} of the {when} episodes used up their {limit} turns without an answer"
        + ("." if when == "last" else ", and the right episodes now use all of them."),
        evidence={
            "steps": steps,
            "share": round(share, 4),
            "max_turns": limit,
            "turns_of_right_episodes": usual,
            "success": round(observed.success, 4),
            "examples": shown(out),
        },
        change=f"Raise max_turns to {enough}.",
        confirm="Less than 10 % of the episodes end as max_turns.",
        step=observed.history.last_step,
        trajectories=named(out),
        settings=possible(observed.config, {f"{section}.max_turns": enough}),
        confirm_after=JUDGE_AFTER,
    )


def out_of_context(observed: Observed) -> Iterable[Finding]:
    """Report that more than 5 % of the episodes ended because no tokens were left, either in the context or under
    `rollout_max_tokens`."""
    if len(observed.late) < FEWEST:
        return
    share, out = _share(observed.late, lambda digest: digest.outcome is Outcome.MAX_TOKENS)
    if not _exceeds(share, observed.late, MOST_CUT):
        return
    key, limit = _limit_reached(observed.config, out)
    yield Finding(
        rule="budgets.context_in_training",
        severity=Severity.WARNING,
        symptom=f"{share:.0%} of the last episodes ended because no tokens were left: {key} = {limit}.",
        evidence={
            "steps": observed.late_steps,
            "share": round(share, 4),
            key: limit,
            "sampled_tokens": round(median(one.digest.num_tokens for one in out), 1),
            "prompt_tokens_a_turn": round(observed.now("rollout/tokens/prompt_mean"), 1),
        },
        change=f"Double {key}, as far as the model allows.",
        confirm="Less than 5 % of the episodes end as max_tokens.",
        step=observed.history.last_step,
        trajectories=named(out),
        settings=possible(observed.config, {key: 2 * limit}),
        confirm_after=JUDGE_AFTER,
    )


def _limit_reached(config: Config, out: Sequence[Episode]) -> tuple[str, int]:
    """Return the key path and the value of the setting that ended these episodes."""
    bound = config.rollout.rollout_max_tokens
    if bound is not None and median(one.digest.num_tokens for one in out) >= 0.9 * bound:
        return "rollout.rollout_max_tokens", bound
    return "model.max_sequence_length", config.model.max_sequence_length


def all_zero(observed: Observed) -> Iterable[Finding]:
    """Report that every episode of the last validation and of training earned nothing and is incorrect.

    Either the tools, the dataset or the environment is broken, or the task is too hard. If the episodes have many
    turns, the policy loops. If the answers are very short, the prompt format does not fit the model. The finding states
    which case applies."""
    last = observed.validations[-1].metrics if observed.validations else None
    played = _last_validated(observed) or list(observed.late)
    if last is None or last["val/reward/zero_frac"] < 1 or last.get("val/score/mean", 0.0) > 0 or len(played) < 8:
        return
    if any(share < 1 for share in observed.series("rollout/reward/zero_frac")):
        return  # if an episode was right, nothing is broken
    pattern = _pattern_of_failure(observed, played)
    yield Finding(
        rule="evaluation.all_zero",
        severity=Severity.ERROR,
        symptom=f"none of the {len(played)} episodes of the last validation earned a reward or is right.",
        evidence={
            "pattern": pattern,
            "turns": round(_mean_turns(played), 2),
            "max_turns": _max_turns(observed),
            "words_of_the_answer": _usual_words(played),
            "examples": shown(played),
        },
        change=FOR_FAILURES[pattern],
        confirm="A validation run on the same tasks has successes.",
        step=observed.history.last_step,
        trajectories=named(played),
    )


def _last_validated(observed: Observed) -> list[Episode]:
    last = observed.validations[-1:]
    return [Episode((one.step, digest.task_id), digest) for one in last for digest in one.validation]


def _pattern_of_failure(observed: Observed, played: Sequence[Episode]) -> str:
    """Return the key of FOR_FAILURES that describes episodes of which none is right."""
    limit = _max_turns(observed)
    if limit is not None and _mean_turns(played) >= NEAR_LIMIT * limit and limit > 1:
        return "looping"
    if _usual_words(played) < SHORT_ANSWER and not any(one.digest.calls for one in played):
        return "short_answers"
    return "broken"


def _mean_turns(played: Sequence[Episode]) -> float:
    return fmean(one.digest.num_turns for one in played)


def _usual_words(played: Sequence[Episode]) -> float:
    """Return the median number of words of the answers."""
    return median(len(one.digest.answer.split()) for one in played)


def uneven_turns(observed: Observed) -> Iterable[Finding]:
    """Report that some tasks always use up their turns and are never solved, while other tasks end early and are
    solved.

    Some tasks or tools are then broken. An episode is stuck if it repeats a call, if it makes calls that others do not
    make, or if it uses too many turns. Too many are one and a half times the turns that nine of ten correct episodes
    need."""
    limit = _max_turns(observed)
    if limit is None or limit < 3 or len(observed.late) < FEWEST:
        return
    tasks: dict[str, list[Episode]] = defaultdict(list)
    for one in observed.late:
        tasks[one.digest.task_id].append(one)
    stuck = {
        task: episodes
        for task, episodes in tasks.items()
        if len(episodes) > 1
        and all(one.digest.num_turns >= NEAR_LIMIT * limit and not observed.succeeds(one.digest) for one in episodes)
    }
    rest = [one for task, episodes in tasks.items() if task not in stuck for one in episodes]
    if not 0.1 <= len(stuck) / len(tasks) <= 0.9 or not rest or _success_of(observed, rest) < 0.5:
        return
    # Episodes that make progress with every call may need only more turns.
    again = fmean(_repeats(one.digest) > 1 for episodes in stuck.values() for one in episodes)
    called = Counter(call.name for episodes in stuck.values() for one in episodes for call in one.digest.calls)
    usual = Counter(call.name for one in rest for call in one.digest.calls)
    suspects = [name for name in called if called[name] / called.total() > 2 * usual[name] / max(1, usual.total())]
    needed = _turns_needed(one for one in rest if observed.succeeds(one.digest))
    if again < 0.5 and not suspects and limit < AMPLE * needed:
        return
    examples = [one for episodes in stuck.values() for one in episodes]
    yield Finding(
        rule="evaluation.uneven_turns",
        severity=Severity.WARNING,
        symptom=f"{len(stuck)} of {len(tasks)} tasks always use up their turns and are never right; the others are "
        f"right in {_success_of(observed, rest):.0%} of their episodes.",
        evidence={
            "steps": observed.late_steps,
            "tasks": list(stuck)[:20],
            "tools_called_there_above_all": suspects,
            "ask_the_same_again": round(again, 4),
            "max_turns": limit,
            "turns_of_right_episodes": needed,
            "examples": shown(examples),
        },
        change="Read the episodes named here, and fix these tasks or the tools that they need. If they only need "
        "more steps, raise max_turns.",
        confirm="These tasks also have right episodes.",
        step=observed.history.last_step,
        trajectories=named(examples),
        confirm_after=JUDGE_AFTER,
    )


def confidently_wrong(observed: Observed) -> Iterable[Finding]:
    """Report that the policy is nearly certain of its answers, is mostly wrong, and does not improve.

    In most groups, all episodes are identical word for word, so training has no alternatives to compare. The remedy is
    different data, a different reward, or sampling that explores."""
    certainty = observed.now("rollout/logprob/nz_mean", -1.0)
    if len(observed.late) < FEWEST or certainty < CERTAIN or observed.success > POOR or _still_explores(observed):
        return
    change, settings = _for_certainty(observed)
    yield Finding(
        rule="evaluation.confidently_wrong",
        severity=Severity.WARNING,
        symptom=f"{1 - observed.success:.0%} of the last episodes are wrong, and the policy is nearly certain of "
        "every token.",
        evidence={
            "steps": observed.late_steps,
            "mean_logprob": round(certainty, 4),
            "entropy": round(observed.now("training/entropy"), 4),
            "success": round(observed.success, 4),
            "groups_of_equal_episodes": round(observed.equal_groups, 4),
            "examples": shown(observed.late),
        },
        change=change,
        confirm="training/entropy rises, and groups have signal again.",
        step=observed.history.last_step,
        trajectories=named(observed.late),
        settings=settings,
        confirm_after=JUDGE_AFTER,
    )


def _still_explores(observed: Observed) -> bool:
    """Return whether the reward, the entropy or the difference between the episodes of a group shows that the policy
    still changes."""
    is_moving = not is_flat(observed, max(STALL_STEPS, len(observed.trained) // 2))
    return is_moving or observed.now("training/entropy", 0.0) > 0.1 or observed.equal_groups < SAME


def _for_certainty(observed: Observed) -> tuple[str, Mapping[str, Json]]:
    """Return the change for a policy that is certain of wrong answers."""
    config, settings = observed.config, warmer(observed)
    if settings:
        return f"Sample at temperature 1: sampling.temperature is {config.sampling.temperature:g}.", settings
    advice = "Train on tasks or demonstrations that show better answers."
    if config.algorithm.entropy_coef:
        return advice, {}
    settings = possible(config, {"algorithm.entropy_coef": 0.01})
    return f"{advice} An entropy bonus keeps the remaining variety.", settings


def completion(observed: Observed) -> Iterable[Finding]:
    """Compare completion and correctness when the reward is flat.

    Report episodes that end by themselves and are incorrect (fluent but wrong: the reward must be more specific). Also
    report that few episodes end in time but those few are correct (the budget is too small)."""
    if len(observed.late) < FEWEST or not is_flat(observed, max(STALL_STEPS, len(observed.trained) // 3)):
        return
    finished = [one for one in observed.late if one.digest.outcome is Outcome.FINISHED]
    share = len(finished) / len(observed.late)
    right = _success_of(observed, finished) if finished else 0.0
    if share >= FLUENT and right < POOR:
        wrong = [one for one in finished if not observed.succeeds(one.digest)]
        yield _fluent_but_wrong(observed, wrong, share, right)
    elif share < 1 - MOST_OUT_OF_TURNS and right >= 0.7:
        others = [one for one in observed.late if one.digest.outcome is not Outcome.FINISHED]
        yield _right_but_rarely_finished(observed, others, share, right)


def _fluent_but_wrong(observed: Observed, wrong: Sequence[Episode], share: float, right: float) -> Finding:
    return Finding(
        rule="evaluation.completion",
        severity=Severity.NOTE,
        symptom=f"{share:.0%} of the last episodes end by themselves, and {right:.0%} of these are right: fluent, "
        "but wrong.",
        evidence={**_completion_evidence(observed, share, right), "examples": shown(wrong)},
        change="Give partial credit: a reward for right parts distinguishes between wrong answers.",
        confirm="The share of right episodes rises at the same completion.",
        step=observed.history.last_step,
        trajectories=named(wrong),
        confirm_after=JUDGE_AFTER,
    )


def _right_but_rarely_finished(observed: Observed, others: Sequence[Episode], share: float, right: float) -> Finding:
    outcomes = Counter(one.digest.outcome.value for one in others)
    return Finding(
        rule="evaluation.completion",
        severity=Severity.NOTE,
        symptom=f"{right:.0%} of the episodes that end by themselves are right, but only {share:.0%} of all end "
        "by themselves.",
        evidence={**_completion_evidence(observed, share, right), "outcomes": outcomes},
        change="Raise the limit that the other episodes reach: turns, tokens of a turn, or context.",
        confirm="More episodes end by themselves, with the same share of right ones.",
        step=observed.history.last_step,
        trajectories=named(others),
        confirm_after=JUDGE_AFTER,
    )


def _completion_evidence(observed: Observed, share: float, right: float) -> dict[str, Json]:
    return {
        "steps": observed.late_steps,
        "completion": round(share, 4),
        "right_of_the_completed": round(right, 4),
    }


def calibration(observed: Observed) -> Iterable[Finding]:
    """Report that the tasks are too hard or too easy for groups of this size.

    The finding contains the share of tasks that no episode of a group solves (pass@G is 0), and the share of tasks that
    all episodes of a group solve (pass^G is 1). Neither kind of task teaches anything."""
    groups = _successes_by_group(observed)
    if len(groups) < FEWEST or observed.is_solved:
        return
    hopeless = fmean(not any(members) for members in groups.values())
    solved = fmean(all(members) for members in groups.values())
    if max(hopeless, solved) < 0.5:
        return
    size = observed.config.batch.group_size
    is_hard = hopeless >= solved
    yield Finding(
        rule="difficulty.calibration",
        severity=Severity.NOTE,
        symptom=f"{hopeless:.0%} of the last groups of {size} have no right episode."
        if is_hard
        else f"in {solved:.0%} of the last groups of {size}, all episodes are right.",
        evidence={
            "steps": observed.late_steps,
            f"pass_at_{size}": round(1 - hopeless, 4),
            f"pass_power_{size}": round(solved, 4),
            "success": round(observed.success, 4),
        },
        change="Train on easier tasks first, or give partial credit." if is_hard else "Train on harder tasks.",
        confirm="Between a tenth and nine tenths of the episodes of most tasks are right.",
        step=observed.history.last_step,
        confirm_after=JUDGE_AFTER,
    )


def _successes_by_group(observed: Observed) -> Mapping[object, Sequence[bool]]:
    """Return which late episodes of each group reach the threshold of success with their reward."""
    groups: dict[object, list[bool]] = defaultdict(list)
    for one in observed.late:
        groups[one.group].append(one.digest.reward >= observed.history.success_threshold)
    return groups


def _success_of(observed: Observed, episodes: Sequence[Episode]) -> float:
    return round(fmean(observed.succeeds(one.digest) for one in episodes), 4) if episodes else 0.0
