"""The recorded shapes of the service's requests and answers, and of its SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUNTIME, CONTROL, SDK = (
    json.loads((HERE / f"{name}.json").read_text("utf-8")) for name in ("runtime", "control", "sdk")
)
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "long": int,
    "double": (int, float),
    "timestamp": datetime,
    "structure": dict,
    "map": dict,
    "list": list,
}


def check(value: Any, name: str, recorded: Mapping[str, Any], where: str = "") -> None:
    """Fail if a value does not have a recorded shape."""
    shape = recorded["shapes"][name]
    where = where or name
    if shape.get("document"):
        return
    kind = shape["type"]
    assert isinstance(value, KINDS[kind]), f"{where} is {value!r}, not a {kind}"
    assert isinstance(value, bool) == (kind == "boolean"), f"{where} is {value!r}, not a {kind}"
    if kind == "structure":
        assert set(value) <= set(shape["fields"]), f"{where} has unknown fields {set(value) - set(shape['fields'])}"
        assert set(value) >= set(shape.get("required", ())), f"{where} lacks fields: {sorted(value)}"
        assert not shape.get("union") or len(value) == 1, f"{where} must have exactly one of {sorted(shape['fields'])}"
        for field, one in value.items():
            check(one, shape["fields"][field], recorded, f"{where}.{field}")
    elif kind in ("list", "map"):
        _check_range(len(value), shape, f"the length of {where}")
        for key, one in value.items() if kind == "map" else enumerate(value):
            check(one, shape["of"], recorded, f"{where}[{key!r}]")
    elif kind == "string":
        _check_range(len(value), shape, f"the length of {where}")
        assert value in shape.get("enum", (value,)), f"{where} is {value!r}"
        assert re.fullmatch(shape.get("pattern", ".*"), value, re.DOTALL), f"{where} is {value!r}"
    elif kind in ("integer", "long", "double"):
        _check_range(value, shape, where)


def _check_range(value: float, shape: Mapping[str, Any], where: str) -> None:
    assert shape.get("min", value) <= value <= shape.get("max", value), f"{where} is {value}"


def check_passes(config: Mapping[str, Any]) -> None:
    """Fail if the data of a pass lack what its loss needs, or have something that the service rejects."""
    loss = config["lossFnName"]
    for datum in config["datumList"]:
        inputs = datum["lossFnInputs"]
        assert set(RUNTIME["loss_inputs"]["required"][loss]) <= set(inputs) <= set(RUNTIME["loss_inputs"]["accepted"])
        length = sum(len(chunk["tokens"]) for chunk in datum["modelInput"]["chunks"])
        for name, tensor in inputs.items():
            assert len(tensor["data"]) == length, f"{name} has {len(tensor['data'])} values for {length} tokens"
            assert tensor["dtype"] == ("int64" if name == "target_tokens" else "float32")
    for name, value in (config.get("lossFnConfig") or {}).items():
        least, most = RUNTIME["loss_config"][name]
        assert least <= value <= most
