"""A tokenizer that cannot write the names of its control tokens as text is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.config import load_config
from sparring.findings import Finding

RECIPE = Path(__file__).parent / "clean" / "parcel_desk" / "recipe.toml"


def found(tokenizer: Any) -> list[Finding]:
    parts: Any = SimpleNamespace(chat=TemplateChat(tokenizer), model=SimpleNamespace(tokenizer=tokenizer))
    subject = Subject(load_config(RECIPE), RECIPE, parts=parts)
    return list(asyncio.run(CHECKS["prompt.control_tokens"].function(subject)))  # type: ignore[arg-type]


def ends_turns_with_a_character() -> Any:
    """Return a tokenizer whose end of a turn is a single character of its vocabulary."""
    alphabet = {chr(code): code for code in range(10, 127)} | {"¶": 1}
    bare = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    bare.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "¶")])
    template = "{% for m in messages %}<|im_start|>{{ m.role + ':' + m.content }}¶{% endfor %}"
    ask = "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="¶", chat_template=template + ask)


def test_a_tokenizer_that_can_write_the_names_as_text_gives_no_finding() -> None:
    assert found(ByteTokenizer()) == []


def test_a_tokenizer_that_cannot_is_found() -> None:
    (one,) = found(ends_turns_with_a_character())
    assert one.symptom == "The text '¶' in a system message becomes a control token of the model."
    assert "a tool result after a sampled answer" in one.evidence["fields"]
    assert "the name of a tool" in one.evidence["fields"]
