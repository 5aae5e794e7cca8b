"""A Llama with fewer than a million random parameters, and a small subword tokenizer trained on transcripts."""

from __future__ import annotations

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return the model (fp32, with random weights from this seed) and the tokenizer (the same for every seed).

    Tiles and moves are one token each.
    """
    return small_model(
        seed,
        _texts(),
        vocabulary_size=400,
        max_token_length=24,
        width=64,
        isolated=r"\[[SFHG]\]\n?|[SFHG]\n?(?![a-z])|left|down|right|up",
    )


def _texts() -> list[str]:
    """Return the texts between the special tokens of a transcript."""
    moves = ("left", "down", "right", "up")
    calls = [f'assistant\n<tool_call>{{"name":"step","arguments":{{"action":"{move}"}}}}</tool_call>' for move in moves]
    shown = [f"tool\n  ({move.capitalize()})\n" for move in moves]
    tiles = [text for tile in "SFHG" for one in (tile, f"[{tile}]") for text in (one, f"{one}\n")]
    # Frequent enough to become tokens.
    return [*calls * 8, *shown * 8, *["user\ncross the lake\n\n"] * 8, *tiles * 50, "system\n", "error: "]
