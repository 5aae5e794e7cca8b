"""Whatever clients do to a conversation, and whatever its template: no token is trained that was not sampled, none twice."""

import asyncio
import copy
import itertools
import json
import os
import random
from typing import Any

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.ledger import Ledger, RolloutState
from sparring.sessions import EpisodeIdentity, Session
from sparring.training.sequences import build_batch
from sparring.types import (
    Completion,
    Outcome,
    Reward,
    SampleRequest,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    TrajectoryGroup,
)

IS_WHOLE = int(os.environ.get("FAULT_SEEDS", "1")) > 1
NUM_DIALOGUES = 2500 if IS_WHOLE else 400
"""Of each template family: 10,000 in all with `make faults`, and 1,600 with `make test`."""


class FamilyTokenizer:
    """Bytes after the special tokens of a family, whose template is jinja."""

    def __init__(self, specials: list[str], eos: str, template: str) -> None:
        self._specials, self._bytes = specials, ByteTokenizer()
        self.eos_token_id = specials.index(eos)
        self.all_special_ids = tuple(range(len(specials)))
        self.chat_template = template
        self._compiled = jinja2.Environment().from_string(template)

    def get_added_vocab(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self._specials)}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            at, special = min(((text.find(s), s) for s in self._specials if s in text), default=(len(text), ""))
            ids += [len(self._specials) + byte for byte in text[:at].encode()]
            ids += [self._specials.index(special)] if special else []
            text = text[at + len(special) :]
        return ids

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        count = len(self._specials)
        parts = (self._specials[i].encode() if i < count else bytes([i - count]) for i in token_ids)
        return b"".join(parts).decode(errors="replace")

    def apply_chat_template(
        self, conversation: Any, *, tools: Any = None, add_generation_prompt: bool = False, **_: Any
    ) -> str:
        return self._compiled.render(messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt)


FAMILIES = {
    "chatml": lambda: TemplateChat(ByteTokenizer()),
    # Knows tools and writes calls itself; text and calls of one answer in one turn.
    "hermes": lambda: TemplateChat(
        FamilyTokenizer(
            ["<|im_start|>", "<|im_end|>"],
            "<|im_end|>",
            "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
            "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
            "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        )
    ),
    # Header tokens and another close; a default system message where none is given.
    "headers": lambda: TemplateChat(
        FamilyTokenizer(
            ["<|begin|>", "<|head|>", "<|end_head|>", "<|eot|>"],
            "<|eot|>",
            "<|begin|>{% if messages[0].role != 'system' %}<|head|>system<|end_head|>\n\nBe brief.<|eot|>{% endif %}"
            "{% for m in messages %}<|head|>{{ m.role }}<|end_head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
            "{% if add_generation_prompt %}<|head|>assistant<|end_head|>\n\n{% endif %}",
        )
    ),
    # Instructions in brackets, only the end of an answer is a special token; no role for tools, drops old reasoning.
    "instruct": lambda: TemplateChat(
        FamilyTokenizer(
            ["<s>", "</s>"],
            "</s>",
            "<s>{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}</s>"
            "{% elif m.role == 'tool' %}{{ raise_unknown_role() }}{% else %}[INST] {{ m.content }} [/INST]{% endif %}"
            "{% endfor %}",
        )
    ),
}

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
]
ANSWERS = (
    "plain text",
    "",
    "  spaced \n",
    "Größe 🙂",
    "a < b",
    "<think>hm</think>so",
    '<tool_call>{"name":',
    'see\n<tool_call>{"name":"get","arguments":{"key":"b",  "n":1.0}}</tool_call>',
    '<tool_call>{"name":"get","arguments":{"key":"ß"}}</tool_call>',
    '<tool_call>{"name":"get","arguments":{}}</tool_call><tool_call>{"name":"get","arguments":{"k":[1,null]}}</tool_call>',
)


class Emits:
    """An engine whose every sampled token has a log-probability of its own, by which it is recognized in a batch."""

    policy_version, fingerprint, max_context_tokens = 0, "f", 100_000

    def __init__(self, chat: TemplateChat, rng: random.Random) -> None:
        self._chat, self._rng, self._numbers = chat, rng, itertools.count(1)
        self.emitted: list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]] = []

    async def sample(self, request: SampleRequest, on_token: Any = None) -> Completion:
        ids = self._chat._encoded(self._rng.choice(ANSWERS))  # pyright: ignore
        is_cut = bool(ids) and self._rng.random() < 0.15
        ids = (
            ids[: self._rng.randrange(1, len(ids) + 1)]
            if is_cut
            else [*ids, self._rng.choice(sorted(request.stop_ids))]
        )
        # Single precision, as the ledger keeps them: all different up to 2 ** 24.
        logprobs = tuple(-next(self._numbers) / 2**20 for _ in ids)
        self.emitted.append((request.prompt_ids, tuple(ids), logprobs))
        return Completion(
            token_ids=tuple(ids),
            sampled_logprobs=logprobs,
            stop_reason=StopReason.LENGTH if is_cut else StopReason.STOP,
            versions=((0, len(ids)),),
            fingerprint="f",
            num_computed_tokens=1,
        )

    def open_session(self, session_id: str) -> None: ...

    def close_session(self, session_id: str) -> None: ...


def as_the_client_sees_it(message: Any, habit: str, rng: random.Random) -> Any:
    """The answer as a client of that habit keeps it."""
    kept = copy.deepcopy({key: value for key, value in message.items() if key != "malformed_tool_calls"})
    if habit == "reserialise":
        for call in kept.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(
                json.loads(call["function"]["arguments"]), indent=rng.choice([None, 1])
            )
    elif habit == "compact":
        for call in kept.get("tool_calls", ()):
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    elif habit == "drop text" and kept.get("tool_calls"):
        kept["content"] = rng.choice([None, ""])
    elif habit == "drop reasoning":
        kept.pop("reasoning_content", None)
    elif habit == "parts":
        kept["content"] = [{"type": "text", "text": kept["content"]}]
    elif habit == "own ids":
        for call in kept.get("tool_calls", ()):
            call["id"] = f"mine-{rng.random()}"
    if not kept["content"] and rng.random() < 0.5:
        kept.pop("content")
    return kept


HABITS = ("verbatim", "reserialise", "compact", "drop text", "drop reasoning", "parts", "own ids")
MOVES = ("go on", "go on", "go on", "again", "edit", "forget", "side", "no tools", "other system", "two at once")


async def dialogue(
    chat: TemplateChat, seed: int, moves: list[str], habit: str, ledger: Ledger
) -> tuple[Trajectory, Emits]:
    rng = random.Random(seed)
    engine, id = Emits(chat, rng), f"r{seed}-{next(_NUMBERS)}"
    ledger.plan_nowait(id, task_id="t", attempt=0)
    ledger.advance_nowait(id, RolloutState.LEASED)
    ledger.advance_nowait(id, RolloutState.RUNNING)
    system, messages = {"role": "system", "content": "You are a clerk."}, [{"role": "user", "content": "find b"}]
    async with Session(EpisodeIdentity(id), engine=engine, chat=chat, sampling=Sampling(), ledger=ledger) as session:
        for move in moves:
            tools = [] if move == "no tools" else TOOLS
            if move == "edit" and len(messages) > 1:
                messages[rng.randrange(len(messages) - 1)] = {"role": "user", "content": f"edited {rng.random()}"}
            elif move == "forget" and len(messages) > 2:
                messages = [messages[0], {"role": "user", "content": "summary"}, *messages[-1:]]
            elif move == "side":
                await session.chat([{"role": "user", "content": f"hello {rng.random()}"}])
            elif move == "other system":
                system = {"role": "system", "content": f"You are {rng.random()}."}
            elif move == "two at once":
                await asyncio.gather(*(session.chat([system, *messages], tools) for _ in range(2)))
            elif move == "again":
                await session.chat([system, *messages], tools)
            answer = await session.chat([system, *messages], tools)
            messages = [*messages, as_the_client_sees_it(answer, habit, rng)]
            calls = messages[-1].get("tool_calls", ())
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": rng.choice(["f", "", "ä"])} for call in calls
            ]
            messages += [{"role": "user", "content": "and now?"}] * (not calls)
        turns = session.turns
    trajectory = Trajectory(
        id=id,
        task=Task(id="t", messages=()),
        attempt=0,
        turns=turns,
        messages=(),
        outcome=Outcome.FINISHED,
        reward=Reward(total=1.0),
        score=None,
    )
    return trajectory, engine


_NUMBERS = itertools.count()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_sampled_token_is_trained_once_and_no_other(family: str) -> None:
    chat = FAMILIES[family]()
    num_spliced = 0

    @settings(max_examples=NUM_DIALOGUES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32), st.lists(st.sampled_from(MOVES), min_size=1, max_size=6), st.sampled_from(HABITS))
    def holds(seed: int, moves: list[str], habit: str) -> None:
        nonlocal num_spliced
        trajectory, engine = asyncio.run(dialogue(chat, seed, moves, habit, ledger))
        # The turns of the session are what the engine was asked and answered, in this order or concurrently.
        key = [(turn.prompt_ids, turn.token_ids, turn.sampled_logprobs) for turn in trajectory.turns]
        assert sorted(key, key=lambda one: one[2]) == sorted(engine.emitted, key=lambda one: one[2])
        batch = build_batch(
            [TrajectoryGroup(task=trajectory.task, trajectories=(trajectory,))],
            {trajectory.id: (1.0,) * len(trajectory.turns)},
        )
        trained = {
            logprob: (index, place)
            for index, segment in enumerate(batch.segments)
            for place, (logprob, masked) in enumerate(zip(segment.sampled_logprobs, segment.mask, strict=True))
            if masked
        }
        assert len(trained) == batch.num_trained_tokens == sum(len(ids) for _, ids, _ in engine.emitted)
        # Each sampled token stands behind exactly the tokens that it was sampled behind.
        before: dict[int, list[int]] = {}
        for index, segment in enumerate(batch.segments):
            before[index] = (
                []
                if segment.parent is None
                else before[segment.parent] + list(batch.segments[segment.parent].token_ids)
            )
        for prompt, ids, logprobs in engine.emitted:
            for number in (0, len(ids) - 1):
                index, place = trained[logprobs[number]]
                context = before[index] + list(batch.segments[index].token_ids[: place + 1])
                assert context == [*prompt, *ids[: number + 1]]
        num_spliced += sum(turn.parent is not None for turn in trajectory.turns)

    with Ledger() as ledger:
        holds()
        assert ledger.verify() == []
    assert num_spliced > NUM_DIALOGUES / 4  # else little of what could go wrong was tried
