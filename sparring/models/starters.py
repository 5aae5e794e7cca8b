"""Provide the settings of a first recipe for a model, and the source of each number."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sparring.errors import UsageError
from sparring.models.architectures.families import DENSE_TARGETS, FAMILIES, Family
from sparring.runtime.json_values import parse_json

NAMES = {
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "qwen3.6-27b": "Qwen/Qwen3.6-27B",
    "gemma-4-31b": "google/gemma-4-31B-it",
    **{f"qwen3-{size.lower()}": f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")},
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    **{
        f"qwen2.5-{size.lower()}": f"Qwen/Qwen2.5-{size}-Instruct"
        for size in ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B")
    },
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.3-70b": "meta-llama/Llama-3.3-70B-Instruct",
    "mistral-7b": "mistralai/Mistral-7B-Instruct-v0.3",
    "mistral-nemo": "mistralai/Mistral-Nemo-Instruct-2407",
    **{f"gemma-3-{size}": f"google/gemma-3-{size}-it" for size in ("270m", "1b", "4b", "12b", "27b")},
    "smollm3-3b": "HuggingFaceTB/SmolLM3-3B",
}
"""The names on the Hugging Face hub, keyed by short name."""
LEARNING_RATES = {"gpt-oss": 1e-5, "Gemma 4": 1e-5, "Qwen3.6": 4e-5}
_AWS = "AWS documentation"
_HEAD = """# A first recipe for {model}. `sparring plan` shows whether it fits a device.
# "AWS documentation" is the page model-customize-mtrl-hyperparams of the Amazon SageMaker AI developer guide.
# Numbers without a source belong to the example environment, not to the model.

"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """The settings of a first recipe that depend on the model."""

    model: str
    """The model's name on the hub, or its folder."""
    family: Family | None
    """The model's family; None if docs/models.md does not list it."""

    def sections(self) -> dict[str, str]:
        """Return the sections of a recipe that depend on the model, as TOML with a comment for each number."""
        targets = json.dumps(list(DENSE_TARGETS if self.family is None else self.family.lora_targets))
        rate = LEARNING_RATES.get(self.family.name, 4e-5) if self.family is not None else 4e-5
        is_own = self.family is not None and self.family.name in LEARNING_RATES
        source = "recipe of AWS for this model" if is_own else f"{_AWS}, for open models"
        return {
            "model": f"name = {json.dumps(self.model)}\n{self._formats()}"
            f"max_sequence_length = 8192 # as in docs/planning.md; the recipes of AWS have 65536\n"
            f"lora_rank = 32 # {_AWS}\n"
            f"lora_alpha = 64 # {_AWS}\n"
            f"lora_targets = {targets} # as trained in tests/models/architectures (docs/models.md)\n",
            "batch": f"global_batch_size = 32 # {_AWS}: 32 to screen, 128 in production\ngroup_size = 8 # {_AWS}\n",
            "sampling": "sampling_max_tokens = 1024 # 5 turns and the prompt fit 8192, as the AWS documentation advises\n",
            "optimizer": f"learning_rate = {rate:g} # {source}\n"
            "max_tokens_per_microbatch = 8192 # one episode of maximum length; `sparring plan` shows what else fits\n",
            "schedule": f"max_steps = 50 # {_AWS}: 50 to screen, 100 in production\n"
            "max_epochs = 50 # the few tasks of this recipe nearly all fit into one step; use 1 with your own tasks\n"
            f"val_every = 10 # {_AWS}\n",
        }

    def _formats(self) -> str:
        if self.family is None:
            return ""
        return f"# Chat format: {self.family.chat}. A tool call: {self.family.tool_format}\n"


def find_starter(name: str) -> Starter:
    """Return the starter for a short name, a name on the hub, or a folder. Raises UsageError for an unknown name."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return Starter(model=str(folder.resolve()), family=_family_of(_model_type(folder / "config.json")))
    model = NAMES.get(name.lower(), name)
    if "/" not in model or model.startswith((".", "/", "~")):
        raise UsageError(
            f"{name!r} is neither a folder with a model nor a known name; give OWNER/NAME of the Hugging Face hub, or one of "
            f"{', '.join(NAMES)}."
        )
    return Starter(model=model, family=_family_named(model))


def fill_in(recipe: str, starter: Starter) -> str:
    """Return a recipe with the sections of a starter in place of its own sections.

    The warm start is left out, because a model of this size does not need one.
    """
    rest = re.split(r"(?m)^(?=\[)", recipe)[1:]
    values = starter.sections()
    made = [_HEAD.format(model=starter.model)]
    for text in rest:
        name = text[1 : text.index("]")]
        if name == "warm_start":
            continue
        if name in values:
            text = f"[{name}]\n{values[name]}\n"
        made.append(re.sub(r"(?m)^allow_zero_baseline.*\n?", "", text))
    return "".join(made)


def _model_type(path: Path) -> str:
    try:
        return str(parse_json(path.read_text("utf-8"))["model_type"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error!r}; give the folder of a model.") from error


def _family_of(model_type: str) -> Family | None:
    return next((one for one in FAMILIES if model_type in one.model_types), None)


def _family_named(model: str) -> Family | None:
    """Return the family of a model on the hub, found by the model's name."""
    name = model.rpartition("/")[2].lower()
    return next((one for one in FAMILIES if re.fullmatch(one.hub_names, name)), None)
