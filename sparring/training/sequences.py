"""Build a forest of token segments from the turns of trajectories, with one line of segments per trajectory.

    prompts  P1 | P1 A1 E1 | Q1      answers  A1, A2, A3      (Q1: the agent compacted its history)
    gives    P1 A1 E1 A2   and   Q1 A3, trained on A1, A2 and A3 only.

Each sampled token of each trajectory is trained exactly once, with its own advantage. The model may compute fewer
tokens, because `models.forest` finds equal tokens after equal histories, within and between trajectories, and computes
them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from sparring.algorithms.reductions import Counts, trajectory_mean
from sparring.errors import DataError
from sparring.types import (
    TokenSegment,
    TrainingBatch,
    TrainingSequence,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


@dataclass(slots=True, kw_only=True)
class _Line:
    """A line of turns that extend each other. Its tokens follow those of the parent line."""

    parent: int | None
    weight: float = 0.0
    temperature: float = 1.0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    """One log-probability for each of `ids`; None for tokens that are not trained."""
    advantages: list[float] = field(default_factory=list)
    """One advantage for each of `ids`."""

    def read(self, ids: Sequence[int]) -> None:
        """Add tokens that the policy did not sample."""
        self.extend(ids, [None] * len(ids))

    def extend(
        self, ids: Sequence[int], logprobs: Sequence[float | None], advantages: Sequence[float] | None = None
    ) -> None:
        advantages = [0.0] * len(ids) if advantages is None else advantages
        assert len(ids) == len(logprobs) == len(advantages)
        self.ids += ids
        self.logprobs += logprobs
        self.advantages += advantages

    def answer(self, turn: Turn, advantages: Sequence[float]) -> None:
        """Add the sampled tokens of a turn. If the turn must not be trained, its tokens are only context."""
        self.extend(
            turn.token_ids, turn.sampled_logprobs if turn.is_trained else [None] * len(turn.token_ids), advantages
        )

    @property
    def num_trained(self) -> int:
        return sum(logprob is not None for logprob in self.logprobs)


def build_batch(
    groups: Sequence[TrajectoryGroup],
    advantages: Mapping[str, Sequence[float]],
    *,
    token_advantages: Mapping[str, Sequence[Sequence[float]]] | None = None,
    reduction: Callable[[Counts], float] = trajectory_mean,
    drop_zero_advantage: bool = True,
) -> TrainingBatch:
    """Build the forest of a step. `advantages` maps each trajectory id to one number per turn. `token_advantages` maps
    it to one number per sampled token of each turn, which is added to the number of the turn.

    A trajectory whose advantages are all 0 has no gradient, so by default it is left out of the forest. It still counts
    toward the divisors, so leaving it out only saves time. The same applies to a trajectory without tokens.

    Raises DataError if a turn does not begin with the exact tokens of its parent.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert not any(trajectory.outcome.is_lost for trajectory in trajectories)
    whole = {
        "tokens": sum(trajectory.num_trained_tokens for trajectory in trajectories),
        "sequences": sum(_num_leaves(trajectory) for trajectory in trajectories),
        "trajectories": len(trajectories),
        "prompts": len(groups),
    }
    lines: list[_Line] = []
    leaves: list[tuple[int, str]] = []
    for group in groups:
        own_prompt = sum(trajectory.num_trained_tokens for trajectory in group.trajectories)
        for trajectory in group.trajectories:
            turns, own_trajectory = advantages[trajectory.id], trajectory.num_trained_tokens
            if own_trajectory == 0 or (drop_zero_advantage and not any(turns)):
                continue
            of_tokens = None if token_advantages is None else token_advantages[trajectory.id]
            ends = _add_trajectory(lines, trajectory, _spread(trajectory, turns, of_tokens))
            for path in _owned(lines, ends):
                own = {"own_sequence": sum(line.num_trained for line in path), "own_trajectory": own_trajectory}
                for line in path:
                    if line.num_trained:
                        line.weight = reduction(Counts(**whole, **own, own_prompt=own_prompt))
            leaves += [(end, trajectory.id) for end in ends]
    return _assemble(lines, leaves)


def _num_leaves(trajectory: Trajectory) -> int:
    return len({turn.id for turn in trajectory.turns} - {turn.parent for turn in trajectory.turns})


def _owned(lines: Sequence[_Line], ends: Sequence[int]) -> Iterator[list[_Line]]:
    """Yield, for each leaf, the lines between the leaf and the root that do not belong to an earlier leaf."""
    seen: set[int] = set()
    for end in ends:
        path: list[_Line] = []
        index: int | None = end
        while index is not None and index not in seen:
            seen.add(index)
            path.append(lines[index])
            index = lines[index].parent
        yield path


def build_demonstration_batch(conversations: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> TrainingBatch:
    """Build a forest for cross-entropy. A conversation consists of token ids and a mask that marks the tokens to learn.

    All tokens have equal weight. Raises DataError for a conversation whose mask is empty or includes the first token.
    """
    total = sum(sum(mask) for _, mask in conversations)
    lines: list[_Line] = []
    leaves: list[tuple[int, str]] = []
    for index, (ids, mask) in enumerate(conversations):
        learned = [position for position, masked in enumerate(mask) if masked]
        if not learned or learned[0] == 0:
            problem = "marks its first token, which has no token before it," if learned else "marks no token"
            raise DataError(
                f"demonstration {index} {problem} to be learned; give a prompt and then an assistant message."
            )
        # Tokens after the last learned token do not affect the loss.
        begin, end = learned[0], learned[-1] + 1
        line = _Line(parent=None, weight=1.0 / total)
        line.read(ids[:begin])
        line.extend(ids[begin:end], [0.0 if masked else None for masked in mask[begin:end]])
        lines.append(line)
        leaves.append((len(lines) - 1, f"demonstration-{index}"))
    return _assemble(lines, leaves)


def sequence_ids(batch: TrainingBatch) -> list[tuple[int, ...]]:
    """Return the tokens of each sequence, from its root to its leaf."""
    return [
        tuple(chain.from_iterable(batch.segments[index].token_ids for index in sequence.segments))
        for sequence in batch.sequences
    ]


def expand_batch(batch: TrainingBatch) -> TrainingBatch:
    """Return the same batch without shared segments: every sequence has its own copy of all its segments.

    A token that several sequences contain is trained only in the first of them, so that the loss does not change.
    """
    segments: list[TokenSegment] = []
    sequences: list[TrainingSequence] = []
    seen: set[int] = set()
    for sequence in batch.sequences:
        begin = len(segments)
        for index in sequence.segments:
            parent = len(segments) - 1 if len(segments) > begin else None
            segment = batch.segments[index]
            if index in seen:
                segment = build_context_segment(segment.token_ids, parent)
            segments.append(replace(segment, parent=parent))
            seen.add(index)
        sequences.append(replace(sequence, segments=tuple(range(begin, len(segments)))))
    return TrainingBatch(segments=tuple(segments), sequences=tuple(sequences))


def with_values(batch: TrainingBatch, values: Sequence[float]) -> TrainingBatch:
    """Return the batch with these values, in segment order, as the sampled log-probabilities of its trained tokens.

    The values therefore stay with their tokens, however the batch is divided.
    """
    assert len(values) == batch.num_trained_tokens
    rest = iter(values)
    segments = tuple(
        replace(segment, sampled_logprobs=tuple(next(rest) if masked else 0.0 for masked in segment.mask))
        for segment in batch.segments
    )
    return replace(batch, segments=segments)


def trained_values(batch: TrainingBatch, name: str) -> list[float]:
    """Return the values of a segment field at the trained tokens, in segment order."""
    return [
        value
        for segment in batch.segments
        for value, is_trained in zip(getattr(segment, name), segment.mask, strict=True)
        if is_trained
    ]


def trajectory_indices(batch: TrainingBatch) -> list[int]:
    """Return the index of the trajectory that each trained token belongs to, in segment order."""
    index_of: dict[str, int] = {}
    owner: dict[int, int] = {}
    for sequence in batch.sequences:
        number = index_of.setdefault(sequence.trajectory_id, len(index_of))
        for segment in sequence.segments:
            owner.setdefault(segment, number)
    return [owner[place] for place, segment in enumerate(batch.segments) for masked in segment.mask if masked]


def build_context_segment(ids: tuple[int, ...], parent: int | None) -> TokenSegment:
    """Return a segment that is only context and is not trained."""
    zeros = (0.0,) * len(ids)
    return TokenSegment(
        parent=parent,
        token_ids=ids,
        mask=(False,) * len(ids),
        sampled_logprobs=zeros,
        advantages=zeros,
        weights=zeros,
        temperature=1.0,
    )


def _spread(
    trajectory: Trajectory, advantages: Sequence[float], of_tokens: Sequence[Sequence[float]] | None
) -> dict[int, list[float]]:
    """Return the advantage of each sampled token, by turn id."""
    if of_tokens is None:
        of_tokens = [[0.0] * len(turn.token_ids) for turn in trajectory.turns]
    return {
        turn.id: [advantage + one for one in own]
        for turn, advantage, own in zip(trajectory.turns, advantages, of_tokens, strict=True)
    }


def _add_trajectory(lines: list[_Line], trajectory: Trajectory, advantages: Mapping[int, Sequence[float]]) -> list[int]:
    """Append the turns of a trajectory, with one line for each root and for each branch at a fork. Return the lines
    that end in a leaf."""
    children: dict[int | None, list[Turn]] = {}
    for turn in trajectory.turns:
        children.setdefault(turn.parent, []).append(turn)
    leaves: list[int] = []
    pending: list[tuple[int, Turn]] = []
    num_placed = 0

    def begin(parent: int | None, turn: Turn, num_played: int) -> None:
        line = _Line(parent=parent, temperature=_temperature(turn))
        line.read(turn.prompt_ids[num_played:])
        line.answer(turn, advantages[turn.id])
        lines.append(line)
        pending.append((len(lines) - 1, turn))

    for root in children.get(None, ()):
        if not root.prompt_ids:
            raise DataError(
                f"trajectory {trajectory.id}: turn {root.id} has no prompt, so no token predicts its answer."
            )
        begin(None, root, 0)
    while pending:
        index, turn = pending.pop()
        num_placed += 1
        following = children.get(turn.id, ())
        if not following:
            leaves.append(index)
        played = turn.prompt_ids + turn.token_ids
        for child in following:
            if child.prompt_ids[: len(played)] != played:
                raise DataError(
                    f"trajectory {trajectory.id}: token mismatch. Turn {child.id} does not begin with the exact tokens "
                    f"of turn {turn.id}, which it claims to extend, so it must not be trained; report this as a bug."
                )
            if len(following) == 1 and _temperature(child) == lines[index].temperature:
                lines[index].read(child.prompt_ids[len(played) :])
                lines[index].answer(child, advantages[child.id])
                pending.append((index, child))
            else:
                begin(index, child, len(played))
    if num_placed != len(trajectory.turns):
        raise DataError(
            f"trajectory {trajectory.id}: {len(trajectory.turns) - num_placed} turns extend a turn that it does not "
            "have, so their tokens would be lost; report this as a bug."
        )
    return leaves


def _temperature(turn: Turn) -> float:
    # Greedy turns report log-probabilities at temperature 1.
    return turn.sampling.temperature or 1.0


def _assemble(lines: Sequence[_Line], leaves: Sequence[tuple[int, str]]) -> TrainingBatch:
    """Build one segment from each line. A line is listed after its parent."""
    segments = tuple(_segment(line) for line in lines)
    sequences = []
    for leaf, trajectory_id in leaves:
        path = [leaf]
        while (before := segments[path[-1]].parent) is not None:
            path.append(before)
        sequences.append(TrainingSequence(segments=tuple(reversed(path)), trajectory_id=trajectory_id))
    return TrainingBatch(segments=segments, sequences=tuple(sequences))


def _segment(line: _Line) -> TokenSegment:
    mask = tuple(logprob is not None for logprob in line.logprobs)
    return TokenSegment(
        parent=line.parent,
        token_ids=tuple(line.ids),
        mask=mask,
        sampled_logprobs=tuple(0.0 if logprob is None else logprob for logprob in line.logprobs),
        advantages=tuple(value if masked else 0.0 for value, masked in zip(line.advantages, mask, strict=True)),
        weights=tuple(line.weight if masked else 0.0 for masked in mask),
        temperature=line.temperature,
    )
