"""Loads and calls user code that is named as `module:name`. Modules next to the recipe come first."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from sparring.errors import UsageError

Result = TypeVar("Result")

_PREFIX = "sparring_recipe_"
_importing = threading.RLock()
_plain: dict[Path, dict[str, ModuleType]] = {}
"""Modules that each recipe's files imported from their own folder, by plain name."""


def load_object(reference: str, *, folder: Path) -> Any:
    """Return the object that `module:name` refers to. `module` is a file next to the recipe or any importable module.

    Raises UsageError if the reference is malformed, if the module is missing or raises an exception, or if it lacks the
    name.
    """
    module_name, separator, name = reference.partition(":")
    if not separator or not module_name or not name:
        raise UsageError(
            f"{reference!r} does not have the form 'module:name'; write, for example, 'environment:MyEnvironment'."
        )
    module = _load_module(module_name, folder)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            near = difflib.get_close_matches(part, [other for other in dir(target) if not other.startswith("_")], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; define it there, or correct the reference."
            raise UsageError(f"{reference!r}: {module.__file__ or module_name} has no {part!r}{hint}")
        target = getattr(target, part)
    return target


async def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call user code, sync or async, and wait for its result.

    Raises the errors of the code. Raises RuntimeError instead of errors that would end more than this call: `sys.exit`,
    a cancellation that does not come from the run, and any other BaseException (a panic in a Rust library).
    """
    try:
        result = function(*arguments, **options)
        return await result if inspect.isawaitable(result) else result
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except SystemExit as error:
        raise RuntimeError(f"the code called sys.exit({error.code!r})") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("an operation that the code awaited was cancelled") from error
    except BaseException as error:
        raise RuntimeError(f"the code raised {error!r}") from error


def call_in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call sync user code in a thread that a task waits for.

    Raises the errors of the code, but RuntimeError instead of StopIteration. A future cannot store StopIteration, so
    the task would otherwise wait forever.
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError("the code raised StopIteration: a `next` had no item; give it a default value") from error


def load_function(reference: str, *parameters: str, key: str, folder: Path) -> Callable[..., Any]:
    """Load a function that will be called with these parameters. Their names are used only in error messages.

    Raises UsageError early, before any slow work, if the object is not callable or takes different arguments.
    """
    function = load_object(reference, folder=folder)
    wanted = f"({', '.join(parameters)})"
    if not callable(function):
        raise UsageError(
            f"{key} = {reference!r} is {function!r:.200}, which is not callable. Specify a function that takes {wanted}."
        )
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as error:
        name = reference.rpartition(":")[2]
        raise UsageError(
            f"{key} = {reference!r} is called with {wanted}, but is defined as {name}{inspect.signature(function)}: {error}. "
            f"Define it as {name}{wanted}."
        ) from error
    except ValueError:  # The function is a builtin without a signature.
        pass
    return function


def error_text(error: BaseException) -> str:
    """Return the text of an exception from user code. Its `str` may raise."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (any error of user code)
        return "(an error without a text)"


def _load_module(name: str, folder: Path) -> ModuleType:
    file = folder / f"{name.replace('.', '/')}.py"
    try:
        return _load_file(name, file) if file.is_file() else importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"module {name!r} is neither {file} nor importable. Check the name, or install the module."
            ) from error
        raise UsageError(
            f"module {name!r} needs {error.name!r}, which is not installed. Install it and try again."
        ) from error
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}. Fix it and try again."
        ) from error


def _load_file(name: str, file: Path) -> ModuleType:
    """Import a file under a unique name, so that two recipes may both have an `environment.py`."""
    path = file.resolve()
    unique = f"{_PREFIX}{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}_{name.replace('.', '_')}"
    with _importing, _plain_names_of(path.parent) as plain:
        if unique in sys.modules:
            return sys.modules[unique]
        if name in plain:
            return plain[name]
        spec = importlib.util.spec_from_file_location(unique, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        # A neighboring file that imports this file by its plain name gets this module rather than a second copy.
        is_plain = "." not in name and sys.modules.setdefault(name, module) is module
        working = os.getcwd()
        try:
            spec.loader.exec_module(module)
            if (moved := os.getcwd()) != working:
                os.chdir(working)
                raise RuntimeError(
                    f"it changes the working folder to {moved}, which breaks relative paths of runs and data; locate "
                    "files with "
                    "Path(__file__).parent"
                )
        except BaseException:
            del sys.modules[unique]
            if is_plain:
                del sys.modules[name]
            raise
    return module


@contextmanager
def _plain_names_of(folder: Path) -> Iterator[Mapping[str, ModuleType]]:
    """Let the files of a recipe import each other by plain names. These names refer only to files of this recipe.

    Yields the modules imported so far. They stay importable until another recipe has a file with the same name. Names
    of the standard library are an exception: a recipe's calendar.py does not replace `calendar` for other code.
    """
    own = _plain.setdefault(folder, {})
    for name, module in [pair for other, modules in _plain.items() if other != folder for pair in modules.items()]:
        top = name.partition(".")[0]
        if sys.modules.get(name) is module and ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
            del sys.modules[name]
    for name, module in own.items():
        sys.modules.setdefault(name, module)
    before = {name.partition(".")[0] for name in sys.modules} - set(own)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield own
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            top = name.partition(".")[0]
            if top not in before and not top.startswith(_PREFIX) and _is_from(folder, top, module):
                own[name] = module
                if top in sys.stdlib_module_names:
                    del sys.modules[name]


def _is_from(folder: Path, top: str, module: ModuleType) -> bool:
    file = Path(getattr(module, "__file__", None) or "/")
    return file == folder / f"{top}.py" or file.is_relative_to(folder / top)
