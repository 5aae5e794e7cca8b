"""Write the model card of an exported policy: its origin, its evaluation, and how to load it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparring.models.adapter_files import VLLM_RANKS
from sparring.models.export_files import ADAPTER, GGUF, GGUF_FILE, MANIFEST, MERGED

RECIPE_FILE = "recipe.toml"
HUB = "the Hugging Face hub"


def model_card(manifest: Mapping[str, Any]) -> str:
    """Return the README in Markdown, with the fields that the hub reads. `manifest` is the content of `sparring.json`."""
    base, kind = manifest["base"], manifest["kind"]
    described = {ADAPTER: "A LoRA adapter", MERGED: "A merged model", GGUF: "A GGUF file of the merged model"}[kind]
    lines = [
        "---", *_hub_fields(manifest), "---", "",
        f"# {Path(manifest['run']).name}, step {manifest['step']}", "",
        f"{described}, trained by reinforcement learning with Sparring.", "",
        "| | |", "| --- | --- |",
        f"| run | `{Path(manifest['run']).name}`, seed {manifest['seed']} |",
        f"| recipe | [`{RECIPE_FILE}`]({RECIPE_FILE}): every setting of the run |",
        f"| manifest | [`{MANIFEST}`]({MANIFEST}): versions, hashes of the files and of the run's own manifest |",
        f"| checkpoint | `{manifest['checkpoint']}` (step {manifest['step']}) |",
        f"| policy fingerprint | `{manifest['fingerprint']}` |",
        f"| base model | `{_base_name(base)}` ({base['source']}) |",
        f"| base model fingerprint | `{base['fingerprint']}` |",
        f"| license | {_license(manifest)} |", "",
        "## Evaluation", "", *_verdict(manifest["verdict"]), *_evaluation(manifest["evaluations"]), "",
        "## Loading", "", *_LOADING[kind](manifest), "",
        "Check the files:", "", "```sh", "sparring verify .", "```",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _hub_fields(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the YAML fields that the hub reads (https://huggingface.co/docs/hub/model-cards)."""
    base, kind = manifest["base"], manifest["kind"]
    if manifest["license"]:
        yield f"license: {json.dumps(manifest['license'])}"
    if kind != GGUF:
        yield f"library_name: {'peft' if kind == ADAPTER else 'transformers'}"
    if base["source"] == HUB:
        yield f"base_model: {base['name']}"
        yield f"base_model_relation: {'adapter' if kind == ADAPTER else 'finetune'}"
    yield "pipeline_tag: text-generation"
    yield f"tags: [sparring, reinforcement-learning{', gguf' if kind == GGUF else ''}]"


def _base_name(base: Mapping[str, Any]) -> str:
    return base["name"] if base["source"] == HUB or ":" in base["name"] else Path(base["name"]).name


def _license(manifest: Mapping[str, Any]) -> str:
    given = manifest["license"]
    if given:
        return f"{' '.join(given.split())}{', as the base model' if given == manifest['base'].get('license') else ''}"
    return (
        "not stated; the license of the base model applies to what is derived from it (`sparring export --license ID`)"
    )


def _verdict(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield the claim of the run and the table of the policies that it compares, if it is about these weights."""
    if not verdict["is_about_these_weights"]:
        yield from ("The verdict on the run is not about these weights, so nothing is claimed about them.", "")
        return
    yield from (f"**{verdict['claim']}**", "")
    if verdict["limits"]:
        yield from (*(f"- {limit}" for limit in verdict["limits"]), "")
    strongest = {
        one["control"] for one in verdict["against"] if one["difference"] == verdict["against"][0]["difference"]
    }
    yield "| policy | split | temperature | tasks | success (95 %) | score (95 %) |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in verdict["policies"]:
        name = f"**{row['name']}**" if row is verdict["policies"][-1] else row["name"]
        note = " (strongest control)" if row["name"] in strongest else ""
        size = f"{row['tasks']} x {row['group_size']}"
        yield f"| {name}{note} | {row['split']} | {row['temperature']} | {size} | {_intervals(row)} |"
    yield ""


def _evaluation(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of all evaluations of these weights."""
    if not rows:
        yield "These weights were not evaluated in their run."
        return
    yield from ("All evaluations of these weights:", "")
    yield "| file | split | temperature | tasks | success (95 %) | score (95 %) | scorer |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        scorer = row["scorer"] or "the training reward itself"
        place = f"`{row['file']}` | {row['split']} | {row['temperature']} | {row['tasks']}"
        yield f"| {place} | {_intervals(row)} | {scorer} |"


def _intervals(row: Mapping[str, Any]) -> str:
    return f"{_interval(row['success'])} | {_interval(row['score'])}"


def _interval(value: Mapping[str, float | None] | None) -> str:
    if value is None or value["mean"] is None:
        return "none"
    return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def _load_adapter(manifest: Mapping[str, Any]) -> Iterator[str]:
    base, rank = manifest["base"], manifest["lora_rank"]
    fitting = next((one for one in VLLM_RANKS if one >= rank), rank)
    yield from ("In this folder:", "", "```python", "from peft import PeftModel")
    yield from ("from transformers import AutoModelForCausalLM, AutoTokenizer", "")
    yield from (
        f"base = AutoModelForCausalLM.from_pretrained({base['path']!r})",
        'model = PeftModel.from_pretrained(base, ".")',
        'tokenizer = AutoTokenizer.from_pretrained(".")',
        "```",
        "",
        "With vLLM, the adapter is the model `policy`; with Sparring, the server uses the chat format of the training:",
        "",
        "```sh",
        f"vllm serve {base['path']} --enable-lora --lora-modules policy=. --max-lora-rank {fitting}",
        "sparring serve .",
        "```",
    )
    if (command := base.get("command")) is not None:
        yield from (
            "",
            "The path of the base model is valid on the machine that exported it. On another machine, the following command",
            "prints the path. It first downloads and converts the model if this is needed:",
            "",
            "```sh",
            str(command),
            "```",
        )


def _load_merged(_: Mapping[str, Any]) -> Iterator[str]:
    yield from ("In this folder:", "", "```python")
    yield from (
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained(".")',
        'tokenizer = AutoTokenizer.from_pretrained(".")',
        "```",
        "",
        "As an OpenAI endpoint with vLLM, or with Sparring in the chat format of the training:",
        "",
        "```sh",
        "vllm serve . --served-model-name policy",
        "sparring serve .",
        "```",
    )


def _load_gguf(_: Mapping[str, Any]) -> Iterator[str]:
    yield from ("In this folder, with llama.cpp, llama-cpp-python or Ollama:", "", "```sh")
    yield from (
        f"llama-server -m {GGUF_FILE} --jinja",
        "ollama create policy -f Modelfile",
        "```",
        "",
        "```python",
        "from llama_cpp import Llama",
        "",
        f'model = Llama("{GGUF_FILE}")',
        "```",
        "",
        "A recipe whose tools are described in the system prompt needs the same description there, in the same words;",
        "the run's `trajectories` show it.",
    )


_LOADING = {ADAPTER: _load_adapter, MERGED: _load_merged, GGUF: _load_gguf}
