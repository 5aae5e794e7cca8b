"""Sequence extension: the turns of trajectories become a forest of token segments, every distinct prompt once.

    prompts  P1 | P1 A1 E1 | Q1      answers  A1, A2, A3      (Q1: the agent compacted its history)
    gives    P1 ─▶ A1 E1 A2   and   Q1 ─▶ A3, trained on A1, A2 and A3 only.

What several roots begin with (the system prompt of all tasks, the question of a group) becomes a segment that they
share, so its keys and values are computed once and receive everybody's gradient. Sampled tokens are never merged:
each is trained exactly once, with its own advantage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparring.errors import DataError
from sparring.types import (
    Outcome,
    TokenSegment,
    TrainingBatch,
    TrainingSequence,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


@dataclass(slots=True)
class _Piece:
    """Tokens to be appended to a line, all sampled or none."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """None: not sampled."""


@dataclass(slots=True)
class _Node:
    """A segment in the making; `pieces` follow the tokens of the parent."""

    parent: int | None
    pieces: list[_Piece] = field(default_factory=list)
    advantage: float = 0.0
    weight: float = 0.0
    temperature: float = 1.0
    num_children: int = 0


def build_batch(
    groups: Sequence[TrajectoryGroup], advantages: Mapping[str, float], *, reduction: str = "trajectory_mean"
) -> TrainingBatch:
    """The forest of a step. `advantages` holds one number for each trajectory id.

    Reductions: `token_mean` divides by the trained tokens of all trajectories, `trajectory_mean` averages the token
    means of trajectories, so that long ones and forked ones count like any other, `sum` divides by nothing.
    A trajectory without advantage has no gradient: it is left out of the forest but counts in the denominators.

    Raises DataError when a turn does not extend its parent token for token.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert all(trajectory.outcome is not Outcome.INFRASTRUCTURE_ERROR for trajectory in trajectories)
    total_tokens = sum(trajectory.num_sampled_tokens for trajectory in trajectories)
    nodes: list[_Node] = []
    leaves: list[tuple[int, str]] = []
    for trajectory in trajectories:
        if advantages[trajectory.id] == 0.0:
            continue
        if reduction == "trajectory_mean":
            weight = 1.0 / (len(trajectories) * trajectory.num_sampled_tokens)
        else:
            weight = 1.0 / total_tokens if reduction == "token_mean" else 1.0
        leaves += _add_trajectory(nodes, trajectory, advantages[trajectory.id], weight)
    return _assemble(nodes, leaves)


def demonstration_batch(conversations: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> TrainingBatch:
    """A forest for cross-entropy: each conversation is ids and a mask of what to learn; tokens weigh equally."""
    total = sum(sum(mask) for _, mask in conversations)
    nodes: list[_Node] = []
    leaves: list[tuple[int, str]] = []
    for index, (ids, mask) in enumerate(conversations):
        begin = list(mask).index(True)
        root = _Node(None, [_Piece(tuple(ids[:begin]), None)])
        nodes.append(root)
        line = _Node(len(nodes) - 1, advantage=0.0, weight=1.0 / total)
        while begin < len(ids):
            end = begin
            while end < len(ids) and mask[end] == mask[begin]:
                end += 1
            line.pieces.append(_Piece(tuple(ids[begin:end]), (0.0,) * (end - begin) if mask[begin] else None))
            begin = end
        nodes.append(line)
        leaves.append((len(nodes) - 1, f"demonstration-{index}"))
    return _assemble(nodes, leaves)


def _add_trajectory(nodes: list[_Node], trajectory: Trajectory, advantage: float, weight: float) -> list[tuple[int, str]]:
    """Append a trajectory's turns: a prompt node for each root, one line while turns extend each other, a new node at
    each fork. Returns the leaves."""
    children: dict[int | None, list[Turn]] = {}
    for turn in trajectory.turns:
        children.setdefault(turn.parent, []).append(turn)
    leaves: list[tuple[int, str]] = []

    def new_node(parent: int | None, temperature: float) -> int:
        nodes.append(_Node(parent, advantage=advantage, weight=weight, temperature=temperature))
        return len(nodes) - 1

    def append(node: int, turn: Turn, known: int) -> None:
        line = nodes[node]
        if len(turn.prompt_ids) > known:
            line.pieces.append(_Piece(turn.prompt_ids[known:], None))
        line.pieces.append(_Piece(turn.token_ids, turn.sampled_logprobs))

    pending: list[tuple[int, Turn]] = []
    for root in children.get(None, ()):
        nodes.append(_Node(None, [_Piece(root.prompt_ids, None)]))
        node = new_node(len(nodes) - 1, _temperature(root))
        append(node, root, len(root.prompt_ids))
        pending.append((node, root))
    while pending:
        node, turn = pending.pop()
        following = children.get(turn.id, [])
        if not following:
            leaves.append((node, trajectory.id))
        played = turn.prompt_ids + turn.token_ids
        for child in following:
            if child.prompt_ids[: len(played)] != played:
                raise DataError(
                    f"trajectory {trajectory.id}: turn {child.id} does not begin with the exact tokens of turn {turn.id}, "
                    "which it says it extends. Such tokens must not be trained; this is a bug of the session or the renderer."
                )
            goes_on = len(following) == 1 and _temperature(child) == nodes[node].temperature
            target = node if goes_on else new_node(node, _temperature(child))
            append(target, child, len(played))
            pending.append((target, child))
    return leaves


def _temperature(turn: Turn) -> float:
    # Greedy turns report log-probabilities at temperature 1.
    return turn.sampling.temperature or 1.0


def _assemble(nodes: list[_Node], leaves: list[tuple[int, str]]) -> TrainingBatch:
    """Nodes to segments: prompts that roots share are split off and stored once, parents before children."""
    segments: list[TokenSegment] = []
    prompts = {index: _ids(node) for index, node in enumerate(nodes) if node.parent is None}
    place = _share_prompts(prompts, segments)
    for index, node in enumerate(nodes):
        if node.parent is not None:
            place[index] = len(segments)
            segments.append(_segment(node, place[node.parent]))
    sequences = []
    for leaf, trajectory_id in leaves:
        path = [place[leaf]]
        while (parent := segments[path[-1]].parent) is not None:
            path.append(parent)
        sequences.append(TrainingSequence(segments=tuple(reversed(path)), trajectory_id=trajectory_id))
    return TrainingBatch(segments=tuple(segments), sequences=tuple(sequences))


def _ids(node: _Node) -> tuple[int, ...]:
    return tuple(token for piece in node.pieces for token in piece.ids)


def _segment(node: _Node, parent: int) -> TokenSegment:
    mask: list[bool] = []
    logprobs: list[float] = []
    for piece in node.pieces:
        mask += [piece.logprobs is not None] * len(piece.ids)
        logprobs += piece.logprobs if piece.logprobs is not None else [0.0] * len(piece.ids)
    return TokenSegment(
        parent=parent,
        token_ids=_ids(node),
        mask=tuple(mask),
        sampled_logprobs=tuple(logprobs),
        advantages=tuple(node.advantage if masked else 0.0 for masked in mask),
        weights=tuple(node.weight if masked else 0.0 for masked in mask),
        temperature=node.temperature,
    )


def prompt_segment(ids: tuple[int, ...], parent: int | None) -> TokenSegment:
    """A segment of which nothing was sampled."""
    zeros = (0.0,) * len(ids)
    return TokenSegment(
        parent=parent, token_ids=ids, mask=(False,) * len(ids), sampled_logprobs=zeros, advantages=zeros, weights=zeros,
        temperature=1.0,
    )  # fmt: skip


def _share_prompts(prompts: Mapping[int, tuple[int, ...]], segments: list[TokenSegment]) -> dict[int, int]:
    """Store prompts as a radix tree: for each key the segment in which its prompt ends."""
    place: dict[int, int] = {}

    def split(members: list[int], depth: int, parent: int | None) -> None:
        by_next: dict[int, list[int]] = {}
        for key in members:
            if len(prompts[key]) == depth:
                assert parent is not None, "a prompt has no tokens"
                place[key] = parent
            else:
                by_next.setdefault(prompts[key][depth], []).append(key)
        for branch in by_next.values():
            first = prompts[branch[0]]
            end = min(len(prompts[key]) for key in branch)
            for key in branch[1:]:
                shared = depth
                while shared < end and prompts[key][shared] == first[shared]:
                    shared += 1
                end = shared
            segments.append(prompt_segment(first[depth:end], parent))
            split(branch, end, len(segments) - 1)

    split(list(prompts), 0, None)
    return place
