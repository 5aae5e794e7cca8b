"""The recipe's settings, as far as the log determines them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparring.chat.tool_calls import render_assistant
from sparring.models.starters import Starter
from sparring.traces.conversation import Conversation
from sparring.traces.tasks import Selection
from sparring.traces.tools import LoggedTool

_MARKERS = 16
"""Characters for the role and the special tokens of a message."""
_MANY_DEMONSTRATIONS = 800
"""With fewer demonstrations, a model from scratch memorizes identifiers instead of learning to copy them. We saw no success
with 452, and it learned with 907 (docs/tutorial-traces.md)."""
_MOST_POSITIONS = {True: 2048, False: 8192}
"""The most positions of a model from scratch that learns in minutes, and of SmolLM2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """Lengths of the tasks' good conversations, in tokens as far as they are not counts. Texts are estimated at two
    characters per token, which is enough for numbers and identifiers."""

    turns: int
    described: int
    """The tools' schemas in the prompt."""
    opening: int
    """The longest opening, with these schemas."""
    answer: int
    """The longest message of the assistant."""
    results: int
    """The results of tools and the user's later messages of one conversation."""

    @property
    def max_turns(self) -> int:
        return math.ceil(1.5 * self.turns)

    def positions(self, *, most: int) -> int:
        """Return the positions for an episode of maximum length, but not more than the model has."""
        needed = self.opening + self.max_turns * self.answer + self.results
        return min(most, math.ceil(needed / 256) * 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeText:
    """A recipe, and the demonstrations that fit the positions of its model."""

    text: str
    positions: int
    demonstrations: tuple[Conversation, ...]
    varies_identifiers: bool
    """Whether the warm start also needs copies of the demonstrations with other identifiers, and their code."""


def build_recipe(
    selection: Selection,
    demonstrations: Sequence[Conversation],
    tools: Sequence[LoggedTool],
    model: Starter | Literal["scratch"] | None,
) -> RecipeText:
    """Return the recipe of the tasks. Lengths are estimated from the number of characters."""
    is_scratch = model == "scratch"
    lengths = _lengths(selection, [] if is_scratch else tools)
    positions = lengths.positions(most=_MOST_POSITIONS[is_scratch])
    fitting = tuple(one for one in demonstrations if lengths.described + _length(one) <= positions) or tuple(
        demonstrations
    )
    varies_identifiers = is_scratch and len(fitting) < _MANY_DEMONSTRATIONS
    threads = "num_threads = 1 # more hardly help a model this small, and slow it down when the machine is busy\n"
    sections = {
        **({"run": threads} if is_scratch else {}),
        "model": _model(model, positions),
        "data": "".join(f'{name} = "tasks/{name}.jsonl"\n' for name, members in selection.splits.items() if members),
        "environment": 'target = "environment:LoggedTools"\n'
        f"max_turns = {lengths.max_turns} # the longest good conversation has {lengths.turns}\n",
        "reward": 'reward = "reward:reward" # imitates the log until you replace it\n'
        'scorer = "scorer:scorer" # grades independently of the reward, and is never trained on\n',
        "warm_start": _warm_start(len(fitting), is_scratch, varies_identifiers),
        "batch": "global_batch_size = 8\ngroup_size = 8\n",
        "sampling": f"sampling_max_tokens = {lengths.answer}\n",
        "optimizer": f"learning_rate = {'5e-4' if is_scratch else '1e-4'}\n",
        "rollout": "max_steps_off_policy = 0\n",
        "schedule": "max_steps = 50\nmax_epochs = 100\nval_every = 10\n",
        "evaluation": "val_temperature = 1.0\neval_temperature = 1.0\neval_group_size = 4\n",
    }
    if isinstance(model, Starter):
        sections |= model.sections()
        sections["sampling"] = f"sampling_max_tokens = {max(256, lengths.answer)}\n"
    head = "# Written by `sparring init --from-traces`. `sparring config KEY` explains each key.\n\n"
    return RecipeText(
        text=head + "\n".join(f"[{name}]\n{text}" for name, text in sections.items()),
        positions=positions,
        demonstrations=fitting,
        varies_identifiers=varies_identifiers,
    )


def _model(model: Starter | Literal["scratch"] | None, positions: int) -> str:
    if model == "scratch":
        return (
            f'name = "model:build"\nprecision = "fp32"\ntrained_weights = "full"\nmax_sequence_length = {positions}\n'
        )
    return f'name = "smollm2-135m-instruct"\nmax_sequence_length = {positions}\nlora_rank = 16\nlora_alpha = 32\n'


def _warm_start(num: int, is_scratch: bool, varies_identifiers: bool) -> str:
    if varies_identifiers:
        return (
            'demonstrations = "demonstrations:varied" # also copies of the logged ones, with other identifiers\n'
            "num_demonstrations = 16000\nsteps = 2000\nbatch_size = 8\nlearning_rate = 4e-3\n"
            'learning_rate_schedule = "linear"\n'
        )
    text = f'demonstrations = "demonstrations.jsonl"\nnum_demonstrations = {num}\n'
    if is_scratch:
        return text + 'steps = 300\nbatch_size = 8\nlearning_rate = 5e-3\nlearning_rate_schedule = "linear"\n'
    return text + f"steps = {max(12, min(200, num // 2))}\nbatch_size = 8\nlearning_rate = 5e-4\n"


def _lengths(selection: Selection, described: Sequence[LoggedTool]) -> _Lengths:
    """Return the lengths of the longest parts. `described` are the tools whose schemas are in the prompt."""
    examples = [task.example for task in selection.tasks]
    in_prompt = sum(len(json.dumps(one.schema)) for one in described)
    answers = [render_assistant(one) for talk in examples for one in talk.messages if one["role"] == "assistant"]
    results = [
        [one["content"] for one in talk.messages[len(talk.opening) :] if one["role"] != "assistant"]
        for talk in examples
    ]
    return _Lengths(
        turns=max(one.num_turns for one in examples),
        described=_tokens(in_prompt),
        opening=_tokens(
            in_prompt + max(sum(_MARKERS + len(one["content"]) for one in talk.opening) for talk in examples)
        ),
        answer=math.ceil(_tokens(max(map(len, answers)) + _MARKERS) / 16) * 16,
        results=_tokens(max(sum(_MARKERS + len(text) for text in texts) for texts in results)),
    )


def _length(one: Conversation) -> int:
    texts = [
        render_assistant(message) if message["role"] == "assistant" else message["content"] for message in one.messages
    ]
    return _tokens(sum(_MARKERS + len(text) for text in texts))


def _tokens(num_characters: int) -> int:
    return math.ceil(num_characters / 2)
