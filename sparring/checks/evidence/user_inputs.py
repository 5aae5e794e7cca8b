"""Inputs that the user provides in addition to the recipe: production logs, production schemas, reference endpoints, a
stored run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sparring.checks.evidence.schema_comparison import resolve_references
from sparring.checks.evidence.subject import UserInputs
from sparring.data.files import each_key_once
from sparring.errors import DataError, UsageError
from sparring.types import Json, ToolSchema

_Described: TypeAlias = tuple[str, str, Mapping[str, Any]]
"""Name, description and parameters of a tool."""
_WRAPPERS = ("result", "toolConfig", "tools")
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


def read_user_inputs(
    *,
    production: str | None,
    schemas: str | None,
    reference: Sequence[str],
    run: str | None,
    reviewer: str | None = None,
) -> UserInputs:
    """Read the user's files. Raises DataError if a file contains an error, and UsageError for a reference endpoint
    without a model."""
    for one in reference:
        split_endpoint(one, option="--reference")
    if reviewer is not None:
        split_endpoint(reviewer, option="--reviewer")
    if run is not None and not any((Path(run) / "trajectories").glob("*.jsonl")):
        raise DataError(
            f"--run {run} contains no trajectories/*.jsonl; specify the folder of a run (`sparring runs list`)."
        )
    return UserInputs(
        production=None if production is None else read_production(Path(production)),
        schemas=None if schemas is None else read_schemas(Path(schemas)),
        reference=tuple(reference),
        reviewer=() if reviewer is None else (reviewer,),
        run=None if run is None else Path(run),
    )


def split_endpoint(endpoint: str, *, option: str) -> tuple[str, str, str | None]:
    """Return the address, the model and the key variable of `URL#MODEL` or `URL#MODEL#VARIABLE`. Raises UsageError,
    which specifies the command-line option, if there is no model."""
    url, _, rest = endpoint.partition("#")
    model, _, variable = rest.partition("#")
    if not model:
        raise UsageError(f"{option} {endpoint} has no model; write URL#MODEL, e.g. https://HOST/v1#large-model.")
    return url, model, variable or None


def endpoint_overrides(endpoint: str, *, option: str) -> list[str]:
    """Return the overrides that make a recipe use an endpoint as its engine. Raises what `split_endpoint` raises."""
    url, model, variable = split_endpoint(endpoint, option=option)
    overrides = ["engine.type=openai", f"engine.base_url={url}", f"engine.model={model}"]
    return [*overrides, f"engine.api_key_env={variable}"] if variable else overrides


def read_production(path: Path) -> tuple[Mapping[str, Json], ...]:
    """Read the rows of a .jsonl sample: {"messages": [...]} for a conversation, or {"tool", "arguments", "result"} for
    a call. Both may have a "kind". Raises DataError with the line number."""
    rows = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number} is not JSON ({error}); give one object per line.") from error
        if not isinstance(row, dict) or not ("messages" in row or "tool" in row):
            raise DataError(
                f"{path}, line {number} is neither a conversation nor a call; give {{'messages': [...]}}, or "
                "{'tool': ..., 'arguments': {...}, 'result': ...}."
            )
        rows.append(row)
    if not rows:
        raise DataError(f"{path} has no rows, so there is nothing to compare with; give one conversation per line.")
    return tuple(rows)


def read_schemas(path: Path) -> Mapping[str, ToolSchema]:
    """Read tools from a JSON file and return them in the OpenAI format, keyed by name. The file contains a list of
    OpenAI, Anthropic or Bedrock tools, an MCP listing, or an OpenAPI document. References in the tools' arguments are
    replaced by their targets (`schema_comparison.resolve_references`).

    Raises DataError if the file has a different format, and ServiceError if the library for JSON Schema is not
    installed.
    """
    try:
        content: Any = json.loads(_read_text(path), object_pairs_hook=each_key_once(str(path)))
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON ({error}); give OpenAI tools, an MCP listing or OpenAPI as JSON."
        ) from error
    by_name: dict[str, ToolSchema] = {}
    for name, description, parameters in _list_tools(content, path):
        if name in by_name:
            raise DataError(f"{path} has the tool {name!r} more than once; keep the one that production has.")
        function = {
            "name": name,
            "description": description,
            "parameters": resolve_references(parameters, f"{path}, tool {name!r}"),
        }
        by_name[name] = {"type": "function", "function": function}
    return by_name


def _list_tools(content: Json, path: Path) -> list[_Described]:
    """Return the tools in the content of a file. Raises DataError if there are none."""
    if isinstance(content, dict) and "swagger" in content:
        raise DataError(
            f"{path} is Swagger {content['swagger']}; convert it to OpenAPI 3, which most generators write."
        )
    if isinstance(content, dict) and "paths" in content:
        tools = list(_list_operations(content))
    else:
        while isinstance(content, dict) and (wrapper := next((one for one in _WRAPPERS if one in content), None)):
            content = content[wrapper]
        tools = [tool for one in content if (tool := _parse_tool(one))] if isinstance(content, list) else []
    if not tools:
        raise DataError(
            f"{path} contains no tools; give a list of OpenAI tools, an MCP listing (tools/list), a `toolConfig`, or "
            "OpenAPI."
        )
    return tools


def list_calls(row: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json], str | None]]:
    """Yield the calls in a row of production logs: the tool, the arguments, and the result as text if it is known."""
    if "tool" in row:
        yield str(row["tool"]), _parse_arguments(row.get("arguments")), _parse_result(row.get("result"))
        return
    messages = [one for one in row["messages"] if isinstance(one, Mapping)]
    results = {
        one.get("tool_call_id"): _parse_result(one.get("content")) for one in messages if one.get("role") == "tool"
    }
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            yield str(function.get("name")), _parse_arguments(function.get("arguments")), results.get(call.get("id"))


def _parse_arguments(given: Json) -> Mapping[str, Json]:
    try:
        parsed = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {}
    return parsed if isinstance(parsed, Mapping) else {}


def _parse_result(given: Json) -> str | None:
    return given if given is None or isinstance(given, str) else json.dumps(given)


def _parse_tool(given: Json) -> _Described | None:
    """Return the tool in a definition for OpenAI, MCP (`inputSchema`), Anthropic (`input_schema`) or Bedrock
    (`toolSpec`), or None if it is not a tool definition."""
    if not isinstance(given, Mapping):
        return None
    spec = given.get("function", given.get("toolSpec", given))
    if not isinstance(spec, Mapping) or "name" not in spec:
        return None
    schema = next((spec[key] for key in ("parameters", "inputSchema", "input_schema") if key in spec), {})
    return str(spec["name"]), str(spec.get("description", "")), schema.get("json", schema)


def _list_operations(document: Mapping[str, Json]) -> Iterator[_Described]:
    """Yield each operation of an OpenAPI document as a tool, with its parameters and the fields of its JSON body as
    arguments."""
    components = document.get("components", {})
    for path, item in document["paths"].items():
        for method in (one for one in _METHODS if one in item):
            operation = item[method]
            properties, required = {}, []
            for one in (*item.get("parameters", ()), *operation.get("parameters", ())):
                parameter = _resolve(one, document)
                properties[parameter["name"]] = parameter.get("schema", {})
                required += [parameter["name"]] * bool(parameter.get("required"))
            content = _resolve(operation.get("requestBody", {}), document).get("content", {})
            body = _resolve(content.get("application/json", {}).get("schema", {}), document)
            name = operation.get("operationId", f"{method}_{path.strip('/').replace('/', '_')}")
            schema: Any = {
                "type": "object",
                **body,
                "properties": {**properties, **body.get("properties", {})},
                "required": [*required, *body.get("required", ())],
                "components": components,
            }
            if str(document.get("openapi", "")).startswith("3.0"):
                schema = _drop_openapi_dialect(schema)
            yield name, operation.get("summary", ""), schema


def _drop_openapi_dialect(schema: Any) -> Any:
    """Convert a schema from OpenAPI 3.0 to JSON Schema 2020-12. OpenAPI 3.0 has `nullable`, and uses Booleans for
    exclusive bounds."""
    if isinstance(schema, list):
        return [_drop_openapi_dialect(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _drop_openapi_dialect(one) for name, one in schema.items()}
    for bound in ("Minimum", "Maximum"):
        if isinstance(found.get(f"exclusive{bound}"), bool) and found.pop(f"exclusive{bound}"):
            found[f"exclusive{bound}"] = found.pop(bound.lower())
    if isinstance(found.get("nullable"), bool) and found.pop("nullable"):
        return {"anyOf": [found, {"type": "null"}]}
    return found


def _resolve(one: Json, document: Mapping[str, Json]) -> Json:
    """Return the target of a local `$ref`."""
    seen = 0
    while isinstance(one, Mapping) and "$ref" in one and seen < 20:
        found: Any = document
        for part in str(one["$ref"]).removeprefix("#/").split("/"):
            found = found.get(part, {})
        one, seen = found, seen + 1
    return one


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}; give a UTF-8 file.") from error
