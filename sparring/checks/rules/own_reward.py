"""Rules on the reward of an agent of the user's own, which the agent itself computes or the recipe's function."""

from __future__ import annotations

from collections.abc import Iterable

from sparring.agents.scripted import ScriptedPolicy
from sparring.checks.evidence.own_agent import OwnEpisode, explore_all, get_own_agent, require_results
from sparring.checks.evidence.own_answers import Answers, find_answers
from sparring.checks.evidence.own_demonstrations import play_demonstrations
from sparring.checks.evidence.subject import Subject, find_first_difference
from sparring.checks.evidence.wire_policies import make_answerer
from sparring.checks.rules.own_agent import AGAIN
from sparring.findings import Finding, Severity
from sparring.types import Json

_SAME = 1e-9
_NUM_TASKS = 3


async def deterministic(subject: Subject) -> Iterable[Finding]:
    """The same conversation gets the same reward again.

    A reward that differs although the agent sent and received the same texts depends on something else: a file that changes,
    a counter, a random number, the time, or other episodes. Such a reward is noise for training.
    """
    episodes = await explore_all(subject)
    again = {one.task.id: one for one in await explore_all(subject, round="again", backwards=True)}
    for first in episodes:
        second = again.get(first.task.id)
        if second is None or find_first_difference(first.transcript, second.transcript) is not None:
            continue
        if first.reward is not None and second.reward is not None and abs(first.reward - second.reward) > _SAME:
            return [
                _finding(
                    "agent.reward_repeats",
                    Severity.ERROR,
                    f"the same conversation of task {first.task.id} got the reward {first.reward:g}, and later "
                    f"{second.reward:g}.",
                    {"task": first.task.id, "first": first.reward, "second": second.reward},
                    "Compute the reward from the task and the episode alone; read no file that changes, and draw no random "
                    "numbers.",
                )
            ]
    agent = get_own_agent(subject)
    for task in agent.tasks[:_NUM_TASKS]:
        answers = await find_answers(subject, task)
        for kind, episode in answers.episodes.items():
            later = await agent.play(task, _same_policy(episode), round="again")
            if None not in (episode.reward, later.reward) and abs(episode.reward - later.reward) > _SAME:  # type: ignore[operator]
                return [
                    _finding(
                        "agent.reward_repeats",
                        Severity.ERROR,
                        f"the same answer to task {task.id} got the reward {episode.reward:g}, and later {later.reward:g}.",
                        {"task": task.id, "answer": kind, "first": episode.reward, "second": later.reward},
                        "Compute the reward from the task and the episode alone; read no file that changes, and draw no "
                        "random numbers.",
                    )
                ]
    return []


def _same_policy(episode: OwnEpisode) -> ScriptedPolicy:
    text = str(episode.trajectory.turns[0].message.get("content") or "") if episode.trajectory.turns else ""
    return make_answerer(text, name=episode.policy)


async def missing(subject: Subject) -> Iterable[Finding]:
    """Every episode that ends by itself gets a reward, from the agent or from `reward.reward`.

    An episode without a reward is lost, and never counts as 0. An agent that reports none needs a reward function in the
    recipe.
    """
    episodes = await _all_episodes(subject)
    lost = [one for one in episodes if one.reward is None and one.requests and not _is_cut(one)]
    if not lost:
        return []
    first = lost[0]
    return [
        _finding(
            "agent.reward_missing",
            Severity.ERROR,
            f"{len(lost)} of {len(episodes)} episodes got no reward"
            + (f": {first.failure}" if first.failure else ", and the recipe sets no reward.reward."),
            {"task": first.task.id, "policy": first.policy, "failure": first.failure},
            "Return a number from the agent for every episode, or set `reward.reward`, which grades the episodes that the "
            "agent does not.",
        )
    ]


async def varies(subject: Subject) -> Iterable[Finding]:
    """The reward depends on what the policy does.

    Scripted policies say nothing, say that they do not know, give the values of the task's fields as the answer, call
    every tool, and repeat demonstrations of the warm start. If all of them get the same reward, the policy cannot learn from it.
    """
    episodes = [one for one in await _all_episodes(subject) if one.reward is not None]
    rewards = {round(float(one.reward), 9) for one in episodes if one.reward is not None}
    policies = {one.policy for one in episodes}
    if len(rewards) != 1 or len(policies) < 3:
        return []
    (reward,) = rewards
    severity = Severity.ERROR if reward > 0 else Severity.NOTE
    return [
        _finding(
            "agent.reward_varies",
            severity,
            f"every one of {len(episodes)} episodes of {len(policies)} scripted policies got the reward {reward:g}.",
            {"reward": reward, "policies": sorted(policies)},
            "Make the reward depend on the answer and on the final state."
            if reward > 0
            else "Check that a right episode gets a reward; none of the scripted policies reached one.",
        )
    ]


async def empty_answer(subject: Subject) -> Iterable[Finding]:
    """An empty answer, and "I do not know.", get less reward than the right answer, and not the highest reward seen."""
    agent = get_own_agent(subject)
    await play_demonstrations(subject)
    for task in agent.tasks[:_NUM_TASKS]:
        answers = await find_answers(subject, task)
        require_results(agent.episodes)
        highest = max((one.reward for one in agent.episodes if one.reward is not None), default=None)
        lowest = min((one.reward for one in agent.episodes if one.reward is not None), default=None)
        for kind in ("nothing", "unsure"):
            reward = answers.reward(kind)
            if reward is None or highest is None or lowest is None or highest - lowest < _SAME:
                continue
            if reward >= highest - _SAME:
                what = "an empty answer" if kind == "nothing" else "the answer 'I do not know.'"
                return [
                    _finding(
                        "agent.reward_empty",
                        Severity.ERROR,
                        f"{what} to task {task.id} gets the reward {reward:g}, the highest of all scripted policies.",
                        {"task": task.id, "reward": reward, "highest": highest},
                        "Reward only episodes that do what the task asks.",
                    )
                ]
    return []


async def changed_answers(subject: Subject) -> Iterable[Finding]:
    """Wrong answers that contain the right one get less reward than the right one, and harmless changes do not matter.

    The rule finds the field of the task that holds the right answer by the reward it gets. It then gives a list of the
    answers of all tasks, the negation of the answer, and the answer of another task. If these get the same reward, the
    policy will learn to list all answers. White space around the right answer should not cost the reward.
    """
    agent = get_own_agent(subject)
    for task in agent.tasks[:_NUM_TASKS]:
        answers = await find_answers(subject, task)
        require_results(agent.episodes)
        best = answers.reward(f"the field {answers.field_name}")
        if best is None:
            continue
        for kind in ("every answer", "its negation", "the answer of another task"):
            reward = answers.reward(kind)
            if reward is not None and reward >= best - _SAME:
                return [_changed(answers, kind, reward, best)]
        spaced = answers.reward("white space around it")
        if spaced is not None and spaced < best - _SAME:
            return [
                _finding(
                    "agent.reward_changes",
                    Severity.WARNING,
                    f"the right answer to task {task.id} gets the reward {best:g}, but only {spaced:g} with white space "
                    "around it.",
                    {"task": task.id, "answer": answers.right, "reward": best, "with_white_space": spaced},
                    "Strip the answer before it is compared.",
                )
            ]
    return []


def _changed(answers: Answers, kind: str, reward: float, best: float) -> Finding:
    given = answers.episodes[kind].trajectory.turns[0].message.get("content")
    return _finding(
        "agent.reward_changes",
        Severity.ERROR,
        f"a wrong answer to task {answers.task.id} gets the reward of the right one, {reward:g}: {kind}.",
        {"task": answers.task.id, "right": answers.right, "answer": str(given)[:300], "reward": reward, "best": best},
        "Compare the whole answer with the expected one, instead of searching for the expected text in it.",
    )


async def agreement(subject: Subject) -> Iterable[Finding]:
    """Reward and scorer agree about the episodes of the scripted policies.

    An episode with the highest reward and the score 0, or with the score 1 and the lowest reward, means that training and
    evaluation want different things.
    """
    episodes = [one for one in await _all_episodes(subject) if one.reward is not None]
    scored = [one for one in episodes if one.trajectory.score is not None]
    rewards = [float(one.reward) for one in scored if one.reward is not None]
    if not rewards or max(rewards) - min(rewards) < _SAME:
        return []
    for one in scored:
        score = one.trajectory.score
        highest, lowest = one.reward == max(rewards), one.reward == min(rewards)
        if (highest and score == 0) or (lowest and score == 1):
            return [
                _finding(
                    "agent.agreement",
                    Severity.WARNING,
                    f"an episode of task {one.task.id} gets the reward {one.reward:g} ({'highest' if highest else 'lowest'} of "
                    f"all), but the score {score:g}.",
                    {"task": one.task.id, "policy": one.policy, "reward": one.reward, "score": score},
                    "Find out which of the two is wrong about this episode, and correct it.",
                )
            ]
    return []


async def _all_episodes(subject: Subject) -> list[OwnEpisode]:
    """Return the episodes of demonstrations, the explorer's, and those of answers that are given at once."""
    agent = get_own_agent(subject)
    await play_demonstrations(subject)
    await explore_all(subject, needs="nothing")
    with subject.timing.as_far_as_it_goes():
        for task in agent.tasks[:_NUM_TASKS]:
            await find_answers(subject, task)
    require_results(agent.episodes)
    return [one for one in agent.episodes if not one.is_failure_of_agent]


def _is_cut(episode: OwnEpisode) -> bool:
    return episode.trajectory.outcome.value in ("max_turns", "max_tokens", "policy_timeout")


def _finding(rule: str, severity: Severity, symptom: str, evidence: dict[str, Json], change: str) -> Finding:
    return Finding(rule=rule, severity=severity, symptom=symptom, evidence=evidence, change=change, confirm=AGAIN)
