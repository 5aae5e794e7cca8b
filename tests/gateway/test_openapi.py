"""The gateway's own document is right: schemathesis sends what it admits and what it does not."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any

import schemathesis
from schemathesis.config import SchemathesisConfig

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway import EpisodeEndpoints, WorkQueue
from sparring.gateway.app import create_app
from sparring.gateway.endpoints import StatelessEndpoints
from sparring.gateway.runtime import MAX_LENGTH, TRAJECTORY_ID
from sparring.gateway.versions import VERSIONS, Version, Versions
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import SampleRequest, Sampling
from sparring.web.gate import Gate
from sparring.web.keys import Keys, single_key
from tests.gateway.builders import CALL, CHAT, raw

NUM_EXAMPLES = 10
"""Of each route, drawn at random; some five thousand more go to the edges of each field."""

ENDPOINTS = EpisodeEndpoints("policy")
APP = create_app(ENDPOINTS)
NUMBERS = itertools.count()
OPEN: collections.deque[Session] = collections.deque()


def answer(request: SampleRequest) -> str:
    """By turns text, reasoning and calls."""
    return ("fine", f"<think>Which?</think>Look:\n{CALL}{CALL}", "", "<tool_call>{")[len(request.prompt_ids) % 4]


class Unconstrained:
    """An engine that ignores answer formats: that answers follow them is tested with a real engine."""

    def __init__(self) -> None:
        self._engine = ScriptedEngine(answer, encode=ByteTokenizer().encode, max_context_tokens=10**9)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def sample(self, request: SampleRequest, on_token: Any = None) -> Any:
        return await self._engine.sample(dataclasses.replace(request, constraint=None), on_token)


def make_key() -> str:
    """Of an episode that can answer any request: it has played nothing, and its context never ends."""
    engine: Any = Unconstrained()
    OPEN.append(
        Session(EpisodeIdentity(f"e{next(NUMBERS)}"), engine=engine, chat=CHAT, sampling=Sampling(max_tokens=200))
    )
    if len(OPEN) > 4:
        OPEN.popleft().close()
    return ENDPOINTS.register(OPEN[-1])


SCHEMA = schemathesis.openapi.from_asgi(
    "/openapi.json",
    APP,
    config=SchemathesisConfig.from_dict(
        {
            "seed": 1,
            "suppress-health-check": ["all"],  # a busy machine draws slowly
            "generation": {
                "deterministic": True,
                "max-examples": NUM_EXAMPLES,
                "with-security-parameters": False,
                "database": "none",
            },
        }
    ),
)


def within_context(body: Any) -> Any:
    """A body with what JSON schema cannot express, and the document describes in text."""
    if not isinstance(body, dict):
        return body
    changed = dict(body)
    match body:
        case {"TrajectoryId": str(given)} if 0 < len(given) <= 256:
            changed["TrajectoryId"] = make_key()
        case {"previous_response_id": str()}:
            changed["previous_response_id"] = None
        case {"messages": [*messages, {"role": "assistant"} as last]}:
            changed["messages"] = [*messages, last, {"role": "user", "content": "Go on."}]
    match body:
        case {"input": [*items]} if items and all(is_reasoning(item) for item in items):
            changed["input"] = [*items, {"role": "user", "content": "Go on."}]
        case {"Rewards": [float() | int() as first, *_] as given} if are_numbers(given):
            changed["Rewards"] = [first]
        case {"reward": [float() | int() as first, *_] as given} if are_numbers(given):
            changed["reward"] = [first]
    match body.get("tool_choice"):
        # The tool has to be among those of the request.
        case "required" | {"type": "any"}:
            changed["tool_choice"] = None
        case {"type": "any" | "tool", "disable_parallel_tool_use": bool()}:
            changed["tool_choice"] = None
        case {"type": "function" | "tool", "name": str(), **rest} if not rest:
            changed["tool_choice"] = None
        case {"type": "function", "function": {"name": str(), **rest}, **more} if not rest and not more:
            changed["tool_choice"] = None
    return changed


def is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


@SCHEMA.parametrize()
def test_requests_are_answered_as_documented(case: Any) -> None:
    case.body = within_context(case.body)
    if 0 < len(str(case.headers.get(TRAJECTORY_ID, ""))) <= MAX_LENGTH:
        case.headers[TRAJECTORY_ID] = make_key()
    case.call_and_validate(headers={"Authorization": f"Bearer {make_key()}"})


def test_the_document_is_open_and_describes_what_its_endpoints_take() -> None:
    versions = Versions([Version("m", ScriptedEngine([]))])
    gate = Gate("serve", Keys([single_key("secret", "complete")]))
    endpoints = StatelessEndpoints(versions=versions, chat=CHAT, sampling=Sampling())
    served = create_app(endpoints, versions=versions, gate=gate)
    polled = create_app(EpisodeEndpoints("policy"), queue=WorkQueue("key"))
    for app, seed in ((APP, "null"), (served, "integer"), (polled, "null")):
        document = raw(app, "GET", "/openapi.json").json()
        assert document == raw(app, "GET", "/s/any-key/openapi.json").json()
        assert ("/v1/queue/lease" in document["paths"]) == (app is polled)
        assert (VERSIONS in document["paths"]) == (app is served)
        fields = document["components"]["schemas"]["ChatCompletionsRequest"]["properties"]
        assert seed in str(fields["seed"])
        assert set(document["paths"]) == {
            path.removeprefix("/s/{key}") for path in routes(app) if not path.endswith(("/s/{key}", "/openapi.json"))
        }


def routes(app: Any) -> set[str]:
    return {getattr(route, "path", "") for route in app.routes}
