"""Write a constraint as one Lark text, for servers that use llguidance themselves."""

from __future__ import annotations

import json
import re

from sparring.errors import ConstraintError
from sparring.types import Constraint

MAX_CONSTRAINT_CHARACTERS = 256 * 1024
"""The maximum size of a grammar and its schemas, in characters. A grammar of this size takes about half a second to
compile."""
VLLM_SETTING = '{"backend": "guidance"}'
"""The value of `--structured-outputs-config` with which a vLLM server reads the text with llguidance."""
_UNKNOWN_OPTION = "json_allow_general_unicode_escapes"
"""An option of JSON (`x-guidance`) that the llguidance of vLLM 0.32 refuses. Without it, a string contains a character
itself, and escapes only of control characters."""
_ANSWER = "answer_before_stop"
_PARTS = re.compile(
    r"""(?P<other>"(?:\\.|[^"\\])*"|//[^\n]*|\#[^\n]*|/(?:\\.|[^/\\\n])+/)|@(?P<schema>[\w-]+)|(?P<start>\bstart\b)""",
    re.VERBOSE,
)
"""Strings, comments and regular expressions, which stay as they are, and the names that are replaced."""


def check_constraint(constraint: Constraint, stop_ids: frozenset[int]) -> None:
    """Raise ConstraintError if a constraint is too large, or if no stop id can end its answer."""
    if not stop_ids:
        raise ConstraintError("An answer that follows a grammar ends with a stop id, but this model has no stop id.")
    size = len(constraint.grammar) + sum(len(schema) for _, schema in constraint.schemas)
    if size > MAX_CONSTRAINT_CHARACTERS:
        raise ConstraintError(
            f"The JSON schemas and the grammar of this answer have {size} characters, but the maximum is "
            f"{MAX_CONSTRAINT_CHARACTERS}; send fewer tools or smaller schemas."
        )


def write_lark(constraint: Constraint, stop_ids: frozenset[int]) -> str:
    """Return a Lark text in which the schemas are part of the grammar, and a stop id follows the answer.

    A server would otherwise end the answer with its tokenizer's end-of-sequence id, which need not be a stop id. The
    first line selects llguidance: a server that chooses between grammar libraries finds that another one cannot read it.
    Raises ConstraintError as `check_constraint` does, and for a reference to an unknown schema.
    """
    check_constraint(constraint, stop_ids)
    schemas = dict(constraint.schemas)

    def replace(part: re.Match[str]) -> str:
        if part["other"] is not None:
            return part["other"]
        if part["start"] is not None:
            return _ANSWER
        if part["schema"] not in schemas:
            raise ConstraintError(f"The grammar of this answer refers to @{part['schema']}, but has no such schema.")
        return f"%json {_without_unknown_option(schemas[part['schema']])}"

    ends = ",".join(map(str, sorted(stop_ids)))
    return f"%llguidance {{}}\nstart: {_ANSWER} <[{ends}]>\n{_PARTS.sub(replace, constraint.grammar)}"


def _without_unknown_option(schema: str) -> str:
    """Return the text of a JSON schema without `_UNKNOWN_OPTION`."""
    found = json.loads(schema)
    if isinstance(found, dict) and isinstance(found.get("x-guidance"), dict):
        found["x-guidance"].pop(_UNKNOWN_OPTION, None)
    return json.dumps(found, ensure_ascii=False)
