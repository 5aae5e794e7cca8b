"""A policy that plays the user: it sees the conversation from the other side, under instructions of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from sparring.protocols import SessionLike
from sparring.types import Message


@final
class UserSimulator:
    """The user of one episode, played by one of the recipe's policies. Make it in `reset`, ask it in `reply`:

        def reset(self, task):
            self.user = UserSimulator("customer", f"You want {task.fields['wish']}. Say ###STOP### once you have it.")

        async def reply(self, messages, session):
            return await self.user.reply(messages, session)

    What the agent says is what the user hears, and the user's words are the simulator's answers; of tools it sees nothing.
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
        """`instructions` are its system message. `greeting` is what it takes the agent to have said before the task's first
        user message, since a chat begins with the other side. `max_exchanges` replies at most: then the user leaves."""
        self._policy = policy
        self._stop = stop
        self._max_exchanges = max_exchanges
        self._num_replies = 0
        self._conversation: list[Message] = [{"role": "system", "content": instructions}]
        self._greeting = greeting

    async def reply(self, messages: Sequence[Message], session: SessionLike) -> str | None:
        """What the user says to the last of `messages`; None when it says the stop phrase, or has replied so often.

        Raises what `session.of(policy).chat` raises.
        """
        if self._num_replies >= self._max_exchanges:
            return None
        if self._num_replies == 0:
            opening = [message for message in messages if message["role"] == "user"][:1]
            self._conversation += [{"role": "user", "content": self._greeting}] * len(opening)
            self._conversation += [{"role": "assistant", "content": message["content"]} for message in opening]
        self._conversation.append({"role": "user", "content": messages[-1].get("content") or ""})
        said = await session.of(self._policy).chat(self._conversation)
        # As it was said, so that its next turn extends this one.
        self._conversation.append(said)
        self._num_replies += 1
        text = str(said.get("content") or "")
        return None if self._stop in text else text
