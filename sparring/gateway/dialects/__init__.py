"""The APIs that the gateway supports, with one file for each API, and their routes."""

from collections.abc import Mapping

from sparring.gateway.dialects.chat_completions import ChatCompletions
from sparring.gateway.dialects.messages import Messages
from sparring.gateway.dialects.responses import Responses
from sparring.gateway.request import Dialect

DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}

__all__ = ["DIALECTS", "ChatCompletions", "Messages", "Responses"]
