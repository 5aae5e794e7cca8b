"""Which chat a model gets."""

from __future__ import annotations

from typing import Any

from sparring.chat.template import TemplateChat
from sparring.protocols import Chat


def create_chat(tokenizer: Any, model_name: str | None = None) -> Chat:
    """The `renderers` library's format for a model it knows by exactly this name, the tokenizer's template otherwise.

    A fine-tune under another name gets its own template, which may differ from the original's. Raises DataError when
    the tokenizer has no template.
    """
    if model_name is None or model_name.count("/") != 1:
        return TemplateChat(tokenizer)
    # Here, since the library takes a second to import and most local models do without it.
    from sparring.chat.renderer import RendererChat, renderer_name

    known = renderer_name(model_name)
    return TemplateChat(tokenizer) if known is None else RendererChat(tokenizer, known)
