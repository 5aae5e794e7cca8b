"""A small model from scratch, which needs no download. It learns only what the log shows. Use a pretrained model for real
work."""

import json
from pathlib import Path

from sparring.models.small import small_model

HERE = Path(__file__).parent


def build(seed: int = 0):
    lines = (HERE / "demonstrations.jsonl").read_text("utf-8").splitlines()
    conversations = [json.loads(line)["messages"] for line in lines]
    return small_model(
        seed, conversations, vocabulary_size=512, max_token_length=24, width=64, layers=2, max_positions=512
    )
