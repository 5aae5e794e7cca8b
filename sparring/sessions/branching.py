"""Determines why a request does not continue an earlier turn. A branch is recorded with this reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum

from sparring.sessions.matching import CanonicalHistory, num_shared

MOST_NAMES = 20
"""The maximum number of tool names that a branch reason lists."""


class BranchReason(StrEnum):
    """Why a request started a new branch instead of continuing an earlier turn."""

    REPEATED = "repeated"
    """The same request was sent again and gets a second answer."""
    TOOLS_CHANGED = "tools_changed"
    """The conversation continues with different tools."""
    DROPPED_TEXT = "dropped_text"
    """The client left out the text that the assistant wrote next to its tool calls."""
    SYSTEM_CHANGED = "system_changed"
    """The same conversation has a different system message."""
    COMPACTED = "compacted"
    """The conversation continues with fewer messages than before."""
    EDITED_HISTORY = "edited_history"
    """An earlier message was changed."""
    SIDE_REQUEST = "side_request"
    """The request starts a separate conversation, which shares no message with the earlier ones."""
    SPLICE_REFUSED = "splice_refused"
    """The messages continue an earlier turn, but the chat template cannot extend its tokens."""

    def of(self, detail: str = "") -> str:
        """Return the text that is recorded for a turn: the reason, followed by a colon and the detail."""
        return f"{self.value}: {detail}" if detail else self.value


def reason_of(branch_reason: str) -> BranchReason:
    """Return the reason from a recorded text, without the detail."""
    return BranchReason(branch_reason.partition(":")[0])


def branch_reason(
    wanted: CanonicalHistory, tools: str, played: Sequence[tuple[CanonicalHistory, CanonicalHistory, str]]
) -> str | None:
    """Return why the request `wanted` with `tools` starts a branch, or None for the first request. `played` contains
    the request, the history (the request and its answer) and the tools of each earlier turn."""
    if not played:
        return None
    histories = [history for _, history, _ in played]
    if any(wanted == request and tools == others for request, _, others in played):
        return BranchReason.REPEATED.of()
    before = [others for _, history, others in played if wanted[: len(history)] == history]
    if before:
        return BranchReason.TOOLS_CHANGED.of(f"{_names(before[-1])} became {_names(tools)}")
    if any(_without_text(wanted, history) for history in histories):
        return BranchReason.DROPPED_TEXT.of()
    rest, rests = _without_system(wanted), [_without_system(history) for history in histories]
    nearest = max(range(len(rests)), key=lambda index: (num_shared(rest, rests[index]), index))
    if rest[:1] == rests[nearest][:1] and wanted[:1] != histories[nearest][:1]:
        return BranchReason.SYSTEM_CHANGED.of()
    if not any(set(rest) & set(other) for other in rests):
        return BranchReason.SIDE_REQUEST.of()
    if len(wanted) < len(histories[nearest]) and set(rest[num_shared(rest, rests[nearest]) :]) - set(rests[nearest]):
        return BranchReason.COMPACTED.of(f"{len(wanted)} of {len(histories[nearest])} messages")
    shared = max(num_shared(wanted, history) for history in histories)
    return BranchReason.EDITED_HISTORY.of(f"message {shared}")


def _names(tools: str) -> str:
    names = [str(tool.get("function", tool).get("name")) for tool in json.loads(tools)]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more or "none"


def _without_text(wanted: CanonicalHistory, history: CanonicalHistory) -> bool:
    """Return whether `wanted` continues `history`, except that `wanted` lacks the text next to tool calls."""
    if len(wanted) < len(history):
        return False
    return all(
        mine == theirs or (mine[0] == "assistant" and mine == (theirs[0], "", theirs[2]))
        for mine, theirs in zip(wanted, history, strict=False)
    )


def _without_system(history: CanonicalHistory) -> CanonicalHistory:
    return tuple(message for message in history if message[0] != "system")
