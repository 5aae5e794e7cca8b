"""A session that answers from a script, for tests of agents and environments without an engine or a chat format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from sparring.types import Message, Sampling, StopReason, ToolSchema, Turn


@final
class ScriptedSession:
    """A session that answers with the given messages in order, and raises those that are exceptions.

    With `cut`, every answer counts as cut at the token limit. `others` are the sessions of the episode's other
    policies. `requests` contains the messages and tools of all requests so far."""

    def __init__(
        self, *script: Message | Exception, cut: bool = False, others: Mapping[str, ScriptedSession] | None = None
    ) -> None:
        self._script = list(script)
        self._stop_reason = StopReason.LENGTH if cut else StopReason.STOP
        self.requests: list[tuple[list[Message], tuple[ToolSchema, ...]]] = []
        self.turns: tuple[Turn, ...] = ()
        self._others = dict(others or {})

    @property
    def id(self) -> str:
        return "scripted"

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        """The turns of this session only, since turn ids are not shared between scripted sessions."""
        return self.turns

    @property
    def seconds_left(self) -> float | None:
        return None

    def of(self, name: str) -> ScriptedSession:
        return self._others[name]

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        self.requests.append((list(messages), tuple(tools)))
        message = self._script[len(self.turns)]
        if isinstance(message, Exception):
            raise message
        self.turns += (
            Turn(
                id=len(self.turns),
                parent=None,
                branch_reason=None,
                prompt_ids=(1,),
                token_ids=(2,),
                sampled_logprobs=(-1.0,),
                versions=((0, 1),),
                fingerprint="scripted",
                stop_reason=self._stop_reason,
                sampling=Sampling(),
                message=message,
                num_computed_tokens=2,
                seconds=0.0,
            ),
        )
        return message
