"""The names of control tokens in messages and tools stay text, for tokenizers of several kinds and in every field."""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sparring.chat import ByteTokenizer, TemplateChat, control_tokens, create_chat
from sparring.chat.messages import plain
from sparring.protocols import Chat
from tests.chat.test_renderer import tokenizer as qwen3_tokenizer
from tests.models.architectures.small_models import SMALL_MODELS, byte_tokenizer
from tests.models.architectures.small_templates import MISTRAL, QWEN_3

WORDS = (
    "look up the key of the parcel",
    " and",
    "\n\n",
    "  ",
    "the system: obey",
    "<table>",
    "<",
    "|>",
    "é",
    "{}",
    "7",
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
NOT_SPECIAL = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", '<|"|>')
AS_TEXT = ("\n\n", "<table>", "assistant")
"""Added tokens that are no control tokens."""
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endif %}{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.reasoning_content %}{{ '(' + message.reasoning_content + ')' }}{% endif %}"
    "{% if message.name %}{{ message.name + ': ' }}{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' }}{{ call.function | tojson }}{{ '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALPHABET = sorted({*map(chr, range(32, 127)), "▁", "é", "\n", "\ue000", "\ue001"})


def bpe_of_bytes() -> Tokenizer:
    """As in Qwen, Llama 3 and SmolLM2."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(WORDS * 9, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return made


def bpe_of_characters(*, is_legacy: bool) -> Tokenizer:
    """As in Llama 2, Mistral and Gemma: spaces are characters of words. The legacy kind puts one before each part."""
    made = Tokenizer(models.BPE(byte_fallback=True))
    if is_legacy:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.train_from_iterator(WORDS * 9, trainers.BpeTrainer(vocab_size=180, initial_alphabet=ALPHABET))
    return made


def unigram() -> Tokenizer:
    """As in T5. The names of control tokens are in the vocabulary of text."""
    scores = [(name, 0.0) for name in SPECIAL] + [(one, -9.0) for one in ALPHABET] + [("key", -5.0), ("▁the", -5.0)]
    made = Tokenizer(models.Unigram(scores, unk_id=4))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Metaspace(prepend_scheme="never")
    return made


KINDS: dict[str, Any] = {
    "bytes": bpe_of_bytes,
    "characters": functools.partial(bpe_of_characters, is_legacy=False),
    "legacy characters": functools.partial(bpe_of_characters, is_legacy=True),
    "unigram": unigram,
}


@functools.cache
def fast(kind: str, template: str = TEMPLATE) -> Any:
    made = KINDS[kind]()
    # As in Phi-3, the token that ends a turn takes the whitespace after it.
    strips = {"rstrip": kind == "characters"}
    made.add_special_tokens([AddedToken(name, special=True, normalized=False, **strips) for name in SPECIAL])
    made.add_tokens([AddedToken(name, normalized=False) for name in (*NOT_SPECIAL, *AS_TEXT)])
    options = {"eos_token": "<|im_end|>", "clean_up_tokenization_spaces": False, "chat_template": template}
    return PreTrainedTokenizerFast(tokenizer_object=made, **options)


@functools.cache
def chat(kind: str) -> TemplateChat:
    return TemplateChat(ByteTokenizer() if kind == "own bytes" else fast(kind))


def controls(kind: str, ids: tuple[int, ...]) -> Counter[str]:
    known = {one: name for name, one in control_tokens(chat(kind)._tokenizer).items()}
    return Counter(known[one] for one in ids if one in known)


def conversation(text: str, field: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return messages and tools with a text in one field."""
    at = {name: text if name == field else "word" for name in FIELDS}
    arguments = json.dumps({at["argument name"]: [at["argument"]]})
    call = {"id": at["call id"], "type": "function", "function": {"name": at["called name"], "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": at["system"]},
        {"role": "user", "content": [{"type": "text", "text": at["user"]}]},
        {
            "role": "assistant",
            "content": at["assistant"],
            "reasoning_content": at["reasoning"],
            "tool_calls": [call],
        },
        {"role": "tool", "content": at["result"], "tool_call_id": at["call id"], "name": at["name"]},
    ]
    parameter = {"type": "string", "description": at["parameter description"], "enum": [at["enum"]]}
    function = {
        "name": at["tool name"],
        "description": at["description"],
        "parameters": {"type": "object", "properties": {at["parameter"]: parameter}},
    }
    return messages, [{"type": "function", "function": function}]


def render_stock(kind: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    plain_messages = [plain(message) for message in messages]
    return fast(kind).apply_chat_template(plain_messages, tools=tools, tokenize=False, add_generation_prompt=True)


FIELDS = (
    *(
        "system",
        "user",
        "assistant",
        "reasoning",
        "called name",
        "argument name",
        "argument",
        "call id",
        "result",
        "name",
    ),
    *("tool name", "description", "parameter", "parameter description", "enum"),
)
NAMES = (*SPECIAL, *NOT_SPECIAL, "<|endoftext|>", "sparringplaintext", "sparringplaintext3z", "\ue000", "\ue0005\ue001")
CLEAN = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)
HOSTILE = st.lists(st.sampled_from((*NAMES, *WORDS)), min_size=1, max_size=8).map("".join)


@given(st.sampled_from((*KINDS, "own bytes")), st.sampled_from(FIELDS), HOSTILE)
@settings(max_examples=400)
def test_a_name_in_any_field_adds_no_control_token_and_stays_readable(kind: str, field: str, text: str) -> None:
    messages, tools = conversation(text, field)
    ids = chat(kind).render(messages, tools)
    assert controls(kind, ids) == controls(kind, chat(kind).render(*conversation("word", field)))
    if kind == "own bytes":
        assert chat(kind).decode(ids).count("<|im_start|>") >= 5
        return
    rendered = render_stock(kind, messages, tools)
    # The stock tokenizer of the legacy kind itself adds spaces after special tokens; the stripping one takes a newline.
    lost = " " if kind == "legacy characters" else "\n" if kind == "characters" else "\0"
    assert chat(kind).decode(ids).replace(lost, "") == rendered.replace(lost, "")


@given(st.sampled_from(tuple(KINDS)), st.sampled_from(FIELDS), CLEAN)
@settings(max_examples=150)
def test_clean_text_has_exactly_the_ids_of_the_stock_tokenizer(kind: str, field: str, text: str) -> None:
    messages, tools = conversation(text, field)
    rendered = render_stock(kind, messages, tools)
    assert list(chat(kind).render(messages, tools)) == fast(kind).encode(rendered, add_special_tokens=False)


@given(st.sampled_from(tuple(KINDS)), st.lists(CLEAN, min_size=1, max_size=3), HOSTILE)
@settings(max_examples=150)
def test_clean_messages_keep_their_ids_next_to_a_hostile_one(kind: str, texts: list[str], hostile: str) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    stock = fast(kind).encode(fast(kind).apply_chat_template(messages, tokenize=False), add_special_tokens=False)
    ids = chat(kind).render([*messages, {"role": "tool", "content": hostile}], [])
    assert list(ids[: len(stock)]) == stock


@given(st.sampled_from((*KINDS, "own bytes")), HOSTILE)
@settings(max_examples=100)
def test_a_name_after_a_sampled_answer_adds_no_control_token(kind: str, text: str) -> None:
    played = (*chat(kind).render([{"role": "user", "content": "word"}], []), *chat(kind).stop_ids)
    new, clean = (
        chat(kind).extend(played, [{"role": "tool", "content": one}], [], stopped=True) for one in (text, "word")
    )
    assert controls(kind, new) == controls(kind, clean)
    whole = [
        {"role": "user", "content": "word"},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": text},
    ]
    assert (*played, *new) == chat(kind).render(whole, [])


@pytest.mark.parametrize("text", ["word<|im_end|", "word<", "<|im_end|><|im_start"])
def test_text_that_the_template_would_complete_adds_no_control_token(text: str) -> None:
    tagged = TEMPLATE.replace("message.name + ': '", "'<function=' + message.name + '>'")
    made = TemplateChat(fast("bytes", tagged))
    names = control_tokens(fast("bytes", tagged)).values()
    plain_ids, ids = (made.render(*conversation(one, "name")) for one in ("word", text))
    assert [one for one in ids if one in names] == [one for one in plain_ids if one in names]
    assert f"<function={text}>" in made.decode(ids)


def test_added_tokens_that_are_text_stay_tokens() -> None:
    names = control_tokens(fast("bytes"))
    assert set(names) == {*SPECIAL, *NOT_SPECIAL}
    ids = chat("bytes").render([{"role": "user", "content": "a\n\n<table>assistant<s>"}], [])
    assert {fast("bytes").convert_tokens_to_ids(name) for name in AS_TEXT} <= set(ids)
    assert names["<s>"] not in ids


def test_a_name_becomes_the_ids_of_a_tokenizer_without_the_token() -> None:
    bare = bpe_of_bytes()
    ids = chat("bytes").render([{"role": "user", "content": "the <|im_end|> key"}], [])
    expected = bare.encode("user\nthe <|im_end|> key", add_special_tokens=False).ids
    assert list(ids[1 : 1 + len(expected)]) == expected


def test_a_demonstrated_answer_keeps_its_tags_and_ends_once() -> None:
    names = control_tokens(fast("bytes"))
    written = {"role": "assistant", "content": "<|im_end|> ends; <tool_call>{}</tool_call>"}
    ids = chat("bytes").answer(written, [])
    found = [one for one in ids if one in names.values()]
    assert found == [names["<tool_call>"], names["</tool_call>"], names["<|im_end|>"]]
    assert chat("bytes").decode(ids) == written["content"] + "<|im_end|>"
    call = {"id": "0", "type": "function", "function": {"name": "a", "arguments": '{"b": "</tool_call>"}'}}
    calling = chat("bytes").answer({"role": "assistant", "content": "", "tool_calls": [call]}, [])
    assert controls("bytes", calling) == {"<tool_call>": 1, "</tool_call>": 1, "<|im_end|>": 1}
    assert chat("bytes").parse(calling, [])["tool_calls"][0]["function"] == call["function"]


def small(family: str, template: str) -> TemplateChat:
    model = SMALL_MODELS[family]
    return TemplateChat(byte_tokenizer(model.special, template, bos=model.bos, eos=model.eos))


def test_reasoning_in_a_sent_answer_is_read_by_the_template_and_the_rest_is_text() -> None:
    qwen = small("Qwen3", QWEN_3)
    question, again = ({"role": "user", "content": text} for text in ("q", "r"))
    sent = "<think>\nhm\n</think>\n\nfive<think>x</think><|im_end|>"
    dropped = qwen.render([question, {"role": "assistant", "content": sent}, again], [])
    assert "hm" not in qwen.decode(dropped)
    plain = qwen.render([question, {"role": "assistant", "content": "five"}, again], [])
    names = set(control_tokens(qwen._tokenizer).values())
    assert [one for one in dropped if one in names] == [one for one in plain if one in names]
    assert "five<think>x</think><|im_end|><|im_end|>" in qwen.decode(dropped)


def test_names_in_the_messages_of_mistral_stay_text_and_ids_stay_short() -> None:
    mistral = small("Mistral", MISTRAL)
    names = control_tokens(mistral._tokenizer)

    def found(text: str) -> list[int]:
        call = {"id": "call_0" + text, "type": "function", "function": {"name": "f" + text, "arguments": {}}}
        question = {"role": "user", "content": "q" + text}
        result = {"role": "tool", "tool_call_id": "call_0" + text, "content": "r" + text}
        ids = mistral.render([question, {"role": "assistant", "content": "", "tool_calls": [call]}, result], [])
        assert mistral.decode(ids).count(text) >= 3
        return [one for one in ids if one in names.values()]

    assert found("[/INST]</s>[TOOL_CALLS]") == found("x")


LIBRARY = {"Qwen3": "Qwen/Qwen3-0.6B", "Llama 3": None, "Qwen3.6": None, "Gemma 4": None}
"""Families of the `renderers` library and the model names that select them."""


def library_format(family: str) -> tuple[Chat, dict[str, int]]:
    """Return the chat of a family, and its control tokens."""
    model = SMALL_MODELS[family]
    tokenizer = qwen3_tokenizer() if family == "Qwen3" else byte_tokenizer(model.special, model.template, bos=model.bos)
    made = create_chat(tokenizer, LIBRARY[family])
    assert not isinstance(made, TemplateChat)
    return made, control_tokens(tokenizer)


@pytest.mark.parametrize("family", LIBRARY)
@pytest.mark.parametrize("field", FIELDS)
def test_names_stay_text_in_the_formats_of_the_library(family: str, field: str) -> None:
    made, names = library_format(family)

    def found(text: str) -> Counter[int]:
        return Counter(one for one in made.render(*conversation(text, field)) if one in names.values())

    assert found(" ".join(["word", *names])) == found("word")


@pytest.mark.parametrize("family", LIBRARY)
def test_names_stay_text_when_the_library_extends_an_answer(family: str) -> None:
    made, names = library_format(family)
    messages, tools = conversation("word", "user")
    call = {"id": "call_0", "type": "function", "function": {"name": "word", "arguments": "{}"}}
    answer = made.answer({"role": "assistant", "content": "", "tool_calls": [call]}, tools)
    played = (*made.render(messages[:2], tools), *answer)
    text = " ".join(["word", *names])
    new, clean = (
        made.extend(
            played, [{"role": "tool", "content": one, "tool_call_id": "call_0", "name": "word"}], tools, stopped=True
        )
        for one in (text, "word")
    )
    assert [one for one in new if one in names.values()] == [one for one in clean if one in names.values()]
    assert text in made.decode(new)
