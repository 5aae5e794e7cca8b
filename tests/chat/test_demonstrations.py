"""Demonstrations as tokens: what is learned, and where a conversation may end."""

import pytest

from sparring.chat.demonstrations import tokenize_conversation
from sparring.environments import answer, tool_call
from sparring.errors import DataError
from tests.gateway.builders import CHAT

ASKED = {"role": "user", "content": "find b"}
CALL = tool_call("get", key="b")
RESULT = {"role": "tool", "tool_call_id": "call", "content": "the end"}


def test_tool_results_at_which_the_environment_ends_the_episode_are_left_out() -> None:
    ids, mask = tokenize_conversation(CHAT, [ASKED, CALL, RESULT], ())
    assert (ids, mask) == tokenize_conversation(CHAT, [ASKED, CALL], ())
    assert (
        CHAT.decode([token for token, is_sampled in zip(ids, mask, strict=True) if is_sampled]).count("<tool_call>")
        == 1
    )
    # Nothing else is learned: no message that a policy would have to say after the end.
    assert mask[-1]
    assert "the end" not in CHAT.decode(ids)


@pytest.mark.parametrize(
    ("messages", "last"),
    [([], "None"), ([ASKED], "'user'"), ([ASKED, RESULT], "'tool'"), ([ASKED, answer("F"), ASKED], "'user'")],
)
def test_a_conversation_without_an_answer_is_refused(messages: list[dict[str, object]], last: str) -> None:
    with pytest.raises(DataError, match=f"ends with role {last}; it must end with an assistant message"):
        tokenize_conversation(CHAT, messages, ())
