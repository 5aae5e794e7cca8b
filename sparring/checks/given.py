"""What a user gives beside the recipe: production logs, production schemas, reference endpoints, a stored run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sparring.checks.schemas import resolved
from sparring.checks.subject import Given
from sparring.data.files import each_key_once
from sparring.errors import DataError, UsageError
from sparring.types import Json, ToolSchema

_Described: TypeAlias = tuple[str, str, Mapping[str, Any]]
"""Name, description and parameters of a tool."""
_WRAPPERS = ("result", "toolConfig", "tools")
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


def read_given(*, production: str | None, schemas: str | None, reference: Sequence[str], run: str | None) -> Given:
    """Read the files. Raises DataError naming what is wrong with one, and UsageError for a reference without model."""
    for one in reference:
        split_reference(one)
    if run is not None and not any((Path(run) / "trajectories").glob("*.jsonl")):
        raise DataError(f"--run {run} holds no trajectories/*.jsonl; name the folder of a run (`sparring runs list`).")
    return Given(
        production=None if production is None else read_production(Path(production)),
        schemas=None if schemas is None else read_schemas(Path(schemas)),
        reference=tuple(reference),
        run=None if run is None else Path(run),
    )


def split_reference(reference: str) -> tuple[str, str, str | None]:
    """Address, model and key variable of `URL#MODEL` or `URL#MODEL#VARIABLE`. Raises UsageError."""
    url, _, rest = reference.partition("#")
    model, _, variable = rest.partition("#")
    if not model:
        raise UsageError(f"--reference {reference} names no model; write URL#MODEL, e.g. https://HOST/v1#large-model.")
    return url, model, variable or None


def read_production(path: Path) -> tuple[Mapping[str, Json], ...]:
    """Rows of a .jsonl sample: {"messages": [...]} a conversation, or {"tool", "arguments", "result"} a call; both may
    have a "kind". Raises DataError naming the line."""
    rows = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number} is not JSON ({error}); give one object a line.") from error
        if not isinstance(row, dict) or not ("messages" in row or "tool" in row):
            raise DataError(
                f"{path}, line {number} is neither a conversation nor a call; give {{'messages': [...]}}, or "
                "{'tool': ..., 'arguments': {...}, 'result': ...}."
            )
        rows.append(row)
    if not rows:
        raise DataError(f"{path} holds no rows, so there is nothing to compare with; give one conversation a line.")
    return tuple(rows)


def read_schemas(path: Path) -> Mapping[str, ToolSchema]:
    """Tools by name, in the OpenAI shape, from a JSON file: a list of tools of OpenAI, Anthropic or Bedrock, an MCP listing, or
    an OpenAPI document. Nothing in their arguments refers to another place (`schemas.resolved`).

    Raises DataError when it is none of them, and ServiceError when the library for JSON Schema is not installed.
    """
    try:
        content: Any = json.loads(_text(path), object_pairs_hook=each_key_once(str(path)))
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON ({error}); give OpenAI tools, an MCP listing or OpenAPI as JSON."
        ) from error
    if isinstance(content, dict) and "swagger" in content:
        raise DataError(
            f"{path} is Swagger {content['swagger']}; convert it to OpenAPI 3, which most generators write."
        )
    if isinstance(content, dict) and "paths" in content:
        tools = list(_operations(content))
    else:
        while isinstance(content, dict) and (wrapper := next((one for one in _WRAPPERS if one in content), None)):
            content = content[wrapper]
        tools = [tool for one in content if (tool := _tool(one))] if isinstance(content, list) else []
    if not tools:
        raise DataError(
            f"{path} names no tools; give a list of OpenAI tools, an MCP listing (tools/list), a `toolConfig`, or OpenAPI."
        )
    by_name: dict[str, ToolSchema] = {}
    for name, description, parameters in tools:
        if name in by_name:
            raise DataError(f"{path} has the tool {name!r} more than once; keep the one that production has.")
        function = {
            "name": name,
            "description": description,
            "parameters": resolved(parameters, f"{path}, tool {name!r}"),
        }
        by_name[name] = {"type": "function", "function": function}
    return by_name


def calls_in(row: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json], str | None]]:
    """The calls of a row of production logs: tool, arguments, result as text where it is known."""
    if "tool" in row:
        yield str(row["tool"]), _arguments(row.get("arguments")), _result(row.get("result"))
        return
    messages = [one for one in row["messages"] if isinstance(one, Mapping)]
    said = {one.get("tool_call_id"): _result(one.get("content")) for one in messages if one.get("role") == "tool"}
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            yield str(function.get("name")), _arguments(function.get("arguments")), said.get(call.get("id"))


def _arguments(given: Json) -> Mapping[str, Json]:
    try:
        parsed = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {}
    return parsed if isinstance(parsed, Mapping) else {}


def _result(given: Json) -> str | None:
    return given if given is None or isinstance(given, str) else json.dumps(given)


def _tool(given: Json) -> _Described | None:
    """A tool of OpenAI, MCP (`inputSchema`), Anthropic (`input_schema`) or Bedrock (`toolSpec`)."""
    if not isinstance(given, Mapping):
        return None
    spec = given.get("function", given.get("toolSpec", given))
    if not isinstance(spec, Mapping) or "name" not in spec:
        return None
    schema = next((spec[key] for key in ("parameters", "inputSchema", "input_schema") if key in spec), {})
    return str(spec["name"]), str(spec.get("description", "")), schema.get("json", schema)


def _operations(document: Mapping[str, Json]) -> Iterator[_Described]:
    """Each operation of an OpenAPI document as a tool; parameters and fields of the JSON body are its arguments."""
    components = document.get("components", {})
    for path, item in document["paths"].items():
        for method in (one for one in _METHODS if one in item):
            operation = item[method]
            properties, required = {}, []
            for one in (*item.get("parameters", ()), *operation.get("parameters", ())):
                parameter = _resolved(one, document)
                properties[parameter["name"]] = parameter.get("schema", {})
                required += [parameter["name"]] * bool(parameter.get("required"))
            content = _resolved(operation.get("requestBody", {}), document).get("content", {})
            body = _resolved(content.get("application/json", {}).get("schema", {}), document)
            name = operation.get("operationId", f"{method}_{path.strip('/').replace('/', '_')}")
            schema: Any = {
                "type": "object",
                **body,
                "properties": {**properties, **body.get("properties", {})},
                "required": [*required, *body.get("required", ())],
                "components": components,
            }
            if str(document.get("openapi", "")).startswith("3.0"):
                schema = _without_openapi_dialect(schema)
            yield name, operation.get("summary", ""), schema


def _without_openapi_dialect(schema: Any) -> Any:
    """A schema of OpenAPI 3.0 as JSON Schema 2020-12: `nullable` and truth values as exclusive bounds are its own."""
    if isinstance(schema, list):
        return [_without_openapi_dialect(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _without_openapi_dialect(one) for name, one in schema.items()}
    for bound in ("Minimum", "Maximum"):
        if isinstance(found.get(f"exclusive{bound}"), bool) and found.pop(f"exclusive{bound}"):
            found[f"exclusive{bound}"] = found.pop(bound.lower())
    if isinstance(found.get("nullable"), bool) and found.pop("nullable"):
        return {"anyOf": [found, {"type": "null"}]}
    return found


def _resolved(one: Json, document: Mapping[str, Json]) -> Json:
    """What a local `$ref` points to."""
    seen = 0
    while isinstance(one, Mapping) and "$ref" in one and seen < 20:
        found: Any = document
        for part in str(one["$ref"]).removeprefix("#/").split("/"):
            found = found.get(part, {})
        one, seen = found, seen + 1
    return one


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}; give a UTF-8 file.") from error
