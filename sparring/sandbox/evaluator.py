"""Safe arithmetic: the value of an expression, computed from its syntax tree without executing it.

As a program, it answers one expression per line with `= VALUE` or `! PROBLEM`, in JSON. It uses only the standard
library, because the worker has no other libraries.
"""

import ast
import json
import math
import operator
import sys

MAX_DIGITS = 1000
MAX_LENGTH = 2000
MAX_DEPTH = 200

CONSTANTS = {"pi": math.pi, "e": math.e}
FUNCTIONS = {
    "abs": abs, "round": round, "min": min, "max": max, "floor": math.floor, "ceil": math.ceil, "sqrt": math.sqrt,
    "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10, "sin": math.sin, "cos": math.cos,
    "tan": math.tan, "asin": math.asin, "acos": math.acos, "atan": math.atan, "gcd": math.gcd, "hypot": math.hypot,
}  # fmt: skip
BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY = {ast.UAdd: operator.pos, ast.USub: operator.neg}

_MAX_BITS = MAX_DIGITS * math.log2(10)


class ArithmeticProblem(Exception):
    """Raised for an error in an expression. Its text is for the expression's author."""


def evaluate(expression):
    """Return the value of an expression of numbers, operators and known functions. Raises ArithmeticProblem."""
    if len(expression) > MAX_LENGTH:
        raise ArithmeticProblem(f"the expression has {len(expression)} characters; {MAX_LENGTH} are allowed")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArithmeticProblem(
            "this is not an arithmetic expression: write numbers, + - * / // % ** and functions"
        ) from error
    try:
        return _bounded(_value(tree.body, 0))
    except ZeroDivisionError as error:
        raise ArithmeticProblem("division by zero") from error
    except (ValueError, OverflowError, TypeError) as error:
        raise ArithmeticProblem(f"{error}") from error


def _value(node, depth):
    if depth > MAX_DEPTH:
        raise ArithmeticProblem(f"the expression is nested more than {MAX_DEPTH} levels deep")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_value(node.operand, depth + 1))
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
        if isinstance(node.op, ast.Pow):
            _check_power(left, right)
        return _bounded(BINARY[type(node.op)](left, right))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FUNCTIONS
        and not node.keywords
    ):
        return _bounded(FUNCTIONS[node.func.id](*(_value(argument, depth + 1) for argument in node.args)))
    known = ", ".join(sorted((*FUNCTIONS, *CONSTANTS)))
    what = ast.unparse(node) if depth else type(node).__name__
    raise ArithmeticProblem(f"{what[:80]!r} is not arithmetic; allowed are numbers, + - * / // % ** and {known}")


def _check_power(base, exponent):
    """Raise ArithmeticProblem if the result of the power would be too large. The size of the result is known in
    advance, and computing the result could take forever."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        bits = max(abs(base).bit_length(), 1) * exponent
        if abs(base) > 1 and bits > _MAX_BITS + exponent:
            raise ArithmeticProblem(f"{base} ** {exponent} has more than {MAX_DIGITS} digits")


def _bounded(value):
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArithmeticProblem(f"the value is not a real number: {value!r:.40}")
    if isinstance(value, int) and abs(value).bit_length() > _MAX_BITS:
        raise ArithmeticProblem(f"an integer has more than {MAX_DIGITS} digits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ArithmeticProblem("the value is infinite or undefined")
    return value


def serve():
    """Answer expressions from standard input, one per line, until the input ends."""
    for line in sys.stdin:
        try:
            reply = "= " + json.dumps(evaluate(json.loads(line)))
        except ArithmeticProblem as problem:
            reply = "! " + json.dumps(str(problem))
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
