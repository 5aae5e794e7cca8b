"""Provides OpenAI's harmony library with the vocabulary of a gpt-oss model's tokenizer, so that the library downloads
nothing."""

from __future__ import annotations

import base64
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER_VARIABLE, FILE = "TIKTOKEN_ENCODINGS_BASE", "o200k_base.tiktoken"
"""The folder in which the library looks for a vocabulary before it downloads one. The library compares the file's hash
with the known hash."""

_lock = threading.Lock()


@contextmanager
def provide_vocabulary(tokenizer: Any) -> Iterator[None]:
    """Let the library read the tokenizer's vocabulary. If the user has set a folder, the library uses that folder."""
    with _lock:
        if os.environ.get(FOLDER_VARIABLE):
            yield
            return
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / FILE).write_bytes(encode_vocabulary(tokenizer))
            os.environ[FOLDER_VARIABLE] = folder
            try:
                yield
            finally:
                del os.environ[FOLDER_VARIABLE]


def encode_vocabulary(tokenizer: Any) -> bytes:
    """Return the vocabulary of a byte-level tokenizer without its added tokens. Each line contains the base64 encoding
    of a token's bytes, and the token's id."""
    byte_of, added = _map_letters(), tokenizer.get_added_vocab()
    ids = {index: text for text, index in tokenizer.get_vocab().items() if text not in added}
    lines = (
        base64.b64encode(bytes(byte_of[letter] for letter in ids[index])) + f" {index}\n".encode()
        for index in sorted(ids)
    )
    return b"".join(lines)


def _map_letters() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary represents. A printable byte is represented by
    itself. The other bytes are represented by the characters from code point 256 on, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
