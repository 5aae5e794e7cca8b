"""A Llama with fewer than a million random parameters, and a small subword tokenizer trained on transcripts."""

from __future__ import annotations

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the model (fp32, with random weights from this seed) and the tokenizer (the same for every seed).

    Numbers and moves are one token each.
    """
    return small_model(
        seed, _texts(), vocabulary_size=400, max_token_length=24, width=64, layers=2, isolated=r"\d+|stick|hit"
    )


def _texts() -> list[str]:
    """Return the texts between the special tokens of a transcript."""
    calls = [
        f'assistant\n<tool_call>{{"name":"step","arguments":{{"action":"{move}"}}}}</tool_call>'
        for move in ("stick", "hit")
    ]
    shown = [
        f"{role}[{sum_},10,{ace}]"
        for sum_ in range(32)
        for ace in (0, 1)
        for role in ("user\nplay blackjack\n\n", "tool\n")
    ]
    # Frequent enough to become tokens.
    return [*calls * 16, *shown, *[str(number) for number in range(10, 32)] * 50, "system\n", "error: "]
