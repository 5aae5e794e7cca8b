"""Trees of token sequences: equal tokens after equal beginnings are one node, which the model computes once.

sequences   1 2 6,  1 2 3 5,  1 2 3 4      (in descending order)
branches    1 2 6                           the first sequence is stored as a whole
               3 5                          each other one stores only what follows its common prefix with the
                 4                          sequence before it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import final

Part = tuple[int, int]
"""The first tokens of a branch: (index of the branch, number of tokens)."""


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences of the same type."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    low, high = 0, limit - 1
    while low < high:  # the first `low` are equal, the first `high + 1` are not
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def count_nodes(sequences: Iterable[tuple[int, ...]]) -> int:
    """Return the number of nodes of the sequences' tree, which is the number of distinct non-empty prefixes."""
    ordered = sorted(sequences)
    return sum(map(len, ordered)) - sum(common_prefix(one, other) for one, other in pairwise(ordered))


@final
class TokenTree:
    """The tree of some sequences, divided into branches. Each token is in one branch, and several sequences may share
    the first tokens of a branch."""

    def __init__(self, sequences: Sequence[tuple[int, ...]]) -> None:
        """Build the tree. `branches[i]` are the tokens of branch i, and `ancestors[i]` are the parts before it, root
        first. `paths[j]` are the parts of which sequence j consists."""
        self.branches: list[tuple[int, ...]] = []
        self.ancestors: list[tuple[Part, ...]] = []
        self.paths: list[tuple[Part, ...]] = [()] * len(sequences)
        before: tuple[int, ...] = ()
        path: tuple[Part, ...] = ()
        # In descending order, so that a sequence that is the beginning of another one needs no branch of its own.
        for index in sorted(range(len(sequences)), key=sequences.__getitem__, reverse=True):
            ids = sequences[index]
            shared = common_prefix(before, ids)
            path = _first(path, shared)
            if shared < len(ids):
                self.ancestors.append(path)
                path = (*path, (len(self.branches), len(ids) - shared))
                self.branches.append(ids[shared:])
            self.paths[index] = path
            before = ids


def _first(path: tuple[Part, ...], num_tokens: int) -> tuple[Part, ...]:
    """Return the parts of the first tokens of a path."""
    kept: list[Part] = []
    for branch, size in path:
        if num_tokens == 0:
            break
        kept.append((branch, min(size, num_tokens)))
        num_tokens -= kept[-1][1]
    return tuple(kept)
