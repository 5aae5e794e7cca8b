"""Selects the `Chat` for a model."""

from __future__ import annotations

from typing import Any

from sparring.chat.template import TemplateChat
from sparring.protocols import Chat

_MARKS = (
    ("gpt-oss", ("<|start|>", "<|channel|>", "<|call|>")),
    ("gemma4", ("<|turn>", "<|tool_call>call:")),
    ("llama-3", ("<|start_header_id|>", "tools_in_user_message")),
    ("qwen3.8", ("<|vision_start|>", "<function=", "<parameter=", "<think>", "reasoning_effort")),
    ("qwen3.6", ("<|vision_start|>", "<function=", "<parameter=", "<think>", "is string else args_value | tojson")),
    ("qwen3.5", ("<|vision_start|>", "<function=", "<parameter=", "<think>")),
)
"""Formats of the `renderers` library. Each is recognized by texts that only the templates of its models contain, and
narrower formats come first. `TemplateChat` cannot read the tool calls of these formats."""


def create_chat(tokenizer: Any, model_name: str | None = None) -> Chat:
    """Return the chat for a model. It uses the `renderers` library if the library lists exactly this model name, or if
    the template is in a format that only the library can read. Otherwise it uses the tokenizer's template.

    A fine-tune under any other name uses its own template, which may differ from the original model's. Raises DataError
    if the tokenizer has no template or does not fit the format.
    """
    name = choose_format(tokenizer, model_name)
    if name == "template":
        return TemplateChat(tokenizer)
    # Imported here, since the library takes a second to import and most local models do not need it.
    from sparring.chat.renderer import RendererChat

    return RendererChat(tokenizer, name)


def choose_format(tokenizer: Any, model_name: str | None = None) -> str:
    """Return the name of the format: one of the `renderers` library's names, or `template`."""
    if model_name is not None and model_name.count("/") == 1:
        from sparring.chat.renderer import renderer_name

        known = renderer_name(model_name)
        if known is not None:
            return known
    template = str(tokenizer.chat_template or "")
    return next((name for name, marks in _MARKS if all(mark in template for mark in marks)), "template")
