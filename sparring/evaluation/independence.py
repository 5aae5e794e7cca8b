"""How independent the scorer is from the reward. A scorer may be a separate check, or only the reward under another
name."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from sparring.protocols import RewardFunction, Scorer

Independence: TypeAlias = Literal["scorer", "none", "shares code with the reward"]
"""The grader: an independent scorer, only the reward, or a scorer that runs some of the reward's code."""

Kind = TypeVar("Kind")

_OURS = ("sparring.rewards.", "sparring.scorers.", "sparring.environments.suites.", "sparring.environments.adapters.")
"""The packages of Sparring with grading rules. The rest of Sparring is as neutral as Python's standard library."""
_NEUTRAL = "sparring.scorers.conduct"
"""The package with scorers that describe how an episode went and grade nothing."""


def independence(reward: RewardFunction | None, scorer: Scorer | None) -> Independence:
    """Return how independent a scorer is from the reward. `reward` is None for agents that compute their own reward."""
    if scorer is None:
        return "none"
    return "shares code with the reward" if shared_code(reward, scorer) else "scorer"


def shared_code(reward: RewardFunction | None, scorer: Scorer) -> tuple[str, ...]:
    """Return the sorted names (`module.name`) of the functions that both reward and scorer may run.

    The search follows the calls of both. It includes the functions and classes of the recipe's own modules that they
    name, values in closures, defaults and bound arguments, and the attributes that methods read from their object. A
    function is shared if both reach it, or if the same factory made it for each (for example, if both are results of
    `json_exact(...)`). Python's standard library, installed libraries and constants do not count as shared code.
    Imports within a function are not followed.
    """
    if reward is None:
        return ()
    first, second = _reached(reward), _reached(scorer)
    return tuple(sorted(first[code] for code in first.keys() & second.keys()))


def objects_reached(function: Any, kind: type[Kind]) -> list[Kind]:
    """Return all objects of type `kind` that a call of this function may use, each once."""
    found = {id(held): held for one, owner in _walk(function) for held in (one, owner) if isinstance(held, kind)}
    return list(found.values())


def _reached(function: Any) -> dict[types.CodeType, str]:
    """Return the code objects that a call of this function may run and that may contain grading rules, with their
    names."""
    plain = (inspect.unwrap(one) for one, _ in _walk(function) if isinstance(one, types.FunctionType))
    return {
        one.__code__: f"{one.__module__}.{one.__qualname__}"
        for one in plain
        if isinstance(one, types.FunctionType) and _may_grade(one.__module__)
    }


def _walk(function: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the functions and objects that a call of this function may use. Each is paired with the object that it is a
    method of, or with None."""
    seen: set[tuple[int, int]] = set()
    waiting: list[tuple[Any, Any]] = [(function, None)]
    kept: list[Any] = []  # an id is unique only while its object exists
    while waiting:
        one, owner = waiting.pop()
        if (id(one), id(owner)) in seen:
            continue
        seen.add((id(one), id(owner)))
        kept.append(one)
        yield one, owner
        if isinstance(one, types.FunctionType):
            plain = inspect.unwrap(one)
            waiting += [(value, None) for value in _closure(one)]
            if isinstance(plain, types.FunctionType) and _may_grade(plain.__module__):
                waiting += _used(plain, owner)
        else:
            waiting += _within(one)


def _within(value: Any) -> list[tuple[Any, Any]]:
    """Return the callables in a value that is not a plain function, each paired with the object that it is a method
    of."""
    if isinstance(value, types.MethodType):
        return [(value.__func__, value.__self__)]
    if isinstance(value, functools.partial):
        return [(part, None) for part in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, tuple | list | set | frozenset):
        return [(part, None) for part in value]
    if isinstance(value, Mapping):
        return [(part, None) for part in value.values()]
    if isinstance(value, type):
        return [(method, None) for method in _methods(value)] if _may_grade(value.__module__) else []
    called = inspect.getattr_static(type(value), "__call__", None)
    return [(called, value)] if _may_grade(type(value).__module__) and called is not None else []


def _used(function: types.FunctionType, owner: Any) -> list[tuple[Any, Any]]:
    """Return the globals that a function names (including attributes of modules), and the attributes of its object that
    it uses."""
    found: list[tuple[Any, Any]] = []
    names = set(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and _may_grade(value.__name__):
            found += [(vars(value)[part], None) for part in names if part in vars(value)]
        elif not isinstance(value, types.ModuleType):
            found.append((value, None))
        if owner is not None and (held := inspect.getattr_static(owner, name, None)) is not None:
            found.append((_function_of(held), owner))
    return found


def _closure(function: types.FunctionType) -> list[Any]:
    """Return the values, other than globals, that a function refers to: its closure, its defaults, and the function
    that it wraps."""
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            continue  # an empty cell
    return held


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function and its nested functions look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _methods(kind: type) -> Iterator[types.FunctionType]:
    """Yield the methods written in source code. Methods that `dataclass` and similar tools generate are skipped,
    because they contain no grading rule."""
    for base in kind.__mro__:
        for value in vars(base).values() if _may_grade(base.__module__) else ():
            function = inspect.unwrap(_function_of(value))
            if isinstance(function, types.FunctionType) and function.__code__.co_filename != "<string>":
                yield function


def _function_of(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _may_grade(module: str | None) -> bool:
    """Return whether the code of this module may contain a grading rule. This is true for the recipe's modules and for
    those of Sparring's modules that contain grading rules."""
    if module is None or module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return False
    if module.partition(".")[0] == "sparring":
        return module.startswith(_OURS) and module != _NEUTRAL
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file
