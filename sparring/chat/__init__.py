"""Converts messages to token ids and back, and parses tool calls."""

from sparring.chat.byte_tokenizer import ByteTokenizer
from sparring.chat.choice import create_chat
from sparring.chat.control_tokens import REASONING, control_tokens
from sparring.chat.template import TemplateChat, Tokenizer, inconsistency
from sparring.chat.tool_calls import parse_assistant, render_assistant

__all__ = [
    "REASONING",
    "ByteTokenizer",
    "TemplateChat",
    "Tokenizer",
    "control_tokens",
    "create_chat",
    "inconsistency",
    "parse_assistant",
    "render_assistant",
]
