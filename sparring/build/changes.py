"""What a run is trained with, by content, and what of it is another than when the run was trained last."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence

from sparring.build.run import Parts
from sparring.chat import inconsistency
from sparring.config import Config
from sparring.errors import UsageError
from sparring.tracking import RunFolder
from sparring.tracking.encode import encode
from sparring.tracking.run_folder import machine
from sparring.types import Json, Task

PARTS = ("model", "tokenizer", "template", "data", "recipe")
"""What a resumed run must find as it was."""

_PART_OF = {"config": "recipe", "files": "recipe"}
"""By the first word of a key path, where the part is called otherwise."""
_UNCOMPARED = frozenset({"run.name", "run.runs_dir", "run.num_threads"})
"""Settings that say where a run is kept; the number of threads is compared as it came out."""
_BITS = ("versions", "hardware.processor", "hardware.num_threads", "hardware.device")
"""What changes no meaning, but maybe the last bits of a sum."""
_OTHER_FILES = "other_files"
"""What the recipe's code may read, and may write while it is trained, a database say: a change is reported and not refused."""
_PROBES = (
    "The quick brown fox doesn't jump over 13 lazy dogs; it's 2,048.5 km to Zürich.",
    'def f(x: int) -> str:\n    return f"{x!r}"\t# {"key": [1, -2.5e10, null]}\r\n\n\n   <tag/>',
    "Größe — naïve “quotes” 東京で 한국어 русский עברית 🙂👩‍👩‍👧",
)
"""Texts that tell tokenizers apart which have the same vocabulary: merges, digits, white space, other scripts."""


def compared(
    parts: Parts,
    folder: RunFolder,
    config: Config,
    *,
    resume: bool,
    given: Sequence[str] = (),
    allowed: Collection[str] = (),
) -> list[str]:
    """Keep in a run's manifest what it is trained with from now on; of one that is resumed, hold that against what it was
    trained with last, and return what a person should know, in sentences.

    `config` are the settings in effect and `given` those of them that were asked for just now (`KEY=VALUE`). Raises UsageError
    for what has changed and is neither given nor of a part in `allowed`.
    """
    check_parts(allowed)
    now = made_of(parts, folder, config)
    before = folder.manifest()
    different = changes(before, now) if resume and "contents" in before else {}
    asked = {change.partition("=")[0].strip() for change in given} | set(_different(folder.config(), config))
    refused = {
        key: values for key, values in different.items()
        if (part := part_of(key)) in PARTS and part not in allowed and not _is_of(key.removeprefix("config."), asked)
    }  # fmt: skip
    if refused:
        names = sorted({part_of(key) for key in refused}, key=PARTS.index)
        raise UsageError(
            f"{folder.path} would go on with other things than it was trained with: {_said(refused)}. What it has learned and "
            f"its curve would be about both at once. Restore them{_as_they_were(refused)}, or go on all the same with "
            f"--allow-changed {','.join(names)}."
        )
    folder.record_training(now, different)
    bits = {key: values for key, values in different.items() if key.startswith(_BITS)}
    rest = {key: values for key, values in different.items() if key not in bits}
    problem = now["template_problem"]
    return [
        *(
            [f"the chat template contradicts itself: {problem}. Give the model the one it was trained with."]
            if problem
            else []
        ),
        *([f"the run goes on with changes: {_said(rest)}."] if rest else []),
        *([f"{_said(bits)}: the run goes on, but not bit for bit as it would have."] if bits else []),
    ]


def check_parts(named: Collection[str]) -> None:
    """Raises UsageError for what is none of PARTS."""
    for name in named:
        if name not in PARTS:
            near = difflib.get_close_matches(name, PARTS, n=1)
            raise UsageError(
                f"--allow-changed {name!r} names nothing that is compared{f'; did you mean {near[0]!r}?' if near else '.'} Name "
                f"any of {', '.join(PARTS)}, separated by commas."
            )


def made_of(parts: Parts, folder: RunFolder, config: Config) -> dict[str, Json]:
    """What goes into the manifest when a training begins: `versions`, `hardware`, `config`, hashes as `contents`, and
    what is wrong with the chat template as `template_problem`.

    Of the weights it is the content as loaded, a second or two a gigabyte; of the tokenizer, the text of every id and how it
    encodes a few texts; of the data, the tasks in their order.
    """
    found = machine()
    found["hardware"] |= {"num_threads": parts.num_threads, "device": str(parts.policy.device)}
    tokenizer = parts.policy.tokenizer
    encoded = [list(tokenizer.encode(text, add_special_tokens=False)) for text in _PROBES]
    reads = [parts.policy.vocabulary(), sorted(tokenizer.all_special_ids), tokenizer.eos_token_id, encoded]
    files = folder.files()
    splits = {"train": parts.tasks.train, "validation": parts.tasks.validation, "held_out": parts.tasks.held_out}
    contents = {
        "model": parts.policy.base_fingerprint(parts.initial_weights),
        "tokenizer": _sha256(encode(reads)),
        "template": _sha256(encode([type(parts.chat).__name__, str(tokenizer.chat_template)])),
        "data": {split: _tasks(tasks) for split, tasks in splits.items()},
        "files": {name: digest for name, digest in files.items() if _is_code(name)},
        _OTHER_FILES: {name: digest for name, digest in files.items() if not _is_code(name)},
    }
    return {
        **found, "config": config.model_dump(mode="json"), "contents": contents, "template_problem": inconsistency(tokenizer),
    }  # fmt: skip


def changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> dict[str, tuple[Json, Json]]:
    """What differs between two results of `made_of`, by key path: (before, now), None for what is only in the other."""
    old, new = _flat(before), _flat(now)
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    # A setting that one of them lacks is one that another version of Sparring does not have.
    return {
        key: (old.get(key), new.get(key)) for key in keys if not key.startswith("config.") or {key} <= {*old} & {*new}
    }


def part_of(key: str) -> str:
    """Which of PARTS a key path of `changes` belongs to, else its first word."""
    first = key.partition(".")[0]
    return _PART_OF.get(first, first)


def _flat(made: Mapping[str, Json]) -> dict[str, Json]:
    contents = made["contents"]
    flat = {name: contents.get(name) for name in ("model", "tokenizer", "template")}
    flat |= {
        f"{part}.{name}": content
        for part in ("data", "files", _OTHER_FILES)
        for name, content in contents.get(part, {}).items()
    }
    flat |= {f"config.{key}": value for key, value in _settings(made["config"]).items()}
    flat |= {f"{room}.{name}": value for room in ("versions", "hardware") for name, value in made[room].items()}
    return {
        key: value for key, value in flat.items() if part_of(key) in (*PARTS, _OTHER_FILES) or key.startswith(_BITS)
    }


def _settings(config: Mapping[str, Json]) -> dict[str, Json]:
    flat = {
        f"{section}.{key}": value
        for section, values in config.items() if isinstance(values, dict) for key, value in values.items()
    }  # fmt: skip
    return {key: value for key, value in flat.items() if key not in _UNCOMPARED}


def _different(one: Config, other: Config) -> set[str]:
    first, second = (_settings(config.model_dump(mode="json")) for config in (one, other))
    return {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


def _is_of(key: str, asked: Collection[str]) -> bool:
    return any(key == one or one.startswith(f"{key}.") or key.startswith(f"{one}.") for one in asked)


def _is_code(name: str) -> bool:
    return name.endswith(".py") or name.startswith("fixtures/")


def _tasks(tasks: Sequence[Task]) -> dict[str, Json]:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(encode([task.id, task.messages, task.fields, task.seed]))
    return {"tasks": len(tasks), "sha256": digest.hexdigest()}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _said(different: Mapping[str, tuple[Json, Json]]) -> str:
    shown = [f"{_named(key)} was {_shown(old)}, is {_shown(new)}" for key, (old, new) in list(different.items())[:6]]
    return "; ".join(shown) + (f"; and {len(different) - 6} more" if len(different) > 6 else "")


def _named(key: str) -> str:
    for prefix in ("config.", "files.", f"{_OTHER_FILES}.", "versions.", "hardware."):
        key = key.removeprefix(prefix)
    return key


def _shown(value: Json) -> str:
    if isinstance(value, dict) and set(value) == {"tasks", "sha256"}:
        return f"{value['tasks']} tasks ({value['sha256'][:12]})"
    is_hash = isinstance(value, str) and len(value) in (32, 64) and set(value) <= set("0123456789abcdef")
    return "absent" if value is None else f"{value[:12]}..." if is_hash else repr(value)


def _as_they_were(refused: Mapping[str, tuple[Json, Json]]) -> str:
    """How to give the first settings as they were."""
    old = [f"{_named(key)}={json.dumps(values[0])}" for key, values in refused.items() if key.startswith("config.")]
    return f" (add {' '.join(old[:3])})" if old else ""
