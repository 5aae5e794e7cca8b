"""Models that the `renderers` library knows keep the same contract."""

from __future__ import annotations

import functools
import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sparring.chat import TemplateChat, create_chat
from sparring.chat.renderer import RendererChat
from sparring.protocols import SpliceRefused

SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
QUESTION = {"role": "user", "content": "find b"}
RESULT = {"role": "tool", "content": "f"}
TOOL = {
    "type": "function",
    "function": {"name": "get", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<|im_end|>", chat_template="{{ messages }}")


def qwen3() -> RendererChat:
    chat = create_chat(tokenizer(), "Qwen/Qwen3-0.6B")
    assert isinstance(chat, RendererChat)
    return chat


def ids(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text, add_special_tokens=False))


def test_only_exact_names_get_the_library() -> None:
    for name in (None, "/models/Qwen3-0.6B", "someone/Qwen3-0.6B-tuned"):
        assert isinstance(create_chat(tokenizer(), name), TemplateChat)


def test_the_prompt_is_qwens_with_whole_openai_tools() -> None:
    text = qwen3().decode(qwen3().render([QUESTION], [TOOL]))
    assert '<tools>\n{"type": "function", "function": {"name": "get"' in text
    assert text.endswith("<|im_start|>user\nfind b<|im_end|>\n<|im_start|>assistant\n")


def test_a_tool_result_extends_exactly_what_was_played() -> None:
    # Odd spacing that no rendering would give back.
    answer = ids('<think>\nhm\n</think>\n\n<tool_call>\n{"name":  "get", "arguments": {}}\n</tool_call><|im_end|>')
    played = qwen3().render([QUESTION], [TOOL]) + answer
    new = qwen3().extend(played, [RESULT], [TOOL], stopped=True)
    assert qwen3().decode(new) == (
        "\n<|im_start|>user\n<tool_response>\nf\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    cut = played[:-1]
    assert qwen3().extend(cut, [RESULT], [TOOL], stopped=False) == (*ids("<|im_end|>"), *new)


def test_a_new_question_that_drops_reasoning_is_refused() -> None:
    played = qwen3().render([QUESTION], []) + ids("<think>\nhm\n</think>\n\nf<|im_end|>")
    with pytest.raises(SpliceRefused, match="cannot append these messages"):
        qwen3().extend(played, [QUESTION], [], stopped=True)


def test_answers_are_parsed_and_malformed_calls_named() -> None:
    message = qwen3().parse(
        ids(
            '<think>\nhm\n</think>\n\nHere:<tool_call>\n{"name": "get", "arguments": {"k": 1}}\n</tool_call>'
            "<tool_call>\nget b\n</tool_call><tool_call>\n"
            '{"arguments": {}}\n</tool_call><tool_call>\n{"name": "get"<|im_end|>'
        ),
        [TOOL],
    )
    assert message["reasoning_content"] == "hm"
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "get", "arguments": '{"k": 1}'}]
    assert [call["problem"] for call in message["malformed_tool_calls"]] == ["not_json", "no_name", "not_closed"]
    assert message["content"].startswith("Here:")


@pytest.mark.parametrize(
    ("arguments", "is_good"),
    [
        (str(2**64 + 1), True),
        ("1e308", True),
        ("1e999", False),
        ("9" * 309, False),
        ("9" * 5000, False),
        ("NaN", False),
        ('"\\ud800"', False),
        ("[" * 3000, False),
    ],
)
def test_a_number_beyond_all_floats_and_half_a_character_are_malformed(arguments: str, is_good: bool) -> None:
    # The library reads them, or gives up with an error of its own.
    message = qwen3().parse(
        ids(f'<tool_call>\n{{"name": "get", "arguments": {{"k": {arguments}}}}}\n</tool_call><|im_end|>'), [TOOL]
    )
    if is_good:
        (call,) = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"k": json.loads(arguments)}
    else:
        assert "tool_calls" not in message
        assert [call["problem"] for call in message["malformed_tool_calls"]] == ["not_json"]
        assert "<|im_end|>" not in message["content"]


def test_a_demonstrated_answer_is_parsed_back_and_extended() -> None:
    call = {"type": "function", "id": "call_0", "function": {"name": "get", "arguments": '{"k": 1}'}}
    answer = qwen3().answer({"role": "assistant", "content": "", "tool_calls": [call]}, [TOOL])
    assert answer[-1:] == ids("<|im_end|>")
    assert qwen3().parse(answer, [TOOL])["tool_calls"] == [call]
    played = qwen3().render([QUESTION], [TOOL]) + answer
    assert qwen3().extend(played, [RESULT], [TOOL], stopped=True)
