"""Describe the content of the parts that a run uses, and find the changes since the last training."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence

from sparring.assembly.run import TrainingParts
from sparring.chat import inconsistency
from sparring.config import Config, places_of, settings_of
from sparring.errors import UsageError
from sparring.run_folders import RunFolder
from sparring.run_folders.encode import encode
from sparring.run_folders.run_folder import describe_machine
from sparring.types import Json, Task

PARTS = ("model", "tokenizer", "template", "data", "recipe")
"""The parts that must be unchanged when a run is resumed."""

_PART_OF = {"config": "recipe", "files": "recipe"}
"""Maps the first component of a key path to its part, if the part has a different name."""
NOT_OF_CONTROL = ("warm_start.control_steps", "evaluation", "schedule", "detectors", "tracking", "data.held_out")
"""Settings and data that do not affect the control of a run, or that only determine how the control is chosen."""
_BITS = (
    "versions",
    "hardware.processor",
    "hardware.num_threads",
    "hardware.device",
    "places.engine",
    "places.optimizer",
)
"""The keys whose changes may affect only the last bits of a sum."""
_IN_EFFECT = frozenset({"run.num_threads", "model.device"})
"""Keys of a place file that are not compared as settings, because `hardware` contains the values in effect."""
_OTHER_FILES = "other_files"
"""Files that the recipe's code may read and write during training, such as a database. Changes are reported, not refused."""
_PROBES = (
    "The quick brown fox doesn't jump over 13 lazy dogs; it's 2,048.5 km to Zürich.",
    'def f(x: int) -> str:\n    return f"{x!r}"\t# {"key": [1, -2.5e10, null]}\r\n\n\n   <tag/>',
    "Größe — naïve “quotes” 東京で 한국어 русский עברית 🙂👩‍👩‍👧",
)
"""Texts that distinguish tokenizers with the same vocabulary: merges, digits, whitespace, other scripts."""


def record_parts(
    parts: TrainingParts,
    folder: RunFolder,
    config: Config,
    *,
    resume: bool,
    given: Sequence[str] = (),
    allowed: Collection[str] = (),
) -> list[str]:
    """Record in the manifest of a run the parts that the run uses from now on.

    For a resumed run, compare them with the parts of its last training, and return a message for each kind of change
    that the user should know. `config` contains the settings in effect, and `given` contains the settings that the user
    has just set (`KEY=VALUE`). Raises UsageError for changes that are neither in `given` nor in one of the `allowed`
    parts.
    """
    check_parts(allowed)
    now = describe_parts(parts, folder, config)
    different = _since_training(folder, now) if resume else {}
    asked = {change.partition("=")[0].strip() for change in given} | set(find_overrides(folder.config(), config))
    refused = {
        key: values
        for key, values in different.items()
        if (part := find_part(key)) in PARTS and part not in allowed and not _is_of(key.removeprefix("config."), asked)
    }
    if refused:
        names = sorted({find_part(key) for key in refused}, key=PARTS.index)
        raise UsageError(
            f"{folder.path} would continue with different parts than it was trained with: {_describe_changes(refused)}. "
            f"The policy and the curves would mix both. "
            f"Restore the old parts{_as_they_were(refused)}, or continue anyway with --allow-changed {','.join(names)}."
        )
    folder.record_training(now, different)
    bits = {key: values for key, values in different.items() if key.startswith(_BITS)}
    rest = {key: values for key, values in different.items() if key not in bits}
    problem = now["template_problem"]
    return [
        *(
            [f"the chat template contradicts itself: {problem}. Use the template that the model was trained with."]
            if problem
            else []
        ),
        *([f"the run continues with changes: {_describe_changes(rest)}."] if rest else []),
        *(
            [f"{_describe_changes(bits)}: the run continues, but its results may differ in the last bits."]
            if bits
            else []
        ),
    ]


def refuse_another_control(parts: TrainingParts, folder: RunFolder, config: Config) -> None:
    """Raise UsageError if a part that affects the warm start has changed since the run's training.

    These parts are model, tokenizer, template, data, code and settings. If the warm start continued with different
    parts, it would not be a control for this training.
    """
    different = _since_training(folder, describe_parts(parts, folder, config))
    refused = {
        key: values
        for key, values in different.items()
        if find_part(key) in PARTS and not _is_of(key.removeprefix("config."), NOT_OF_CONTROL)
    }
    if refused:
        raise UsageError(
            f"{folder.path} has changed since its training: {_describe_changes(refused)}. "
            "A warm start that continues with these changes would not be a control for the trained policy. Restore the old "
            "parts, or leave the override out. Only --steps and warm_start.control_steps may change."
        )


def _since_training(folder: RunFolder, now: Mapping[str, Json]) -> dict[str, tuple[Json, Json]]:
    """Return the changes since the run's last training. There are none if nothing was trained, or if a different
    version of Sparring was used.
    """
    before = folder.manifest()
    return list_changes(before, now) if "contents" in before else {}


def check_parts(named: Collection[str]) -> None:
    """Raise UsageError if a name is not in PARTS."""
    for name in named:
        if name not in PARTS:
            near = difflib.get_close_matches(name, PARTS, n=1)
            raise UsageError(
                f"--allow-changed {name!r} is not a known part{f'; did you mean {near[0]!r}?' if near else '.'} Choose "
                f"from {', '.join(PARTS)}, separated by commas."
            )


def describe_parts(parts: TrainingParts, folder: RunFolder, config: Config) -> dict[str, Json]:
    """Return the description of a training for the manifest.

    It contains `versions`, `hardware`, `config`, the hashes of the parts as `contents`, and any problem of the chat
    template as `template_problem`. The hash of the weights covers their content as loaded. Computing it takes one or
    two seconds per gigabyte. The hash of the tokenizer covers the text of every token id and the encoding of a few
    texts. The hash of the data covers the tasks and their order.
    """
    found = describe_machine()
    found["hardware"] |= {"num_threads": parts.num_threads, "device": parts.model.device}
    tokenizer = parts.model.tokenizer
    encoded = [list(tokenizer.encode(text, add_special_tokens=False)) for text in _PROBES]
    reads = [parts.model.vocabulary(), sorted(tokenizer.all_special_ids), tokenizer.eos_token_id, encoded]
    files = folder.files()
    splits = {"train": parts.tasks.train, "validation": parts.tasks.validation, "held_out": parts.tasks.held_out}
    contents = {
        "model": parts.model.base_fingerprint(),
        "tokenizer": _sha256(encode(reads)),
        "template": _sha256(encode([type(parts.chat).__name__, str(tokenizer.chat_template)])),
        "data": {split: _tasks(tasks) for split, tasks in splits.items()},
        "files": {name: digest for name, digest in files.items() if _is_code(name)},
        _OTHER_FILES: {name: digest for name, digest in files.items() if not _is_code(name)},
    }
    return {
        **found,
        "config": config.model_dump(mode="json"),
        "contents": contents,
        "template_problem": inconsistency(tokenizer),
    }


def list_changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> dict[str, tuple[Json, Json]]:
    """Return the differences between two results of `describe_parts` as (before, now), keyed by key path. A missing
    value is None."""
    old, new = _flat(before), _flat(now)
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    # A setting that only one side has is from another version of Sparring.
    return {
        key: (old.get(key), new.get(key))
        for key in keys
        if not key.startswith(("config.", "places.")) or {key} <= {*old} & {*new}
    }


def find_part(key: str) -> str:
    """Return the part in PARTS that a key path of `list_changes` belongs to, or the first component of the path."""
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
    flat |= {f"config.{key}": value for key, value in settings_of(made["config"]).items()}
    flat |= {f"places.{key}": value for key, value in places_of(made["config"]).items() if key not in _IN_EFFECT}
    flat |= {f"{room}.{name}": value for room in ("versions", "hardware") for name, value in made[room].items()}
    return {
        key: value
        for key, value in flat.items()
        if find_part(key) in (*PARTS, _OTHER_FILES, "places") or key.startswith(_BITS)
    }


def find_overrides(config: Config, changed: Config) -> dict[str, Json]:
    """Return the settings of `changed` that differ from `config`, keyed by name, except settings that describe one
    machine or cluster (those of a place file)."""
    first, second = (settings_of(one.model_dump(mode="json")) for one in (config, changed))
    return {key: second.get(key) for key in sorted({*first, *second}) if first.get(key) != second.get(key)}


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


def _describe_changes(different: Mapping[str, tuple[Json, Json]]) -> str:
    shown = [f"{_named(key)} was {_shown(old)}, is {_shown(new)}" for key, (old, new) in list(different.items())[:6]]
    return "; ".join(shown) + (f"; and {len(different) - 6} more" if len(different) > 6 else "")


def _named(key: str) -> str:
    for prefix in ("config.", "places.", "files.", f"{_OTHER_FILES}.", "versions.", "hardware."):
        key = key.removeprefix(prefix)
    return key


def _shown(value: Json) -> str:
    if isinstance(value, dict) and set(value) == {"tasks", "sha256"}:
        return f"{value['tasks']} tasks ({value['sha256'][:12]})"
    is_hash = isinstance(value, str) and len(value) in (32, 64) and set(value) <= set("0123456789abcdef")
    return "absent" if value is None else f"{value[:12]}..." if is_hash else repr(value)


def _as_they_were(refused: Mapping[str, tuple[Json, Json]]) -> str:
    """Return a hint that shows how to set the first changed settings to their old values."""
    old = [f"{_named(key)}={json.dumps(values[0])}" for key, values in refused.items() if key.startswith("config.")]
    return f" (add {' '.join(old[:3])})" if old else ""
