"""Whatever a policy writes as the arguments of a call: each dialect answers with strict JSON, the session keeps the sampled
ids, and the next turn continues them."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NoReturn

import httpx
import orjson
import pytest

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway import EpisodeEndpoints
from sparring.gateway.app import create_app
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Sampling
from tests.gateway.builders import CHAT, TOOL

MALFORMED = object()
DEEP = '{"a":' + "[" * 198 + "]" * 198 + "}"
"""With the call that it stands in 200 levels, the most that are read."""
TOO_DEEP = '{"a":' + "[" * 199 + "]" * 199 + "}"

SHAPES: dict[str, Any] = {
    # Good calls, by the value that every client reads.
    "{}": {},
    ' {\n"a" :\t1 } ': {"a": 1},
    '{"a":0,"b":-0,"c":0.0,"d":-0.0}': {"a": 0, "b": 0, "c": 0.0, "d": -0.0},
    '{"a":9007199254740991}': {"a": 2**53 - 1},
    '{"a":9007199254740993}': {"a": 2**53 + 1},
    '{"a":9223372036854775807}': {"a": 2**63 - 1},
    '{"a":9223372036854775808}': {"a": 2**63},
    '{"a":-9223372036854775808}': {"a": -(2**63)},
    '{"a":-9223372036854775809}': {"a": -(2**63) - 1},
    '{"a":18446744073709551615}': {"a": 2**64 - 1},
    '{"a":18446744073709551616}': {"a": 2**64},
    '{"a":18446744073709551617,"b":1}': {"a": 2**64 + 1, "b": 1},
    '{"a":[[18446744073709551617,{"b":-99999999999999999999}]]}': {"a": [[2**64 + 1, {"b": -(10**20) + 1}]]},
    f'{{"a":{10**100}}}': {"a": 10**100},
    f'{{"a":{10**308}}}': {"a": 10**308},
    f'{{"a":-{10**308}}}': {"a": -(10**308)},
    '{"12345678901234567890":12345678901234567890}': {"12345678901234567890": 12345678901234567890},
    '{"a":"12345678901234567890"}': {"a": "12345678901234567890"},
    '{"a":1e308,"b":-1E+308,"c":1e-308}': {"a": 1e308, "b": -1e308, "c": 1e-308},
    '{"a":1.7976931348623157e308}': {"a": 1.7976931348623157e308},
    '{"a":1e-999,"b":5e-324}': {"a": 0.0, "b": 5e-324},
    '{"a":0e999}': {"a": 0.0},
    '{"a":0.1,"b":1.0,"c":1e2,"d":0.30000000000000004}': {"a": 0.1, "b": 1.0, "c": 100.0, "d": 0.30000000000000004},
    '{"a":1e22,"b":1e23}': {"a": 1e22, "b": 1e23},
    '{"a":0.1234567890123456789}': {"a": 0.12345678901234568},
    '{"a":true,"b":false,"c":null}': {"a": True, "b": False, "c": None},
    '{"a":1,"a":2}': {"a": 2},
    '{"a":{"b":1},"a":{"c":18446744073709551617}}': {"a": {"c": 2**64 + 1}},
    '{"":1," ":2}': {"": 1, " ": 2},
    '{"a":"\\u0000","b\\u0000":1}': {"a": "\0", "b\0": 1},
    '{"a":"\\ud83d\\ude00"}': {"a": "😀"},
    '{"a":"😀é","\u2028":"\u2029"}': {"a": "😀é", "\u2028": "\u2029"},
    '{"a":"\\uffff\\ufeff"}': {"a": "\uffff\ufeff"},
    '{"a":"</tool_call><tool_call>"}': {"a": "</tool_call><tool_call>"},
    '{"a":"\\"}\\\\"}': {"a": '"}\\'},
    '{"a":"data: x\\n\\ndata: [DONE]\\r\\n"}': {"a": "data: x\n\ndata: [DONE]\r\n"},
    '{"a":"NaN","b":"Infinity","c":"1e999"}': {"a": "NaN", "b": "Infinity", "c": "1e999"},
    '{"a":"' + "x" * 1000 + '"}': {"a": "x" * 1000},
    DEEP: json.loads(DEEP),
    "{" + ",".join(f'"k{n}":{n}' for n in range(300)) + "}": {f"k{n}": n for n in range(300)},
    # Malformed calls.
    '{"a":NaN}': MALFORMED,
    '{"a":Infinity}': MALFORMED,
    '{"a":-Infinity}': MALFORMED,
    '{"a":1e999}': MALFORMED,
    '{"a":-1e999}': MALFORMED,
    '{"a":[1,{"b":1E400}]}': MALFORMED,
    '{"a":1,"b":{"c":1.8e308}}': MALFORMED,
    '{"a":' + "9" * 309 + "}": MALFORMED,
    '{"a":' + "9" * 4301 + "}": MALFORMED,
    '{"a":-' + "9" * 400 + ".5}": MALFORMED,
    '{"a":"\\ud800"}': MALFORMED,
    '{"a":"\\ude00\\ud83d"}': MALFORMED,
    '{"\\udfff":1}': MALFORMED,
    '{"a":"\0"}': MALFORMED,
    '{"a":"\n"}': MALFORMED,
    '{"a":01}': MALFORMED,
    '{"a":+1}': MALFORMED,
    '{"a":.5}': MALFORMED,
    '{"a":0x10}': MALFORMED,
    '{"a":1_000}': MALFORMED,
    '{"a":1,}': MALFORMED,
    "{'a':1}": MALFORMED,
    '{"a":1/*x*/}': MALFORMED,
    '{"a":"\\x41"}': MALFORMED,
    "[1]": MALFORMED,
    '"{}"': MALFORMED,
    "18446744073709551616": MALFORMED,
    "1e999": MALFORMED,
    TOO_DEEP: MALFORMED,
    '{"a":' * 300: MALFORMED,
    "[" * 1500: MALFORMED,
    '{"a":"': MALFORMED,
    '{"a":1844674407370955161': MALFORMED,
    "{": MALFORMED,
    "": MALFORMED,
}


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def exact(text: bytes | str) -> Any:
    orjson.loads(text)  # the strictest parser there is, which makes floats of long integers
    return json.loads(text, parse_constant=refuse)


Read = Callable[[bytes | str], Any]
Ask = Callable[[dict[str, Any]], bytes]


def chat_turn(ask: Ask, read: Read, *, stream: bool) -> tuple[list[Any], list[str]]:
    """The messages of the next request, as a client makes them of what it reads, and the arguments of each call."""
    body = ask({"messages": ASKED, "tools": [TOOL]})
    if stream:
        chunks = [read(line) for line in data_lines(body) if line != b"[DONE]"]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        calls = [{key: value for key, value in call.items() if key != "index"} for call in calls]
        message = {"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas)}
        message |= {"tool_calls": calls} if calls else {}
    else:
        message = read(body)["choices"][0]["message"]
    calls = message.get("tool_calls", ())
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls]
    return [*ASKED, message, *(results or ASKED)], [call["function"]["arguments"] for call in calls]


def messages_turn(ask: Ask, read: Read, *, stream: bool) -> tuple[list[Any], list[str]]:
    tool = {"name": "get", "input_schema": {"type": "object"}}
    body = ask({"messages": ASKED, "tools": [tool], "max_tokens": 300_000})
    if stream:
        blocks: list[Any] = []
        inputs: dict[int, str] = {}
        for event in map(read, data_lines(body)):
            match event:
                case {"type": "content_block_start", "content_block": block}:
                    blocks.append(block)
                case {"delta": {"type": "text_delta", "text": text}}:
                    blocks[-1]["text"] += text
                case {"delta": {"type": "input_json_delta", "partial_json": text}, "index": index}:
                    inputs[index] = inputs.get(index, "") + text
        for index, text in inputs.items():
            blocks[index]["input"] = read(text)
    else:
        blocks = read(body)["content"]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "done"} for call in calls]
    follows = [{"role": "user", "content": results}] if results else ASKED
    return [*ASKED, {"role": "assistant", "content": blocks}, *follows], [json.dumps(call["input"]) for call in calls]


def responses_turn(ask: Ask, read: Read, *, stream: bool) -> tuple[list[Any], list[str]]:
    body = ask({"input": ASKED, "tools": [{"type": "function", "name": "get", "parameters": {"type": "object"}}]})
    response = read(data_lines(body)[-1])["response"] if stream else read(body)
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "done"} for call in calls]
    return [*ASKED, *response["output"], *(results or ASKED)], [call["arguments"] for call in calls]


def data_lines(body: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")]


ASKED = [{"role": "user", "content": "find b"}]
DIALECTS = {
    "/v1/chat/completions": (chat_turn, "messages"),
    "/v1/messages": (messages_turn, "messages"),
    "/v1/responses": (responses_turn, "input"),
}


@pytest.mark.parametrize("read", [exact, orjson.loads], ids=["exact", "long integers as floats"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", DIALECTS)
def test_whatever_the_arguments_are_an_answer_is_strict_json_and_the_next_turn_continues_it(
    path: str, stream: bool, read: Read
) -> None:
    for written, value in SHAPES.items():
        try:
            check(path, written, value, stream=stream, read=read)
        except Exception as error:
            raise AssertionError(f"with the arguments {written[:200]!r}") from error


def check(path: str, written: str, value: Any, *, stream: bool, read: Read) -> None:
    sampled = f'<tool_call>{{"name":"get","arguments":{written}}}</tool_call>'
    if written and value is MALFORMED and written.count("{") != written.count("}"):
        sampled = sampled.removesuffix("}</tool_call>")  # cut
    engine = ScriptedEngine([sampled, "over"], encode=ByteTokenizer().encode, max_context_tokens=1_000_000)
    chat_session = Session(EpisodeIdentity("episode"), engine=engine, chat=CHAT, sampling=Sampling(max_tokens=300_000))
    endpoints = EpisodeEndpoints("policy")
    headers = {"x-api-key": endpoints.register(chat_session)}
    app = create_app(endpoints)

    async def answer(body: dict[str, Any]) -> bytes:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            content = json.dumps({"model": "policy", "stream": stream, **body})
            headers_now = {**headers, "content-type": "application/json"}
            response = await client.post(path, content=content, headers=headers_now)
        assert response.status_code == 200, response.text
        return response.content

    def ask(body: dict[str, Any]) -> bytes:
        asked.append(body)
        return asyncio.run(answer(body))

    asked: list[dict[str, Any]] = []
    turn_of, field = DIALECTS[path]
    following, arguments = turn_of(ask, read, stream=stream)
    (turn,) = chat_session.turns
    assert list(turn.token_ids) == [*ByteTokenizer().encode(sampled), ByteTokenizer.eos_token_id]
    if value is MALFORMED:
        assert arguments == []
        assert [call["problem"] for call in turn.message["malformed_tool_calls"]] != []
    else:
        (received,) = arguments
        assert "malformed_tool_calls" not in turn.message
        assert exact(turn.message["tool_calls"][0]["function"]["arguments"]) == value
        assert read is not exact or (exact(received) == value and repr(exact(received)) == repr(value))
    ask({**asked[0], field: following})
    second = chat_session.turns[1]
    assert (second.parent, second.branch_reason) == (0, None)
    assert second.prompt_ids[: len(turn.prompt_ids) + len(turn.token_ids)] == turn.prompt_ids + turn.token_ids
