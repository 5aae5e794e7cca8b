"""The gateway's routes as OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1.html).

The request schemas are generated from the models that check requests, so the document and the checks always agree.
Rules that JSON Schema cannot express are stated in `description`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparring.gateway.dialects import DIALECTS, ChatCompletions
from sparring.gateway.dialects.validation import body_schema
from sparring.gateway.queue import Poll, Release
from sparring.gateway.request import Dialect
from sparring.gateway.runtime import MAX_LENGTH, REPORTS, SAMPLES, TRAJECTORY_ID
from sparring.gateway.versions import VERSIONS, VersionChange
from sparring.types import Json

_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_COUNT: Json = {"type": "integer", "minimum": 0}


def _object(**fields: Json) -> dict[str, Json]:
    """Return the schema of an object that has all of these fields and may have others."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def _list(of: Json) -> dict[str, Json]:
    return {"type": "array", "items": of}


def _one_of(*values: Json) -> dict[str, Json]:
    return {"enum": list(values)}


_CALLED = _object(id=_TEXT, type=_one_of("function"), function=_object(name=_TEXT, arguments=_TEXT))
_ANSWERED = _object(role=_one_of("assistant"), content=_TEXT_OR_NULL)
_ANSWERED["properties"] |= {"reasoning_content": _TEXT, "tool_calls": _list(_CALLED)}

_ANSWERS: Mapping[str, Json] = {
    "ChatCompletions": _object(
        id=_TEXT,
        object=_one_of("chat.completion"),
        created=_COUNT,
        model=_TEXT,
        choices=_list(
            _object(
                index=_COUNT,
                message=_ANSWERED,
                finish_reason=_one_of("stop", "length", "tool_calls"),
                logprobs={"type": ["object", "null"]},
            )
        ),
        usage=_object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Responses": _object(
        id=_TEXT,
        object=_one_of("response"),
        created_at=_COUNT,
        model=_TEXT,
        status=_one_of("completed", "incomplete"),
        output=_list(_object(id=_TEXT, type=_one_of("reasoning", "message", "function_call"), status=_TEXT)),
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Messages": _object(
        id=_TEXT,
        type=_one_of("message"),
        role=_one_of("assistant"),
        model=_TEXT,
        content=_list(_object(type=_one_of("text", "tool_use"))),
        stop_reason=_one_of("end_turn", "tool_use", "max_tokens", "stop_sequence"),
        stop_sequence=_TEXT_OR_NULL,
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "Report": {"type": "object", "maxProperties": 0},
    "Models": _object(object=_one_of("list"), data=_list(_object(id=_TEXT, object=_one_of("model")))),
    "Versions": _object(default=_TEXT, canary={"type": "object"}, num_requests={"type": "object"}),
    "Health": _object(status=_one_of("ok")),
    "Invocation": {"type": "object", "description": "The invitation that pushed agents also receive, with the lease."},
    "Renewed": _object(lease_seconds={"type": "number"}),
}

_ERRORS: Mapping[str, Json] = {
    "OpenAIError": _object(error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)),
    "AnthropicError": _object(type=_one_of("error"), error=_object(type=_TEXT, message=_TEXT)),
    "AwsError": _object(__type=_TEXT, message=_TEXT, Message=_TEXT),
}

_KEY: Json = [{"bearer": []}, {"header": []}]
_NO_KEY: Json = []
_WORKER: Json = [{"worker": []}]
_ADMIN: Json = [{"admin": []}]

_KEYS: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The key of the episode or of the server."},
    "header": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same key, in Anthropic's header.",
    },
    "worker": {"type": "http", "scheme": "bearer", "description": "The worker key of the run."},
    "admin": {"type": "http", "scheme": "bearer", "description": "The admin key of the server."},
}

_TRAJECTORY: Json = {
    "name": TRAJECTORY_ID,
    "in": "header",
    "description": "The episode's key, which may also be sent as on other routes. An unknown key is a 404.",
    "schema": {"type": "string", "maxLength": MAX_LENGTH},
}


_LEASE: Json = {"name": "lease", "in": "path", "required": True, "schema": _TEXT}


def openapi(*, takes_seed: bool, has_queue: bool = False, has_versions: bool = False) -> dict[str, Json]:
    """Return the OpenAPI document. `takes_seed` states whether requests may set a seed, which is not allowed in running
    episodes. `has_queue` states whether workers poll for episodes, and `has_versions` whether an operator can change
    the versions that answer."""
    definitions: dict[str, Json] = {**_ANSWERS, **_ERRORS}

    def defined(name: str, schema: dict[str, Json]) -> str:
        definitions.update(schema.pop("$defs"))
        if not takes_seed and "seed" in schema["properties"]:
            schema["properties"]["seed"] = {"type": "null", "description": "The run sets the seed."}
        definitions[name] = schema
        return name

    paths: dict[str, Json] = {}
    for path, dialect in {**DIALECTS, "/chat/completions": ChatCompletions()}.items():
        name = type(dialect).__name__
        error = "AnthropicError" if name == "Messages" else "OpenAIError"
        request = defined(f"{name}Request", dialect.request_schema(name))
        paths[path] = {"post": _played(dialect, request, answer=name, error=error)}
    for path, dialect in SAMPLES.items():
        request = defined("SampleRequest", dialect.request_schema("ChatCompletions"))
        operation = _played(dialect, request, answer="ChatCompletions", error="AwsError")
        paths[path] = {"post": {**operation, "security": [*_KEY, {}], "parameters": [_TRAJECTORY]}}
    for path, route in REPORTS.items():
        name = route.body.__name__
        request = defined(name, route.request_schema(name))
        operation = _operation(route.body.__doc__, answer="Report", error="AwsError" if route.is_aws else "OpenAIError")
        paths[path] = {"post": {**operation, **_takes(request), "security": _NO_KEY if route.is_aws else _KEY}}
    paths["/v1/models"] = {
        "get": _operation("List the names that requests may send as the model.", answer="Models") | {"security": _KEY}
    }
    paths["/health"] = {"get": _operation("Check that the server responds.", answer="Health") | {"security": _NO_KEY}}
    if has_queue:
        taken = _operation("Lease an episode; 204 if none is available in time.", answer="Invocation")
        taken["responses"]["204"] = {"description": "No episode was available in time."}
        renewed = _operation("Renew the lease.", answer="Renewed") | {"parameters": [_LEASE]}
        released = _operation("Give the episode back.", answer="Report") | {"parameters": [_LEASE]}
        takes = {
            model: _takes(defined(model.__name__, body_schema(model, model.__name__))) for model in (Poll, Release)
        }
        paths["/v1/queue/lease"] = {"post": {**taken, **takes[Poll], "security": _WORKER}}
        paths["/v1/queue/{lease}/renew"] = {"post": {**renewed, "security": _WORKER}}
        paths["/v1/queue/{lease}/release"] = {"post": {**released, **takes[Release], "security": _WORKER}}
    if has_versions:
        shown = _operation("Show which versions of the model answer.", answer="Versions")
        changed = _operation(VersionChange.__doc__, answer="Versions")
        takes = _takes(defined("VersionChange", body_schema(VersionChange, "VersionChange")))
        paths[VERSIONS] = {"get": {**shown, "security": _ADMIN}, "post": {**changed, **takes, "security": _ADMIN}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sparring gateway", "version": "1"},
        "servers": [
            {"url": "/"},
            {"url": "/s/{key}", "description": "The key in the path.", "variables": {"key": {"default": "KEY"}}},
        ],
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": _KEYS},
    }


def _played(dialect: Dialect, request: str, *, answer: str, error: str) -> dict[str, Json]:
    """Return the operation that samples a turn of the policy."""
    operation = _operation(type(dialect).__doc__, answer=answer, error=error)
    operation["responses"]["200"]["content"]["text/event-stream"] = {}
    return {**operation, **_takes(request), "security": _KEY}


def _takes(request: str) -> dict[str, Json]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _reference(request)}}}}


def _operation(about: str | None, *, answer: str, error: str = "OpenAIError") -> dict[str, Json]:
    failure = {"description": "An error that names the field.", "content": _json(error)}
    return {
        "description": about,
        "responses": {"200": {"description": "The answer.", "content": _json(answer)}, "4XX": failure, "5XX": failure},
    }


def _json(schema: str) -> dict[str, Json]:
    return {"application/json": {"schema": _reference(schema)}}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
