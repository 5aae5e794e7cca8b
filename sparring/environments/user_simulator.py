"""A policy that acts as the user. It sees the conversation from the user's side, and has its own instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from sparring.protocols import SessionLike
from sparring.types import Message


@final
class UserSimulator:
    """The user of one episode, simulated by one of the recipe's policies. Create the simulator in `reset`, and call it
    in `reply`:

        def reset(self, task):
            self.user = UserSimulator("customer", f"You want {task.fields['wish']}. Say ###STOP### once you have it.")

        async def reply(self, messages, session):
            return await self.user.reply(messages, session)

    In the simulator's chat, the agent's texts are user messages, and the simulator does not see tool calls. Its answers
    become the user's messages in the episode.
    """

    def __init__(
        self,
        policy: str,
        instructions: str,
        *,
        greeting: str = "Hello, how can I help you?",
        stop: str = "###STOP###",
        max_exchanges: int = 8,
    ) -> None:
        """`instructions` is the simulator's system message. `greeting` stands for the agent's words before the task's
        first user message, because in the simulator's chat the agent speaks first. After `max_exchanges` replies, the
        user ends the conversation."""
        self._policy = policy
        self._stop = stop
        self._max_exchanges = max_exchanges
        self._num_replies = 0
        self._conversation: list[Message] = [{"role": "system", "content": instructions}]
        self._greeting = greeting

    async def reply(self, messages: Sequence[Message], session: SessionLike) -> str | None:
        """Return the user's reply to the last of `messages`, or None if the reply contains the stop phrase or the limit
        is reached.

        Raises any error that `session.of(policy).chat` raises.
        """
        if self._num_replies >= self._max_exchanges:
            return None
        if self._num_replies == 0:
            opening = [message for message in messages if message["role"] == "user"][:1]
            self._conversation += [{"role": "user", "content": self._greeting}] * len(opening)
            self._conversation += [{"role": "assistant", "content": message["content"]} for message in opening]
        self._conversation.append({"role": "user", "content": messages[-1].get("content") or ""})
        answer = await session.of(self._policy).chat(self._conversation)
        # The answer is stored unchanged, so that the simulator's next turn extends this turn.
        self._conversation.append(answer)
        self._num_replies += 1
        text = str(answer.get("content") or "")
        return None if self._stop in text else text
