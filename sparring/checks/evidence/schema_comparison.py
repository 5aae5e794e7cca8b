"""Comparison of two tools as JSON Schemas (https://json-schema.org/draft/2020-12): the values that one tool accepts and
the other refuses."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparring.errors import DataError, ServiceError
from sparring.types import Json

_COMPARED_APART = ("properties", "required", "additionalProperties", "$defs", "definitions", "components")


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two tools, in words and with the parts of their schemas."""

    what: str
    evidence: Mapping[str, Json]


def resolve_references(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the schema of a tool's arguments with every local `$ref` replaced by its target, and `allOf` merged into
    one object.

    Raises DataError if the arguments are not a JSON Schema, or refer to another document.
    """
    library = _load_library()
    try:
        whole = library.dereference({name: one for name, one in parameters.items() if name != "$schema"}, offline=True)
        canonical = library.canonicalize(whole, offline=True)
    except (ValueError, library.ReferencingError) as error:
        raise DataError(
            f"{where}: the arguments are not a JSON Schema 2020-12 that can be compared "
            f"({str(error).splitlines()[0]}); correct the schema, and include everything that it refers to."
        ) from error
    return canonical.to_json_schema() if "allOf" in whole else whole


def compare_schemas(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences between the arguments of an environment's tool and the arguments of the production tool.
    Both schemas must be resolved by `resolve_references`.

    Only what the production schema states is compared. A default that it does not state may have any value, and
    arguments that it neither describes nor refuses are ignored.
    """
    mine, theirs = here.get("properties", {}), there.get("properties", {})
    for name in sorted({*mine, *theirs}):
        if name not in mine or name not in theirs:
            where = "only production" if name in theirs else "only the environment"
            yield Difference(f"{where} has the argument {name!r}", {"here": list(mine), "production": list(theirs)})
        else:
            yield from _compare_arguments(name, here, there)
    yield from _compare_further(here, there)


def _compare_arguments(name: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Difference]:
    mine, theirs = (
        _extract_subschema(here, here["properties"][name]),
        _extract_subschema(there, there["properties"][name]),
    )
    is_required, is_required_there = (name in schema.get("required", ()) for schema in (here, there))
    if is_required != is_required_there:
        evidence = {"here": here.get("required", []), "production": there.get("required", [])}
        yield Difference(f"the argument {name!r} is required in only one of the two", evidence)
    # Null may mean that an optional argument is left out.
    found = _describe_difference(mine, theirs, but_null=not (is_required and is_required_there))
    if found is not None:
        evidence = {"here": here["properties"][name], "production": there["properties"][name]}
        yield Difference(f"the argument {name!r} {found}", evidence)
    default, default_there = mine.get("default"), theirs.get("default")
    if not is_required and default_there is not None and not _is_equal(default, default_there):
        evidence = {"here": default, "production": default_there}
        yield Difference(f"the argument {name!r} has a different default than in production", evidence)


def _compare_further(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences in arguments that are not described, and in constraints that involve several arguments."""
    mine, theirs = here.get("additionalProperties", True), there.get("additionalProperties", True)
    found = (
        None
        if theirs in (True, {})
        else _describe_difference(_extract_subschema(here, mine), _extract_subschema(there, theirs))
    )
    if found is not None:
        yield Difference(f"other arguments: the tool {found}", {"here": mine, "production": theirs})
    together, together_there = (
        {"type": "object", **{name: one for name, one in schema.items() if name not in _COMPARED_APART}}
        for schema in (here, there)
    )
    found = _describe_difference(_extract_subschema(here, together), _extract_subschema(there, together_there))
    if found is not None:
        yield Difference(f"all arguments together: the tool {found}", {"here": together, "production": together_there})


def _describe_difference(mine: Mapping[str, Any], theirs: Mapping[str, Any], *, but_null: bool = False) -> str | None:
    """Return a description of how the values that two schemas accept differ, or None if they accept the same values."""
    library = _load_library()
    here, there, null = (
        library.canonicalize(one, validate_formats=True, offline=True) for one in (mine, theirs, {"type": "null"})
    )
    if but_null:
        here, there = here.subtract(null), there.subtract(null)
    yes, no = library.canonical.Containment.YES, library.canonical.Containment.NO
    takes_all, takes_no_more = here.covers(there), there.covers(here)
    if here == there or (takes_all, takes_no_more) == (yes, yes):
        return None
    if takes_all == yes:
        return "takes values that production refuses"
    if takes_no_more == yes:
        return "refuses values that production takes"
    is_certain = no in (takes_all, takes_no_more)
    return "takes other values than production" if is_certain else "is described differently than in production"


def _extract_subschema(root: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Return a part of a schema as a separate schema, with the targets of its recursive `$ref`s."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return {**{name: root[name] for name in ("$defs", "definitions", "components") if name in root}, **schema}


def _is_equal(one: Json, other: Json) -> bool:
    """Return True if two values are equal as JSON: 1 equals 1.0, but not true."""
    text = _load_library().canonical.json.to_string
    return text(one) == text(other)


def _load_library() -> Any:
    try:
        return importlib.import_module("jsonschema_rs")
    except ImportError as error:
        raise ServiceError(
            "--schemas needs jsonschema-rs, which is not installed; install it with `pip install 'sparring[schemas]'`, or "
            "check without --schemas."
        ) from error
