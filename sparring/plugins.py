"""User code by `module:name`, looked up beside the recipe first."""

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
"""What the files of each recipe's folder imported from it, by plain name."""


def load_object(reference: str, *, beside: Path) -> Any:
    """What `module:name` refers to; `module` is a file beside the recipe or anything importable.

    Raises UsageError when the reference is malformed, the module is missing or raises, or has no such name.
    """
    module_name, separator, name = reference.partition(":")
    if not separator or not module_name or not name:
        raise UsageError(
            f"{reference!r} is not of the form 'module:name'; write, for example, 'environment:MyEnvironment'."
        )
    module = _load_module(module_name, beside)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [other for other in dir(found) if not other.startswith("_")], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; define it there, or correct the reference."
            raise UsageError(f"{reference!r}: {module.__file__ or module_name} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


async def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call user code, sync or async, and wait for its result.

    Raises what it raises, but RuntimeError for what would end more than the call: `sys.exit`, a cancellation that came from
    within and not from the run, and whatever else is no Exception (the panic of a library in Rust).
    """
    try:
        result = function(*arguments, **options)
        return await result if inspect.isawaitable(result) else result
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("what it waited for was cancelled") from error
    except BaseException as error:
        raise RuntimeError(f"it raised {error!r}") from error


def call_in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call sync user code in a thread that a task waits for.

    Raises what it raises, but RuntimeError for StopIteration, which no future takes: the task would wait for ever.
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError(
            "it raised StopIteration: a `next` found nothing; give it a default, or what it looks for"
        ) from error


def text_of(error: BaseException) -> str:
    """What an error of the user's says: asking it may fail, too."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (whatever it was)
        return "(an error without a text)"


def _load_module(name: str, beside: Path) -> ModuleType:
    file = beside / f"{name.replace('.', '/')}.py"
    try:
        return _load_file(name, file) if file.is_file() else importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"module {name!r} is neither {file} nor importable; check the name, or install it."
            ) from error
        raise UsageError(
            f"module {name!r} needs {error.name!r}, which is not installed; install it and try again."
        ) from error
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}. Mend it and try again."
        ) from error


def _load_file(name: str, file: Path) -> ModuleType:
    """Import a file under a name of its own, so that two recipes may both have an `environment.py`."""
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
        # One that a file beside it imports by its plain name is this one, not a second of the same file.
        is_plain = "." not in name and sys.modules.setdefault(name, module) is module
        working = os.getcwd()
        try:
            spec.loader.exec_module(module)
            if (moved := os.getcwd()) != working:
                os.chdir(working)
                raise RuntimeError(
                    f"it changes the working folder to {moved}, where runs and data would be looked for then; name files by "
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
    """Files of a recipe import each other by plain names, which mean this recipe's files and no other's of the same name.

    Gives what has been imported so. It stays importable until another recipe has a file of that name, but for names of
    Python's own library: a recipe's calendar.py is not what others mean by `calendar`.
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
            if top not in before and not top.startswith(_PREFIX) and _stands_in(folder, top, module):
                own[name] = module
                if top in sys.stdlib_module_names:
                    del sys.modules[name]


def _stands_in(folder: Path, top: str, module: ModuleType) -> bool:
    file = Path(getattr(module, "__file__", None) or "/")
    return file == folder / f"{top}.py" or file.is_relative_to(folder / top)
