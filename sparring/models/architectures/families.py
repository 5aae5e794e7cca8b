"""Define the table of model families: their forward pass, what they can share, and which layers get an adapter.

Other model types that transformers can load as a causal LM also run, with the forward pass of transformers, but no test
covers them. docs/models.md contains this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

DENSE_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a Llama-shaped layer."""

ATTENTION_TARGETS = DENSE_TARGETS[:4]
"""The linear layers of attention."""

LINEAR_ATTENTION_TARGETS = ("in_proj_qkv", "in_proj_z", "out_proj")
"""The large linear layers of a gated delta rule layer. The layers of its gates have one row per head and are not adapted."""

EXPERT_TARGETS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""The fused matrices of all experts of a layer. They are parameters, not modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models with one architecture."""

    name: str
    model_types: tuple[str, ...]
    """The values of `model_type` in the config of a model or of its text part."""
    example: str
    """A model of the family on the Hugging Face hub."""
    hub_names: str
    """A regular expression of the names on the hub, in lower case and without the owner."""
    forward: Literal["lean", "transformers"]
    """`lean` is Sparring's own forward pass. A config that it does not compute exactly, for example one with a sliding
    window, uses the library's forward pass, `transformers`."""
    shares_prefixes: bool = True
    """Whether several sequences can attend to one copy of a common prefix. A recurrent state cannot be shared in this way."""
    lora_targets: tuple[str, ...] = DENSE_TARGETS
    """The layers that get an adapter by default."""
    expert_targets: tuple[str, ...] = ()
    """The matrices of the experts that may also get an adapter."""
    chat: str
    """The chat format of the example: a format of the `renderers` library, or `template` for the tokenizer's own template."""
    tool_format: str
    """A tool call as the model writes it."""


_HERMES_CALL = '<tool_call>{"name": …, "arguments": {…}}</tool_call>'

FAMILIES = (
    Family(
        name="gpt-oss",
        model_types=("gpt_oss",),
        example="openai/gpt-oss-20b",
        hub_names=r"gpt-oss-\d+b.*",
        forward="transformers",
        lora_targets=ATTENTION_TARGETS,
        expert_targets=EXPERT_TARGETS,
        chat="gpt-oss",
        tool_format="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>",
    ),
    Family(
        name="Qwen3.6",
        model_types=("qwen3_5", "qwen3_5_text"),
        example="Qwen/Qwen3.6-27B",
        hub_names=r"qwen3\.6-\d+b(?!-a\d).*",
        forward="transformers",
        shares_prefixes=False,
        lora_targets=(*DENSE_TARGETS, *LINEAR_ATTENTION_TARGETS),
        chat="qwen3.6",
        tool_format="<tool_call><function=NAME><parameter=KEY>…</parameter></function></tool_call>",
    ),
    Family(
        name="Gemma 4",
        model_types=("gemma4", "gemma4_text"),
        example="google/gemma-4-31B-it",
        hub_names=r"gemma-4-\d+b(?!-a\d).*",
        forward="transformers",
        chat="gemma4",
        tool_format="<|tool_call>call:NAME{KEY:…}<tool_call|>",
    ),
    Family(
        name="Llama 3",
        model_types=("llama",),
        example="meta-llama/Llama-3.1-8B-Instruct",
        hub_names=r"(meta-)?llama-3(\.\d)?-\d+b(?!-vision).*",
        forward="lean",
        chat="llama-3",
        tool_format='{"name": …, "parameters": {…}}',
    ),
    Family(
        name="Qwen2.5",
        model_types=("qwen2",),
        example="Qwen/Qwen2.5-7B-Instruct",
        hub_names=r"qwen2\.5-(coder-|math-)?\d+(\.\d+)?b.*",
        forward="lean",
        chat="template",
        tool_format=_HERMES_CALL,
    ),
    Family(
        name="Qwen3",
        model_types=("qwen3",),
        example="Qwen/Qwen3-8B",
        hub_names=r"qwen3-\d+(\.\d+)?b(?!-a\d).*",
        forward="lean",
        chat="qwen3",
        tool_format=_HERMES_CALL,
    ),
    Family(
        name="Qwen3 MoE",
        model_types=("qwen3_moe",),
        example="Qwen/Qwen3-30B-A3B",
        hub_names=r"qwen3-\d+b-a\d+b.*",
        forward="transformers",
        lora_targets=ATTENTION_TARGETS,
        expert_targets=EXPERT_TARGETS,
        chat="qwen3",
        tool_format=_HERMES_CALL,
    ),
    Family(
        name="Mistral",
        model_types=("mistral",),
        example="mistralai/Mistral-7B-Instruct-v0.3",
        hub_names=r"mistral-(7b|nemo)-.*",
        forward="lean",
        chat="template",
        tool_format='[TOOL_CALLS] [{"name": …, "arguments": {…}, "id": …}]',
    ),
    Family(
        name="Gemma 3",
        model_types=("gemma3", "gemma3_text"),
        example="google/gemma-3-4b-it",
        hub_names=r"gemma-3-\d+(b|m).*",
        forward="transformers",
        chat="template",
        tool_format=_HERMES_CALL,
    ),
    Family(
        name="SmolLM3",
        model_types=("smollm3",),
        example="HuggingFaceTB/SmolLM3-3B",
        hub_names=r"smollm3-\d+b.*",
        forward="transformers",
        chat="template",
        tool_format=_HERMES_CALL,
    ),
)


def find_family(config: Any) -> Family | None:
    """Return the family of a transformers config, or None if the table does not contain it."""
    return next((family for family in FAMILIES if config.model_type in family.model_types), None)


def choose_lora_targets(config: Any) -> tuple[str, ...]:
    """Return the layers of a model that get an adapter by default."""
    family = find_family(config)
    return DENSE_TARGETS if family is None else family.lora_targets
