"""Rules on what an agent of the user's own sends to the policy: tools, history, length, secrets and the answer."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparring.checks.evidence.own_agent import (
    OwnEpisode,
    calls_of,
    explore_all,
    get_own_agent,
    list_conversations,
    results_of,
)
from sparring.checks.evidence.own_answers import find_answers
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.wire_policies import FAILED, make_repeater
from sparring.checks.rules.own_agent import AGAIN
from sparring.findings import Finding, Severity
from sparring.runtime.missing_parts import names_in
from sparring.runtime.secret_texts import find_secret
from sparring.types import Json, MessageRequest, Outcome

_REFUSALS = re.compile(
    r"unexpected keyword|missing \d+ required|unknown (tool|function)|no (such )?(tool|function)|not a known tool|"
    r"(tool|function) .{0,40}not (found|defined|known|implemented|available)|got an unexpected|\b(TypeError|NameError|"
    r"AttributeError|NotImplementedError)\b",
    re.IGNORECASE,
)
"""What results of calls say if the code behind a tool does not fit its schema."""
_REFUSED = re.compile(r"""error\b|\{?["']?error["']?\s*[:=]\s*[^\snf]""", re.IGNORECASE)
"""How a result begins that reports an error: `error: ...`, or an object with an `error` that is not null or false."""
_MANY_CALLS = 6
_BYTES_PER_TOKEN = 6.0
"""More bytes of text than a token of common tokenizers has on average, so that the estimate is low."""


async def tools(subject: Subject) -> Iterable[Finding]:
    """The tools that the agent offers are the tools that it executes.

    Every offered tool is called with arguments that its schema permits. The rule reports a call whose result reports that the
    tool or an argument is unknown, a call that is never answered, a schema that changes between turns or tasks, a schema
    that contradicts itself, and executed calls (`AgentReport.transitions`) that differ from the calls of the policy. Such
    a drift happens when schemas are written by hand: generate them from the functions.
    """
    episodes = await list_conversations(subject)
    return [
        *_changing_schemas(episodes),
        *_odd_schemas(episodes),
        *_refused_calls(episodes),
        *_never_successful(episodes),
        *_executed(episodes),
    ]


def _changing_schemas(episodes: Iterable[OwnEpisode]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for episode in episodes:
        for number, request in enumerate(episode.requests):
            names = [tool["function"]["name"] for tool in request.tools]
            double = next((name for name in names if names.count(name) > 1), None)
            if double is not None:
                yield _drift(f"the tool {double} is offered twice in one request.", episode, {"turn": number})
                return
            for tool in request.tools:
                name, schema = tool["function"]["name"], json.dumps(tool["function"], sort_keys=True)
                if seen.setdefault(name, schema) != schema:
                    evidence = {"turn": number, "first": seen[name][:400], "now": schema[:400]}
                    yield _drift(f"the schema of the tool {name} changes between requests.", episode, evidence)
                    return


def _odd_schemas(episodes: Iterable[OwnEpisode]) -> Iterator[Finding]:
    reported = set[str]()
    for episode in episodes:
        for tool in (tool for request in episode.requests[:1] for tool in request.tools):
            name = tool["function"]["name"]
            parameters = tool["function"].get("parameters") or {}
            unknown = [
                one for one in parameters.get("required") or () if one not in (parameters.get("properties") or {})
            ]
            if unknown and name not in reported:
                reported.add(name)
                yield _drift(
                    f"the tool {name} requires {', '.join(unknown)}, which its schema does not describe.",
                    episode,
                    {"schema": parameters},
                )


def _refused_calls(episodes: Iterable[OwnEpisode]) -> Iterator[Finding]:
    """Yield a finding for each tool whose legal calls are refused or stay without a result."""
    refused: dict[str, tuple[OwnEpisode, Json, str]] = {}
    unanswered: dict[str, OwnEpisode] = {}
    answered = set[str]()
    for episode in episodes:
        if not episode.requests:
            continue
        last = episode.requests[-1]
        results, calls = results_of(last), calls_of(last, episode.trajectory.messages)
        for id, call in calls.items():
            name = call["name"]
            if id in results and _REFUSALS.search(results[id]):
                refused.setdefault(name, (episode, call, results[id]))
            elif id in results:
                answered.add(name)
            elif not episode.is_failure_of_agent:
                unanswered.setdefault(name, episode)
    for name, (episode, call, result) in refused.items():
        if name not in answered:
            evidence = {"call": call, "result": result[:300]}
            yield _drift(f"a call of {name} that fits its schema is refused: {result[:160]}", episode, evidence)
    for name, episode in unanswered.items():
        if name not in answered and name not in refused:
            yield _drift(f"the policy's call of {name} gets no result; the agent ignores it.", episode, {})


def _never_successful(episodes: Iterable[OwnEpisode]) -> Iterator[Finding]:
    """Yield a note for each tool of which many different calls that fit its schema all failed."""
    results: dict[str, dict[str, list[str]]] = {}
    for episode in episodes:
        for request in episode.requests[-1:]:
            found = results_of(request)
            for id, call in calls_of(request).items():
                if id in found:
                    results.setdefault(call["name"], {}).setdefault(_canonical(call), []).append(found[id])
    for name, texts in results.items():
        if len(texts) >= _MANY_CALLS and all(FAILED.search(one) for same in texts.values() for one in same):
            yield Finding(
                rule="agent.tools",
                severity=Severity.NOTE,
                symptom=f"all {len(texts)} different calls of {name} failed, for example with: "
                f"{next(iter(texts.values()))[0][:160]}",
                evidence={"tool": name, "calls": list(texts)[:6]},
                change="Check that arguments that fit the schema can work: names, types, and what the tool requires.",
                confirm=AGAIN,
            )


def _executed(episodes: Iterable[OwnEpisode]) -> Iterator[Finding]:
    """Yield a finding if the calls that were handed over are not those of the policy."""
    for episode in episodes:
        if not episode.trajectory.transitions or not episode.requests:
            continue
        last = episode.requests[-1]
        calls = calls_of(last, episode.trajectory.messages)
        made = [_canonical(call) for call in calls.values()]
        shown: dict[str, list[str]] = {}
        for id, text in results_of(last).items():
            shown.setdefault(_canonical(calls[id]) if id in calls else "", []).append(text)
        for entry in episode.trajectory.transitions:
            call = {"name": entry["tool"], "arguments": entry.get("arguments") or {}}
            if _canonical(call) not in made:
                evidence = {"executed": call, "called": made[:6]}
                yield _drift(
                    f"the agent executed {entry['tool']} with arguments that no turn called.", episode, evidence
                )
                return
            texts = shown.get(_canonical(call), [])
            if entry.get("error") is None and texts and all(_REFUSED.match(text.strip()) for text in texts):
                yield _drift(
                    f"the agent hands over a call of {entry['tool']} as successful, but showed the policy an error: "
                    f"{texts[0][:120]}",
                    episode,
                    {"executed": dict(entry), "shown": texts[0][:300]},
                )
                return


def _canonical(call: Mapping[str, Json]) -> str:
    arguments = call["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return f"{call['name']} {arguments}"
    return f"{call['name']} {json.dumps(arguments, sort_keys=True)}"


def _drift(symptom: str, episode: OwnEpisode, evidence: dict[str, Json]) -> Finding:
    return Finding(
        rule="agent.tools",
        severity=Severity.ERROR,
        symptom=symptom,
        evidence={"task": episode.task.id, **evidence},
        change="Generate the schemas from the functions that are called, and answer every call with a tool message.",
        confirm=AGAIN,
    )


async def history(subject: Subject) -> Iterable[Finding]:
    """Each request continues the conversation of the previous one.

    A request that rewrites earlier messages (a shortened history, a changed system prompt, an answer rebuilt from its text
    without its calls) starts a new sequence. The whole prompt is then computed and trained again, and the policy is trained
    on a conversation that it never had in one piece. Append messages as they came, and change nothing before them.
    """
    found: dict[str, list[OwnEpisode]] = {}
    for episode in await explore_all(subject, needs="requests"):
        reasons = [turn.branch_reason for turn in episode.trajectory.turns[1:] if turn.branch_reason]
        if reasons:
            found.setdefault(str(reasons[0]), []).append(episode)
    for reason, episodes in found.items():
        num = sum(bool(turn.branch_reason) for turn in episodes[0].trajectory.turns[1:])
        return [
            Finding(
                rule="agent.history",
                severity=Severity.WARNING,
                symptom=f"{num} of {len(episodes[0].requests)} requests of an episode do not continue the conversation: "
                f"{reason}.",
                evidence={"tasks": [one.task.id for one in episodes], "reason": reason},
                change="Append each answer and each result to the messages as they came, and change nothing before them.",
                confirm=AGAIN,
            )
        ]
    return []


async def secrets(subject: Subject) -> Iterable[Finding]:
    """Prompts, tool schemas, tool results and what the agent hands over contain no secrets.

    The rule looks for keys, tokens, passwords and the values of environment variables such as `..._KEY`. What stands in a
    prompt is stored with every episode and learned by the model; what is handed over is stored, too.
    """
    for episode in await list_conversations(subject):
        for place, text in episode.texts:
            what = find_secret(text)
            if what is not None:
                return [
                    Finding(
                        rule="agent.secrets",
                        severity=Severity.ERROR,
                        symptom=f"the {place} contains {what}.",
                        evidence={"task": episode.task.id, "place": place},
                        change="Remove the secret from prompts and tools, and read it inside the tool's code.",
                        confirm=AGAIN,
                    )
                ]
    return []


async def context(subject: Subject) -> Iterable[Finding]:
    """The conversations of the agent fit into `model.max_sequence_length`, with room for an answer.

    The length is that of the request after one call of each tool. It is estimated from the texts, with six bytes for a
    token, which is rather too low.
    """
    most = subject.config.model.max_sequence_length
    room = most - subject.config.sampling.sampling_max_tokens
    episodes = [one for one in await list_conversations(subject) if one.requests]
    if not episodes or most is None:
        return []
    episode = max(episodes, key=_tokens_after_calls)
    first, last = _num_tokens(episode.requests[0]), _tokens_after_calls(episode)
    if last <= room:
        return []
    severity = Severity.ERROR if first > room else Severity.WARNING
    what = "first request" if first > room else "request after one call of each tool"
    return [
        Finding(
            rule="agent.context",
            severity=severity,
            symptom=f"the {what} of an episode has about {first if first > room else last} tokens, but "
            f"model.max_sequence_length = {most} leaves {room} if an answer has sampling.sampling_max_tokens.",
            evidence={"task": episode.task.id, "first_request": first, "after_calls": last, "room": room},
            change="Raise model.max_sequence_length, lower sampling.sampling_max_tokens, or shorten prompts and results.",
            confirm=AGAIN,
        )
    ]


def _tokens_after_calls(episode: OwnEpisode) -> int:
    """Return the tokens of the last request for which the explorer has made at most one call of each tool."""
    num_tools = len(episode.requests[0].tools)
    return _num_tokens(episode.requests[min(num_tools, len(episode.requests) - 1)])


def _num_tokens(request: MessageRequest) -> int:
    text = json.dumps([*request.messages, *request.tools], ensure_ascii=False)
    return int(len(text.encode()) / _BYTES_PER_TOKEN)


async def answer_shown(subject: Subject) -> Iterable[Finding]:
    """The agent does not show the answer to the policy.

    The rule compares the first requests of several tasks: a text that gets a high reward in one task, and that the agent
    added to this task's first request but not to the others', is a leak of the reference answer.
    """
    agent, shown = get_own_agent(subject), []
    await explore_all(subject, needs="requests")
    for task in agent.tasks:
        answers = await find_answers(subject, task)
        first = (await agent.explore(task)).requests[:1]
        own = "\n".join(str(message.get("content") or "") for message in task.messages)
        sent = "\n".join(str(message.get("content") or "") for request in first for message in request.messages)
        right = answers.right
        if right is not None and len(right) > 2 and right in sent and right not in own:
            shown.append((task, right, sent))
    different = {right for _, right, _ in shown}
    if len(shown) < 2 or len(different) < 2:
        return []
    contrast = sum(right not in sent for _, right, _ in shown for _, other, sent in shown if other != right)
    if not contrast:
        return []
    return [
        Finding(
            rule="agent.answer_shown",
            severity=Severity.ERROR,
            symptom=f"the first request of the agent contains the answer in {len(shown)} of {len(agent.tasks)} tasks.",
            evidence={"tasks": [task.id for task, _, _ in shown], "answer": shown[0][1]},
            change="Build the prompt from the fields that the agent may know, and leave out the reference answer.",
            confirm=AGAIN,
        )
    ]


async def state(subject: Subject) -> Iterable[Finding]:
    """The agent hands over what the graders read: `final_state`, `transitions` and `artifacts`.

    Without a final state, a scorer sees the conversation only, and cannot tell whether a booking was really made. Return
    `AgentReport(reward=..., final_state=..., transitions=...)`, or the same names in the report of a program or server
    (docs/agents.md). An agent whose request is refused, because the policy has used its turns, must hand over its state, too.
    """
    await explore_all(subject)
    episodes = [one for one in get_own_agent(subject).episodes if not one.is_failure_of_agent]
    if not episodes:
        return []
    findings = await _missing_at_limit(subject, episodes)
    for grader, function in (("reward", subject.reward), ("scorer", subject.scorer)):
        read = names_in(function) if function is not None else frozenset()
        missing = [
            part
            for part in ("final_state", "transitions", "artifacts")
            if part in read and not any(getattr(one.trajectory, part) for one in episodes)
        ]
        keys = [] if function is None or "final_state" in missing else _missing_keys(function, episodes)
        if keys:
            findings.append(
                Finding(
                    rule="agent.state",
                    severity=Severity.WARNING,
                    symptom=f"the {grader} reads {', '.join(keys)} of the final state, which the agent never hands over.",
                    evidence={"missing": keys, "handed_over": sorted(_keys_of(episodes))},
                    change="Hand over what the grader reads, under the same name, or correct the name in the grader.",
                    confirm=AGAIN,
                )
            )
        if missing:
            findings.append(
                Finding(
                    rule="agent.state",
                    severity=Severity.ERROR,
                    symptom=f"the {grader} reads {', '.join(missing)}, which the agent never hands over.",
                    evidence={"missing": missing, "episodes": len(episodes)},
                    change="Return AgentReport(final_state=..., transitions=...) from the agent, or report the same names.",
                    confirm=AGAIN,
                )
            )
    has_tools = any(request.tools for one in episodes for request in one.requests)
    hands_over = any(one.handed_over for one in episodes)
    if not findings and has_tools and not hands_over:
        findings.append(
            Finding(
                rule="agent.state",
                severity=Severity.NOTE,
                symptom="the agent has tools but hands over no state, so that rewards and scorers see only the conversation.",
                evidence={"episodes": len(episodes)},
                change="Return AgentReport(final_state=...), and write a scorer that compares the state with the expected one.",
                confirm=AGAIN,
            )
        )
    return findings


async def _missing_at_limit(subject: Subject, episodes: Sequence[OwnEpisode]) -> list[Finding]:
    """Return a finding if an agent that hands over a final state does not do so when its last request is refused."""
    readers = [
        name
        for name, function in (("reward", subject.reward), ("scorer", subject.scorer))
        if function is not None and "final_state" in names_in(function)
    ]
    if not readers or all(one.trajectory.final_state is None for one in episodes):
        return []
    agent = get_own_agent(subject)
    with subject.timing.as_far_as_it_goes():
        limited = (await agent.play(agent.tasks[0], make_repeater())).trajectory
        if limited.outcome is Outcome.MAX_TURNS and limited.final_state is None:
            return [
                Finding(
                    rule="agent.state",
                    severity=Severity.WARNING,
                    symptom=f"the agent hands over no final_state when the policy has used its turns; the {readers[0]} reads "
                    "it.",
                    evidence={"task": limited.task.id, "turns": len(limited.turns), "failure": limited.error},
                    change="In a function, catch the error of the refused request (openai.APIStatusError) and return the "
                    "AgentReport. In a program, print the report in a `finally`.",
                    confirm=AGAIN,
                )
            ]
    return []


def _missing_keys(function: Callable[..., Any], episodes: Iterable[OwnEpisode]) -> list[str]:
    """Return the keys that a grader reads from the final state itself, and that no final state has."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    known, names = _keys_of(episodes), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_state(node.value, names):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    read = []
    for node in ast.walk(tree):
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and _is_state(node.value, names):
            key = node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            key = node.args[0] if node.args and _is_state(node.func.value, names) else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in known:
            read.append(key.value)
    return list(dict.fromkeys(read))


def _is_state(node: ast.expr, names: Collection[str]) -> bool:
    """Return whether an expression is the final state, possibly with a default (`state or {}`)."""
    if isinstance(node, ast.BoolOp):
        return _is_state(node.values[0], names)
    return (isinstance(node, ast.Attribute) and node.attr == "final_state") or (
        isinstance(node, ast.Name) and node.id in names
    )


def _keys_of(episodes: Iterable[OwnEpisode]) -> set[str]:
    states = [one.trajectory.final_state for one in episodes]
    return {str(key) for state in states if isinstance(state, Mapping) for key in state}
