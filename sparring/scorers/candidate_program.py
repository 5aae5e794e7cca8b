"""Runs in the candidate's sandbox: loads a program and answers calls to its functions, one call per line. Standard
library only.

This program does not grade, and its messages are not trusted: an answer is used only as the candidate's return value.
"""

import ast
import json
import os
import sys
import types

LITERALS = (int, float, str, bytes, bool, complex, type(None))


def literal(value, depth=0):
    """Return a value as Python source text for `ast.literal_eval`. Only exact built-in types are allowed, because their
    repr is fixed."""
    kind = type(value)
    if depth > 50:
        raise TypeError("the result is nested more than 50 levels deep")
    if kind is float and (value != value or value in (float("inf"), float("-inf"))):
        return "1e999" if value > 0 else "-1e999" if value < 0 else "'nan'"
    if kind in LITERALS:
        return repr(value)
    if kind is dict:
        return "{{{}}}".format(", ".join(f"{literal(k, depth + 1)}: {literal(v, depth + 1)}" for k, v in value.items()))
    if kind in (list, tuple, set):
        inside = ", ".join(literal(item, depth + 1) for item in value)
        if kind is list:
            return f"[{inside}]"
        if kind is set:
            return f"{{{inside}}}" if value else "set()"
        return f"({inside},)" if value else "()"
    raise TypeError(f"the result is a {kind.__name__}; return numbers, strings, lists, tuples, sets or dicts")


def answer(module, call):
    arguments, options = ast.literal_eval(call["arguments"])
    try:
        return {"value": literal(getattr(module, call["name"])(*arguments, **options))}
    except BaseException as error:  # noqa: BLE001 (any failure of the candidate is its answer)
        return {"raised": type(error).__name__, "text": str(error)[:500]}


def main():
    # The candidate's own input and output are not used for messages.
    source, sink = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        exec(compile(json.loads(source.readline()), "solution.py", "exec"), module.__dict__)
        reply = {"ready": True}
    except BaseException as error:  # noqa: BLE001 (any failure of the candidate is its answer)
        sink.write(json.dumps({"raised": type(error).__name__, "text": str(error)[:500]}) + "\n")
        sink.flush()
        os._exit(1)
    while True:
        sink.write(json.dumps(reply) + "\n")
        sink.flush()
        line = source.readline()
        if not line:
            os._exit(0)
        reply = answer(module, json.loads(line))


if __name__ == "__main__":
    main()
