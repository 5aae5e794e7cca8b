"""The checkpoints of a server, in one folder: `RUN/KIND/NAME/`, which clients call `tinker://RUN/KIND/NAME`.

A checkpoint is written as those of runs are, so that a half-written one is never read. `weights` has the adapter and the
state of its optimizer; `sampler_weights` and `external_weights` have the adapter in PEFT's format.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, final, get_args

from sparring.errors import DataError, DiskError
from sparring.models.adapter_files import AdapterShape, write_adapter
from sparring.models.policy import fingerprint
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import create_folder, write_private
from sparring.serving.tinker.base import ALPHA, Adapter
from sparring.serving.tinker.refusal import Refusal
from sparring.serving.tinker.requests import NAME, LoraConfig
from sparring.training import checkpoint_files
from sparring.training.checkpoints import read_tensors
from sparring.training.state import AdamWState
from sparring.types import Json, Weights

Kind: TypeAlias = Literal["weights", "sampler_weights", "external_weights"]
TYPES: Final[dict[Kind, str]] = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
RUN: Final = r"[0-9a-f-]{36}:train:\d{1,9}"
_ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a checkpoint."""

    run_id: str
    kind: Kind
    name: str

    @classmethod
    def read(cls, path: str) -> Address:
        """Read `tinker://RUN/KIND/NAME`. Raises Refusal."""
        run_id, *rest = path.removeprefix("tinker://").split("/")
        if not path.startswith("tinker://") or len(rest) != 2:
            raise Refusal(f"path: {path!r} is not of the form tinker://RUN/KIND/NAME.")
        return cls.of(run_id, "/".join(rest))

    @classmethod
    def of(cls, run_id: str, checkpoint_id: str) -> Address:
        """Return the address of `KIND/NAME`. Raises Refusal."""
        kind, _, name = checkpoint_id.partition("/")
        if not re.fullmatch(RUN, run_id) or kind not in get_args(Kind) or not re.match(NAME, name):
            raise Refusal(f"path: there is no checkpoint tinker://{run_id}/{checkpoint_id}.", 404)
        return cls(run_id, cast(Kind, kind), name)

    @property
    def path(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"


@final
class Checkpoints:
    """The folder of checkpoints."""

    def __init__(self, folder: Path) -> None:
        """Raises DiskError if the folder cannot be created."""
        try:
            create_folder(folder, parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(f"checkpoints cannot be written to {folder}: {error}. Choose another folder.") from error
        self._folder = folder

    def find(self, address: Address) -> Path:
        return self._folder / address.run_id.replace(":", "_") / address.kind / address.name

    def write_state(self, address: Address, state: AdamWState, content: dict[str, Json], *, replaces: bool) -> None:
        """Write a state with which training can continue. Raises DataError if the name is taken, and DiskError."""
        self._write(address, state.write, content, replaces=replaces)

    def write_adapter(self, address: Address, adapter: Adapter, content: dict[str, Json], *, replaces: bool) -> None:
        """Write an adapter in PEFT's format. Raises DataError if the name is taken, and DiskError."""

        def fill(folder: Path) -> None:
            write_adapter(adapter.weights, AdapterShape(rank=adapter.lora.rank, alpha=ALPHA), folder / "adapter")
            for file in (folder / "adapter").iterdir():
                file.rename(folder / file.name)
            (folder / "adapter").rmdir()
            config = folder / "adapter_config.json"
            named = parse_json(config.read_text("utf-8")) | {"base_model_name_or_path": content["base_model"]}
            config.write_text(json.dumps(named, indent=2), "utf-8")

        self._write(address, fill, content, replaces=replaces)

    def _write(
        self, address: Address, fill: Callable[[Path], None], content: dict[str, Json], *, replaces: bool
    ) -> None:
        target = self.find(address)
        if target.exists() and not replaces:
            raise DataError(f"{address.path} exists already; choose another name, or save with overwrite=True.")

        def fill_all(folder: Path) -> None:
            fill(folder)
            whole = {**content, "path": address.path, "time": datetime.now(UTC).isoformat()}
            write_private(folder / "state.json", json.dumps(whole, indent=1))

        try:
            create_folder(target.parent, parents=True, exist_ok=True)
            checkpoint_files.write(target.parent, target.name, fill_all)
        except OSError as error:
            raise DiskError(f"{address.path} could not be written: {error}. Free up space on that disk.") from error

    def read_content(self, address: Address) -> dict[str, Any]:
        """Return what was written about a checkpoint. Raises Refusal 404 if there is none, and DataError if it is damaged."""
        folder = self.find(address)
        if not folder.is_dir():
            raise Refusal(f"path: there is no checkpoint {address.path} on this server.", 404)
        checkpoint_files.verify(folder)
        return parse_json((folder / "state.json").read_text("utf-8"))

    def read_adapter(self, address: Address) -> Adapter:
        """Return the adapter of a checkpoint of any kind. Raises Refusal and DataError."""
        lora = LoraConfig.model_validate(self.read_content(address)["lora_config"])
        if address.kind == "weights":
            tensors = read_tensors(self.find(address) / "weights.safetensors")
        else:
            named = read_tensors(self.find(address) / "adapter_model.safetensors").items()
            tensors = {name.removesuffix(".weight") + ".default.weight": tensor for name, tensor in named}
        return Adapter(lora=lora, weights=Weights(tensors=tensors, fingerprint=fingerprint(tensors)))

    def delete(self, address: Address) -> None:
        """Raises Refusal 404 if there is no such checkpoint."""
        self.read_content(address)
        shutil.rmtree(self.find(address))

    def list_all(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """Return the content of all checkpoints, or of those of one run, oldest first. Damaged ones are left out."""
        found = []
        for path in sorted(self._folder.glob("*/*/*/state.json")):
            try:
                address = Address.read(parse_json(path.read_text("utf-8"))["path"])
                if run_id in (None, address.run_id):
                    found.append(self.read_content(address))
            except (Refusal, DataError, ValueError, KeyError):
                continue
        return sorted(found, key=lambda content: content["time"])

    def list_files(self, address: Address) -> list[Path]:
        """Return the files of an adapter in PEFT's format. Raises Refusal for other checkpoints."""
        self.read_content(address)
        if address.kind == "weights":
            raise Refusal(
                f"{address.path} is a state for training; save one with save_weights_external to download it."
            )
        return [self.find(address) / name for name in _ADAPTER_FILES]

    def pack(self, address: Address) -> bytes:
        """Return a tar archive of an adapter in PEFT's format. Raises Refusal."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for file in self.list_files(address):
                tar.add(file, file.name)
        return archive.getvalue()


def describe(content: dict[str, Any]) -> dict[str, Json]:
    """Return a checkpoint as clients list it."""
    address = Address.read(content["path"])
    return {
        "checkpoint_id": f"{address.kind}/{address.name}",
        "checkpoint_type": TYPES[address.kind],
        "time": content["time"],
        "tinker_path": address.path,
        "public": False,
        "user_metadata": content.get("user_metadata"),
    }
