"""A small model from scratch, which needs no download. It learns only what the log shows. Use a pretrained model for real
work."""

from demonstrations import varied

from sparring.models.small import small_model

APART = r"\d|[A-Za-z](?=\d)|(?<=\d)[A-Za-z]|(?<![a-z0-9_])[a-z](?![a-z0-9_])"
"""Digits and the letters next to them are tokens of their own, so that the model can copy an identifier that it never saw."""


def build(seed: int = 0):
    return small_model(
        seed, varied(1000, seed=0), vocabulary_size=512, max_token_length=24, isolated=APART, width=64, layers=2,
        max_positions=512,
    )  # fmt: skip
