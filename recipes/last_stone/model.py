"""A Llama with fewer than a million random parameters, and a small subword tokenizer trained on transcripts."""

from __future__ import annotations

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the model (fp32, with random weights from this seed) and the tokenizer (the same for every seed).

    A number is one token.
    """
    return small_model(seed, _texts(), max_token_length=16, isolated=r"\d+")


def _texts() -> list[str]:
    """Return the texts between the special tokens of a transcript."""
    calls = [f'<tool_call>{{"name":"step","arguments":{{"action":"{number}"}}}}</tool_call>' for number in (1, 2, 3)]
    spoken = [f"assistant\n{call}" for call in calls] * 8
    shown = [f"{role}{number}" for number in range(16) for role in ("user\ntake the last stone\n\n", "tool\n")]
    # Frequent enough to become tokens.
    numbers = [str(number) for number in range(10, 16)] * 50
    return [*spoken, *shown, *numbers, "system\n", "error: "]
