"""Write the README of an exported policy: its origin, its evaluation, and how to load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def model_card(manifest: Mapping[str, Any]) -> str:
    """Return the README in Markdown. `manifest` is the content of `sparring.json`."""
    base = manifest["base"]
    is_adapter = manifest["kind"] == "adapter"
    lines = [
        "---", f"library_name: {'peft' if is_adapter else 'transformers'}",
        *([f"base_model: {base['name']}"] if base["source"] == "the Hugging Face hub" else []),
        "tags: [sparring, reinforcement-learning]", "---", "",
        f"# {Path(manifest['run']).name}, step {manifest['step']}", "",
        f"{'A LoRA adapter' if is_adapter else 'A merged model'}, trained by reinforcement learning with Sparring.", "",
        "| | |", "| --- | --- |",
        f"| run | `{manifest['run']}` |",
        f"| checkpoint | `{manifest['checkpoint']}` (step {manifest['step']}) |",
        f"| policy fingerprint | `{manifest['fingerprint']}` |",
        f"| base model | `{base['name']}`, from {base['source']} |",
        f"| base model fingerprint | `{base['fingerprint']}` |", "",
        "## Evaluation", "", *_evaluation(manifest["evaluations"]), "",
        "## Loading", "", *_loading(base, is_adapter=is_adapter), "",
        "Check the files, and answer OpenAI chat requests with them:", "",
        "```sh", "sparring verify .", "sparring serve .", "```",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _evaluation(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        yield "These weights were not evaluated in their run."
        return
    yield "| file | split | temperature | tasks | success (95 %) | score (95 %) | scorer |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        scorer = row["scorer"] or "the training reward itself"
        yield (
            f"| `{row['file']}` | {row['split']} | {row['temperature']} | {row['tasks']} | {_interval(row['success'])} | "
            f"{_interval(row['score'])} | {scorer} |"
        )


def _interval(value: Mapping[str, float | None] | None) -> str:
    if value is None or value["mean"] is None:
        return "none"
    return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def _loading(base: Mapping[str, Any], *, is_adapter: bool) -> Iterator[str]:
    yield "In this folder:"
    yield ""
    if is_adapter:
        yield from (
            "```python",
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f"base = AutoModelForCausalLM.from_pretrained({base['path']!r})",
            'model = PeftModel.from_pretrained(base, ".")',
        )
    else:
        yield from (
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained(".")',
        )
    yield from ('tokenizer = AutoTokenizer.from_pretrained(".")', "```")
    if is_adapter and (command := base.get("command")) is not None:
        yield from (
            "",
            "The path of the base model is valid on the machine that exported it. On another machine, the following command",
            "prints the path. It first downloads and converts the model if this is needed:",
            "",
            "```sh",
            str(command),
            "```",
        )
