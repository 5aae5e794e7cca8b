"""The user's functions as syntax trees, together with what the running recipe shows: constants, the tasks' values, and
tool descriptions."""

from __future__ import annotations

import ast
import csv
import enum
import io
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

import sparring
from sparring.checks.evidence.subject import Subject
from sparring.types import Json

Part: TypeAlias = Literal["environment", "graders", "tasks"]
"""The role of a function: it belongs to the environment, to the reward or the scorer, or creates the tasks."""
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
UNKNOWN: Any = object()
"""A placeholder for the value of an expression that is not constant."""
MOST_MODULES, MOST_VALUES = 40, 5000


@dataclass(frozen=True, slots=True)
class Slip:
    """A likely mistake in a function."""

    node: ast.AST
    symptom: str
    """The mistake, as the predicate of a sentence whose subject is the function: "compares `x` with ..."."""
    change: str
    evidence: Mapping[str, Json] = field(default_factory=dict)
    cause: str = ""
    """Mistakes in a class with the same cause are merged. If the cause is empty, each line is a separate cause."""
    covered_by: tuple[str, ...] = ()
    """Rules that detect the same mistake by running the tool. A mistake that they report is not reported again."""


@dataclass(eq=False)
class Function:
    """One function of the user's code."""

    name: str
    """The name with the class, such as `Desk.cancel`."""
    node: Definition
    module: Module
    owner: ast.ClassDef | None
    part: Part = "tasks"
    tools: tuple[str, ...] = ()
    """The tools that this function implements, or that call it."""
    documented: str = ""
    """The docstrings of the function and of the tools that call it."""

    @property
    def is_tool(self) -> bool:
        return self.node.name in self.tools and self.owner is not None and self.part == "environment"

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes in the function's body, without decorators and annotations."""
        return [one for statement in self.node.body for one in ast.walk(statement)]

    def every(self, *kinds: type) -> Iterator[Any]:
        return (one for one in self.nodes if isinstance(one, kinds))

    @cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        return self.module.parents

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.module.parents.get(node)

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The names of the parameters, without the receiver, and their annotations as text."""
        given = self.node.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        is_static = any(_text(one) == "staticmethod" for one in self.node.decorator_list)
        if self.owner is not None and named and not is_static:
            named = named[1:]
        return {one.arg: "" if one.annotation is None else ast.unparse(one.annotation) for one in named}

    @cached_property
    def defaults(self) -> Mapping[str, ast.expr]:
        given = self.node.args
        named = [*given.posonlyargs, *given.args]
        found = {one.arg: value for one, value in zip(reversed(named), reversed(given.defaults), strict=False)}
        return found | {one.arg: value for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}

    @cached_property
    def assigned(self) -> Mapping[str, list[ast.expr]]:
        """The expressions assigned to each local name."""
        found: dict[str, list[ast.expr]] = defaultdict(list)
        for one in self.every(ast.Assign, ast.AnnAssign, ast.NamedExpr):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            for target in targets:
                if isinstance(target, ast.Name) and one.value is not None:
                    found[target.id].append(one.value)
                elif isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple):
                    for name, value in zip(target.elts, one.value.elts, strict=False):
                        if isinstance(name, ast.Name):
                            found[name.id].append(value)
        return found

    @cached_property
    def bound(self) -> set[str]:
        """Every local name: the parameters and the names that the body binds."""
        return {*self.parameters, *(one.id for one in self.every(ast.Name) if isinstance(one.ctx, ast.Store))}

    def constant(self, node: ast.AST | None) -> Any:
        """Return the value of an expression that is the same in every call, or UNKNOWN for other expressions."""
        if isinstance(node, ast.Name):
            if node.id in self.bound:
                values = self.assigned.get(node.id, [])
                is_once = len(values) == 1 and node.id not in self.parameters and not self._is_rebound(node.id)
                return self.constant(values[0]) if is_once and not isinstance(values[0], ast.Name) else UNKNOWN
            return self.module.namespace.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and self.owner is not None:
                attributes = (
                    {} if node.attr in self.module.attributes_set(self.owner) else self.module.class_values(self.owner)
                )
                return attributes.get(node.attr, UNKNOWN)
            base = self.constant(node.value)
            is_member = isinstance(base, enum.EnumMeta) and node.attr in base.__members__
            if is_member or (isinstance(base, enum.Enum) and node.attr == "value"):
                return getattr(base, node.attr)
            return vars(base).get(node.attr, UNKNOWN) if isinstance(base, type | ModuleType) else UNKNOWN
        if isinstance(node, ast.BinOp):
            left, right = self.constant(node.left), self.constant(node.right)
            if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
                return left + right
            if isinstance(left, int | float) and isinstance(right, int | float) and type(node.op) in _OPERATORS:
                return _OPERATORS[type(node.op)](left, right) if right else UNKNOWN
            return UNKNOWN
        try:
            return UNKNOWN if node is None else ast.literal_eval(node)  # type: ignore[arg-type]
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return UNKNOWN

    def _is_rebound(self, name: str) -> bool:
        stores = [one for one in self.every(ast.Name) if one.id == name and isinstance(one.ctx, ast.Store)]
        return len(stores) > 1

    def origin(self, node: ast.AST) -> ast.AST:
        """Return the expression that a local name stands for, if the name is assigned exactly once."""
        while isinstance(node, ast.Name) and len(self.assigned.get(node.id, [])) == 1 and not self._is_rebound(node.id):
            node = self.assigned[node.id][0]
        return node

    def mentions(self, pattern: str) -> bool:
        """Return True if the pattern matches in the docstring of the function or of a tool that calls it."""
        return re.search(pattern, self.documented, re.IGNORECASE) is not None


_OPERATORS: Mapping[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
}


@dataclass(eq=False)
class Module:
    """One of the user's source files."""

    file: str
    text: str
    tree: ast.Module
    namespace: Mapping[str, Any]

    @cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        return {child: one for one in ast.walk(self.tree) for child in ast.iter_child_nodes(one)}

    @cached_property
    def lines(self) -> Sequence[str]:
        return self.text.splitlines()

    def methods(self, owner: ast.ClassDef) -> list[Definition]:
        return [one for one in owner.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]

    def class_values(self, owner: ast.ClassDef) -> Mapping[str, Any]:
        """Return the attributes of a class that is defined in this module."""
        found = self.namespace.get(owner.name)
        return (
            {key: value for one in reversed(found.__mro__) for key, value in vars(one).items()}
            if isinstance(found, type)
            else {}
        )

    def attributes_set(self, owner: ast.ClassDef) -> set[str]:
        """Return the names that the methods of a class assign to the object."""
        return {
            one.attr
            for one in ast.walk(owner)
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and _text(one.value) in ("self", "cls")
        }

    def functions(self) -> Iterator[tuple[Definition, ast.ClassDef | None]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                holder = self.parents.get(node)
                yield node, holder if isinstance(holder, ast.ClassDef) else None


@dataclass(eq=False)
class Code:
    """All of the user's functions that the recipe may call."""

    functions: Sequence[Function]
    values: Mapping[str, Sequence[Json]]
    """The values under each key in the fields that the environment reads, including rows whose columns the code names,
    and CSV text."""
    prompts: Sequence[str]
    fields: Mapping[str, Sequence[Json]]
    """The tasks' own fields."""

    shared: dict[str, Any] = field(default_factory=dict)
    """Results that patterns share with each other, or reuse for other functions."""

    @cached_property
    def _by_name(self) -> Mapping[str, list[Function]]:
        found: dict[str, list[Function]] = defaultdict(list)
        for one in self.functions:
            found[one.node.name].append(one)
        return found

    def named(self, name: str, owner: ast.ClassDef | None = None) -> list[Function]:
        """Return the functions with this unqualified name, or only the method of the class if the class has one with
        this name."""
        found = self._by_name.get(name, [])
        return [one for one in found if owner is not None and one.owner is owner] or found

    def of_class(self, function: Function) -> list[Function]:
        """Return the methods of the same class, its base classes and its derived classes in the same file."""
        if function.owner is None:
            return []
        place = f"class {function.module.file} {function.owner.name}"
        if place in self.shared:
            return self.shared[place]
        own = function.module.namespace.get(function.owner.name)
        related = {function.owner.name}
        for name, value in function.module.namespace.items():
            if isinstance(own, type) and isinstance(value, type) and (own in value.__mro__ or value in own.__mro__):
                related.add(name)
        own_module = (one for one in self.functions if one.owner is not None and one.module is function.module)
        self.shared[place] = [one for one in own_module if one.owner is not None and one.owner.name in related]
        return self.shared[place]


def read_code(subject: Subject) -> Code:
    """Read the code of a recipe. Files that cannot be parsed are left out."""
    functions = [
        Function(name=f"{owner.name}.{node.name}" if owner else node.name, node=node, module=module, owner=owner)
        for module in map(_module, _modules(subject))
        if module is not None
        for node, owner in module.functions()
    ]
    _assign_parts(subject, functions)
    messages = {str(one.get("content") or "") for task in subject.looked_at[:64] for one in task.messages}
    return Code(functions, _values(subject, functions), sorted(messages), _fields(subject))


def _modules(subject: Subject) -> list[ModuleType]:
    found: dict[str, ModuleType] = {}
    own = [] if subject.environment_class is None else subject.own_code.modules()
    graders = [sys.modules.get(getattr(one, "__module__", None) or "") for one in (subject.reward, subject.scorer)]
    folder = str(subject.folder.resolve()) + "/"
    adjacent = [
        one for one in list(sys.modules.values()) if str(getattr(one, "__file__", None) or "").startswith(folder)
    ]
    for module in (*own, *graders, *adjacent):
        file = getattr(module, "__file__", None) or ""
        is_own = subject.environment_class is None or subject.own_code.owns(file)
        if isinstance(module, ModuleType) and file.endswith(".py") and (file.startswith(folder) or is_own):
            found.setdefault(str(Path(file).resolve()), module)
    libraries = str(Path(sparring.__file__).parent) + "/"
    return [
        module
        for file, module in found.items()
        if subject.environment_class is not None or not file.startswith(libraries)
    ][:MOST_MODULES]


def _module(module: ModuleType) -> Module | None:
    try:
        text = Path(str(module.__file__)).read_text("utf-8")
        return Module(str(module.__file__), text, ast.parse(text), vars(module))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _assign_parts(subject: Subject, functions: Sequence[Function]) -> None:
    """Follow calls by name, starting at the environment's methods, the reward and the scorer."""
    by_name: dict[str, list[Function]] = defaultdict(list)
    for one in functions:
        by_name[one.node.name].append(one)
    for one in functions:
        if one.owner is not None and one.node.name == "__init__":
            by_name[one.owner.name].append(one)
    calls = {one: {name for node in one.nodes if (name := _called(node)) in by_name and name} for one in functions}

    def reached(roots: Sequence[Function]) -> list[Function]:
        return _follow(roots, lambda one: [other for name in sorted(calls[one]) for other in by_name[name]])

    for one in reached([one for name in _name_graders(subject) for one in by_name[name]]):
        one.part = "graders"
    cls = subject.environment_class
    names = set() if cls is None else {one.__name__ for one in cls.__mro__}
    methods = [
        one for one in functions if one.owner is not None and one.owner.name in names and one.node.name != "demonstrate"
    ]
    for one in reached(methods):
        one.part = "environment"
    for one in functions:
        one.documented = ast.get_docstring(one.node) or ""
    for one in methods:
        if one.node.name in subject.tools:
            for below in reached([one]):
                if one.node.name not in below.tools:
                    below.tools += (one.node.name,)
                    if below is not one:
                        below.documented += "\n" + (ast.get_docstring(one.node) or "")


def _follow(roots: Sequence[Function], called_by: Callable[[Function], Sequence[Function]]) -> list[Function]:
    """Return the roots and all functions that they call, directly or indirectly."""
    seen, todo = dict.fromkeys(roots), list(roots)
    while todo:
        for one in called_by(todo.pop()):
            if one not in seen:
                seen[one] = None
                todo.append(one)
    return list(seen)


def _name_graders(subject: Subject) -> set[str]:
    """Return the names of the functions or classes of the reward and the scorer."""
    given = [one for one in (subject.reward, subject.scorer) if one is not None]
    names = {getattr(one, "__name__", type(one).__name__) for one in given}
    return names | {getattr(one, "__qualname__", "").partition(".")[0] for one in given}


def _called(node: ast.AST) -> str | None:
    """Return the name that a node refers to. A function may also be passed on without being called."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _fields(subject: Subject) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = defaultdict(list)
    for task in subject.looked_at:
        for key, value in task.fields.items():
            found[key].append(value)
    return found


def _values(subject: Subject, functions: Sequence[Function]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = defaultdict(list)

    def add(key: str, value: Json) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                add(str(name), inner)
        elif isinstance(value, list | tuple):
            if key in columns and all(isinstance(row, list | tuple) and len(row) == len(columns[key]) for row in value):
                for row in value:
                    for name, cell in zip(columns[key], row, strict=True):
                        add(name, cell)
            for inner in value:
                if isinstance(inner, Mapping | list | tuple):
                    add(key, inner)
                elif len(found[key]) < MOST_VALUES:
                    found[key].append(inner)
        elif isinstance(value, str) and value.count("\n") > 1 and "," in value.partition("\n")[0]:
            for row in csv.DictReader(io.StringIO(value)):
                for name, cell in row.items():
                    add(str(name), cell)
        elif len(found[key]) < MOST_VALUES:
            found[key].append(value)

    columns = dict(_columns(functions))
    read = _find_read_fields([one for one in functions if one.part == "environment"])
    for task in subject.looked_at:
        for key, value in task.fields.items():
            if read is None or key in read:
                add(key, value)
    return found


def _find_read_fields(functions: Sequence[Function]) -> set[str] | None:
    """Return the fields of the task that functions read, or None if one of them takes all fields."""
    if any(
        node.attr == "fields" and not isinstance(one.parent(node), ast.Subscript | ast.Attribute)
        for one in functions
        for node in one.every(ast.Attribute)
    ):
        return None
    return {
        key for one in functions for node in one.every(ast.Subscript, ast.Call) if (key := field_key(node)) is not None
    }


def _columns(functions: Sequence[Function]) -> Iterator[tuple[str, list[str]]]:
    """Yield the fields that the code converts to a table or to records, with the column names that it uses."""
    for function in functions:
        for call in function.every(ast.Call):
            names = next((function.constant(one.value) for one in call.keywords if one.arg == "columns"), UNKNOWN)
            key = field_key(function.origin(call.args[0])) if call.args else None
            if len(call.args) == 1 and isinstance(call.args[0], ast.Starred):
                record = function.constant(call.func)
                names = getattr(record, "_fields", None) or list(getattr(record, "__dataclass_fields__", ()))
                loop = function.parent(call)
                key = field_key(function.origin(loop.generators[0].iter)) if isinstance(loop, ast.ListComp) else None
            if isinstance(names, list | tuple) and key is not None and all(isinstance(one, str) for one in names):
                yield key, list(names)


def field_key(node: ast.AST) -> str | None:
    """Return `x` for `task.fields["x"]` and `task.fields.get("x")`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        node = ast.Subscript(value=node.func.value, slice=node.args[0], ctx=ast.Load())
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        is_fields = isinstance(node.value, ast.Attribute) and node.value.attr == "fields"
        return node.slice.value if is_fields else None
    return None
