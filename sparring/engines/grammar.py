"""Grammars that constrain answers: they determine which tokens may come next. This is the only module that uses
llguidance.

A constraint is compiled once and cached. Each answer then has its own guide, which needs a fraction of a millisecond
per token (https://github.com/guidance-ai/llguidance).
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from torch import Tensor

from sparring.engines.lark import check_constraint
from sparring.errors import ConstraintError
from sparring.types import Constraint

_NUM_KEPT = 64
_LIMITS = LLParserLimits(verbose_errors=False)


@final
class Guide:
    """Tracks the position of one answer in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> Tensor:
        """Return which tokens may come next, as a boolean mask [V]. Only stop ids are allowed once the grammar is
        complete.

        Raises ConstraintError if the grammar is too complex to continue.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise ConstraintError(
                f"The grammar of this answer became too complex to continue: {self._matcher.get_error()} "
                "Simplify the JSON schemas, especially long patterns."
            )
        allowed = np.zeros(self._vocab_size, dtype=np.bool_)
        known = np.unpackbits(bits, count=min(self._vocab_size, 8 * len(bits)), bitorder="little")
        allowed[: len(known)] = known
        return torch.from_numpy(allowed)

    def advance(self, token: int) -> None:
        """Advance by an allowed token."""
        self._matcher.consume_token(token)


@final
class Grammars:
    """Compiles constraints for one tokenizer. Several threads may use it."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        """Create a compiler. `tokenizer` is a fast tokenizer of the transformers library, or an object that has
        `token_bytes`. `vocab_size` is the number of logits."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._compiled = functools.lru_cache(maxsize=_NUM_KEPT)(self._compile)
        self._vocabulary = functools.lru_cache(maxsize=4)(self._read_vocabulary)

    def guide(self, constraint: Constraint, stop_ids: frozenset[int]) -> Guide:
        """Return a guide for one answer. Raises ConstraintError if the grammar is invalid or too complex."""
        check_constraint(constraint, stop_ids)
        with self._lock:
            compiled = self._compiled(constraint, stop_ids)
        return Guide(compiled.deep_copy(), self._vocab_size)

    def _compile(self, constraint: Constraint, stop_ids: frozenset[int]) -> LLMatcher:
        vocabulary = self._vocabulary(stop_ids)
        for name, schema in constraint.schemas:
            if problem := _problem({"json_schema": json.loads(schema)}):
                raise ConstraintError(f"This JSON schema is not supported: {problem}", schema=name)
        grammars: list[dict[str, Any]] = [{"lark_grammar": constraint.grammar}]
        grammars += [{"name": name, "json_schema": json.loads(schema)} for name, schema in constraint.schemas]
        matcher = LLMatcher(vocabulary, json.dumps({"grammars": grammars}), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise ConstraintError(f"The grammar of this answer is not supported: {matcher.get_error()}")
        return matcher

    def _read_vocabulary(self, stop_ids: frozenset[int]) -> LLTokenizer:
        """Return the vocabulary with the bytes of each token. This takes half a second for 50,000 tokens."""
        ends = sorted(stop_ids)
        fast = getattr(self._tokenizer, "backend_tokenizer", None)
        if fast is not None:
            num_tokens = max(self._vocab_size, fast.get_vocab_size(with_added_tokens=True))
            return LLTokenizer(fast.to_str(), n_vocab=num_tokens, eos_token=ends)
        if not hasattr(self._tokenizer, "token_bytes"):
            raise ConstraintError(
                f"The tokens of a {type(self._tokenizer).__name__} cannot be converted to bytes, which is required to "
                "constrain an answer. Use a model with a fast tokenizer (tokenizer.json)."
            )
        return LLTokenizer(TokenizerWrapper(_ByBytes(self._tokenizer, ends[0])), eos_token=ends)


class _ByBytes:
    """A tokenizer with known token bytes, in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, eos_token_id: int) -> None:
        self._encode = tokenizer.encode
        self.eos_token_id = eos_token_id
        self.tokens: Sequence[bytes] = tokenizer.token_bytes
        self.special_token_ids = list(tokenizer.all_special_ids)

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("this tokenizer accepts only text")
        return self._encode(text)


def _problem(grammar: dict[str, Any]) -> str:
    """Return the reason why llguidance cannot use a grammar, or an empty string if it can."""
    return LLMatcher.validate_grammar(json.dumps({"grammars": [grammar]}), limits=_LIMITS)
