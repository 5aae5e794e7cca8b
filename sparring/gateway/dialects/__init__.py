"""The APIs that the gateway speaks, one file each, and the routes where it speaks them."""

from collections.abc import Mapping

from sparring.gateway.dialects.chat_completions import ChatCompletions
from sparring.gateway.request import Dialect

DIALECTS: Mapping[str, Dialect] = {"/v1/chat/completions": ChatCompletions()}

__all__ = ["DIALECTS", "ChatCompletions"]
