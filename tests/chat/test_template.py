"""A template is rendered once; afterwards every prompt starts with exactly the ids already played."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sparring.chat import ByteTokenizer, TemplateChat, create_chat, inconsistency
from sparring.errors import DataError
from sparring.protocols import SpliceRefused

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are Smol<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '</tools><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' }}{{ call.function | tojson }}{{ '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRICT_ROLES = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '[' + message['role'] + '] ' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)
FORGETS_REASONING = (
    "{% for message in messages %}{% set content = message.content %}"
    "{% if message.role == 'assistant' and not loop.last %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Follow  a link.",
        "parameters": {
            "type": "object",
            "properties": {
                "key": {"type": "string", "description": "Where from."},
                "kind": {"enum": ["a", "b"]},
                "depths": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["key"],
        },
    },
}
QUESTION = {"role": "user", "content": "find b"}
CALL = {"id": "call_0_0", "type": "function", "function": {"name": "look_up", "arguments": '{"key": "b"}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "f", "tool_call_id": "call_0_0"}


@functools.cache
def chat(template: str) -> TemplateChat:
    """Over a real Hugging Face tokenizer: byte-level BPE without merges, and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template)
    return TemplateChat(fast)


def text(template: str, *arguments: Any) -> str:
    return chat(template).decode(chat(template).render(*arguments))


def sampled(template: str, answer: str) -> tuple[int, ...]:
    """Ids as a policy might sample them: the answer's, then the stop id."""
    encoded = chat(template)._tokenizer.encode(answer, add_special_tokens=False)
    return (*encoded, *chat(template).stop_ids)


HEADER, ASKED = (
    "'<|im_start|>' + message['role'] + '\n' + ",
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
)
ASKS_WITH = (
    "it starts the generation prompt with '<|im_start|>' but an answer in the conversation with no special token"
)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (CHATML, None),
        (WITH_TOOLS, None),
        (FORGETS_REASONING, None),
        (STRICT_ROLES, None),
        # The prompt opens a part that a given answer has no longer; and only the user's turns are marked.
        (CHATML.replace("assistant\n", "assistant\n<|im_start|>"), None),
        ("{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' }}{{ m.content }}<|im_end|>{% endfor %}", None),
        (CHATML.replace(HEADER, ""), ASKS_WITH),
        (CHATML.replace(HEADER, "'[' + message['role'] + '] ' + "), ASKS_WITH),
        (
            CHATML.replace(ASKED, ""),
            "it starts the generation prompt with no special token but an answer in the conversation with '<|im_start|>'",
        ),
        ("{{ raise_exception('not now') }}", None),
    ],
)
def test_a_template_that_asks_for_answers_otherwise_than_it_shows_them_contradicts_itself(
    template: str, problem: str | None
) -> None:
    assert HEADER in CHATML
    assert ASKED in CHATML
    tokenizer = chat(CHATML)._tokenizer
    tokenizer.chat_template, own = template, tokenizer.chat_template  # type: ignore[misc]
    try:
        assert inconsistency(tokenizer) == problem
    finally:
        tokenizer.chat_template = own  # type: ignore[misc]
    assert inconsistency(ByteTokenizer()) is None


def test_the_template_keeps_its_own_system_prompt() -> None:
    assert text(CHATML, [QUESTION], []) == (
        "<|im_start|>system\nYou are Smol<|im_end|>\n<|im_start|>user\nfind b<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_are_signatures_after_the_system_prompt_when_the_template_has_none() -> None:
    described = (
        'Call a tool with <tool_call>{"name":...,"arguments":{...}}</tool_call>\nTools:\n'
        'look_up(key: string, kind?: "a"|"b", depths?: {"type":"array","items":{"type":"integer"}}): Follow a link.\n'
        "  key: Where from."
    )
    assert f"<|im_start|>system\nYou are Smol\n\n{described}<|im_end|>" in text(CHATML, [QUESTION], [TOOL])
    given_system = [{"role": "system", "content": "Be brief."}, QUESTION]
    assert f"<|im_start|>system\nBe brief.\n\n{described}<|im_end|>" in text(CHATML, given_system, [TOOL])


def test_a_template_with_tools_gets_them_as_they_are() -> None:
    rendered = text(WITH_TOOLS, [QUESTION, CALLING, RESULT], [TOOL])
    assert '<tools>{"type": "function"' in rendered
    assert '<tool_call>{"name": "look_up", "arguments": {"key": "b"}}</tool_call><|im_end|>' in rendered


def test_calls_that_a_template_with_tools_drops_are_written_into_the_answer() -> None:
    drops = WITH_TOOLS.replace("{% for call in message.tool_calls or [] %}", "{% for call in [] %}")
    assert drops != WITH_TOOLS
    conversation = [QUESTION, CALLING, RESULT]
    written = '<tool_call>\n{"name": "look_up", "arguments": {"key": "b"}}\n</tool_call><|im_end|>'
    assert f"<|im_start|>assistant\n{written}" in text(drops, conversation, [TOOL])
    assert written not in text(WITH_TOOLS, conversation, [TOOL])
    answer = chat(drops).answer(CALLING, [TOOL])
    (call,) = chat(drops).parse(answer, [TOOL])["tool_calls"]
    assert call["function"] == CALL["function"]


@pytest.mark.parametrize("is_special", [True, False])
def test_a_turn_ends_with_a_special_token_even_if_the_tokenizer_names_another_one_as_the_end(is_special: bool) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken("<eos>", special=True)])
    bare.add_tokens([AddedToken("<|im_end|>", special=is_special)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<eos>", chat_template=STRICT_ROLES)
    closing = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert closing not in tokenizer.all_special_ids
    assert (closing in TemplateChat(tokenizer).stop_ids) == is_special


@pytest.mark.parametrize("template", [CHATML, WITH_TOOLS])
def test_a_splice_equals_the_whole_rendering(template: str) -> None:
    prompt = chat(template).render([QUESTION], [TOOL])
    separator = "," if template is CHATML else ", "
    colon = separator.replace(",", ":")
    answer = f'<tool_call>{{"name"{colon}"look_up"{separator}"arguments"{colon}{{"key"{colon}"b"}}}}</tool_call>'
    played = prompt + sampled(template, answer)
    new = chat(template).extend(played, [RESULT], [TOOL], stopped=True)
    assert played + new == chat(template).render([QUESTION, CALLING, RESULT], [TOOL])


def test_an_answer_that_was_cut_is_closed_first() -> None:
    played = chat(CHATML).render([QUESTION], []) + sampled(CHATML, "too lo")[:-1]
    new = chat(CHATML).extend(played, [QUESTION], [], stopped=False)
    assert chat(CHATML).decode(new) == "<|im_end|>\n<|im_start|>user\nfind b<|im_end|>\n<|im_start|>assistant\n"


def test_an_answer_that_stopped_otherwise_is_closed_as_the_template_does() -> None:
    tokenizer = ByteTokenizer()
    new = TemplateChat(tokenizer).extend([5, 0], [QUESTION], [], stopped=True)
    assert tokenizer.decode(new).startswith("<|im_end|>\n<|im_start|>user")


def test_tool_results_are_user_messages_when_the_template_has_no_tool_role() -> None:
    messages = [QUESTION, {"role": "assistant", "content": "call"}, RESULT, {**RESULT, "content": "g"}]
    results = "[user] <tool_response>f</tool_response>\n<tool_response>g</tool_response><|im_end|>[assistant] "
    assert text(STRICT_ROLES, messages, []) == f"[user] find b<|im_end|>[assistant] call<|im_end|>{results}"
    played = chat(STRICT_ROLES).render([QUESTION], []) + sampled(STRICT_ROLES, "call")
    new = chat(STRICT_ROLES).extend(played, messages[2:], [], stopped=True)
    assert played + new == chat(STRICT_ROLES).render(messages, [])


def test_messages_that_the_template_refuses_are_named() -> None:
    with pytest.raises(DataError, match=r"roles: \['assistant'\].*roles must alternate"):
        chat(STRICT_ROLES).render([{"role": "assistant", "content": "I begin"}], [])
    with pytest.raises(SpliceRefused, match="roles must alternate"):
        chat(STRICT_ROLES).extend([1, 2], [{"role": "assistant", "content": "again"}], [], stopped=False)


def test_a_template_that_rewrites_the_past_refuses_the_splice() -> None:
    with pytest.raises(SpliceRefused, match="changes an answer"):
        chat(FORGETS_REASONING).extend([1, 2], [QUESTION], [], stopped=True)


def test_a_template_without_turn_close_refuses_the_splice() -> None:
    open_ended = "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    with pytest.raises(SpliceRefused, match="special token"):
        chat(open_ended).extend([1, 2], [QUESTION], [], stopped=True)


def test_a_tokenizer_without_template_is_refused() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = ""
    with pytest.raises(DataError, match="no chat template"):
        create_chat(tokenizer)


def test_reasoning_is_parsed_apart() -> None:
    ids = sampled(CHATML, "<think>\nhm\n</think>\n\nfive")
    assert chat(CHATML).parse(ids, []) == {"role": "assistant", "content": "five", "reasoning_content": "hm"}
    cut = sampled(CHATML, "<think>\nhm")
    assert chat(CHATML).parse(cut, []) == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_reasoning_that_the_prompt_opens_is_reasoning_however_the_answer_ends() -> None:
    opening = chat(CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n"))
    for text, content, reasoning in [
        ("hm\n</think>\n\nfive", "five", "hm"),
        ("hm", "", "hm"),
        ("<think>hm</think>five", "five", "hm"),
        ('hm <tool_call>{"name":"get"}</tool_call>', "", 'hm <tool_call>{"name":"get"}</tool_call>'),
    ]:
        expected = {"role": "assistant", "content": content, "reasoning_content": reasoning}
        assert opening.parse(sampled(CHATML, text), []) == expected
    # Where nothing opened it, a closing tag is text.
    assert chat(CHATML).parse(sampled(CHATML, "a </think> b"), []) == {"role": "assistant", "content": "a </think> b"}


CONTENTS = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
FOLLOWERS = st.lists(st.builds(dict, role=st.sampled_from(["user", "tool"]), content=CONTENTS), min_size=1, max_size=3)


@given(st.lists(st.tuples(CONTENTS, FOLLOWERS, st.booleans()), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_spliced_prompts_decode_to_what_the_template_renders(rounds: list[tuple[str, list[dict], bool]]) -> None:
    """Byte tokens make text and ids one-to-one, so the splice can be compared with the whole rendering."""
    byte_chat = TemplateChat(ByteTokenizer())
    messages: list[dict] = [QUESTION]
    prompt = byte_chat.render(messages, [])
    for answer, new, is_stopped in rounds:
        played = prompt + tuple(ByteTokenizer().encode(answer)) + ((2,) if is_stopped else ())
        prompt = played + byte_chat.extend(played, new, [], stopped=is_stopped)
        messages = [*messages, {"role": "assistant", "content": answer}, *new]
        assert prompt[: len(played)] == played
        assert prompt == byte_chat.render(messages, [])


@given(st.text(max_size=40))
def test_byte_ids_give_the_text_back(content: str) -> None:
    clean = content.encode(errors="replace").decode()
    assert ByteTokenizer().decode(ByteTokenizer().encode(clean)) == clean
