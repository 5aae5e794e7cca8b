"""The results of comparisons with controls, as clauses of one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparring.evaluation.controls import WORDS, Against, listed, strongest


def clauses_of(against: Sequence[Against], *, alike: str, is_unranked: bool) -> Iterator[str]:
    """Yield one clause for each result. The first comparison is that with the strongest control, unless the controls
    are unranked. `alike` is a result that all policies have in common."""
    leader = None if is_unranked or not against else against[0]
    top = strongest(against) if len(against) > 1 and leader is not None and not alike else []
    for rise, words in WORDS.items():
        for here in dict.fromkeys(one.here for one in against if one.rise is rise):
            ones = [one for one in against if (one.rise, one.here) == (rise, here)]
            result, rest = words.removesuffix(" than"), ""
            if here:
                result = f"{here}{_episodes(leader if leader in ones else None)}, but not shown to be {here.split()[0]}"
                rest = " on other tasks"
            names = _names_with_sizes(ones) if is_unranked else _names(ones, top, leader, rest)
            opposed = [f"{one.opposed} {'it' if len(ones) == 1 else one.shown}" for one in ones if one.opposed]
            yield (
                f"{result}{names}{rest if is_unranked else ''}"
                + (f", but {listed(opposed)}" if opposed else "")
                + (f": {alike}" if alike else "")
            )


def _names(ones: Sequence[Against], top: Sequence[Against], leader: Against | None, rest: str) -> str:
    """Return the names, the strongest controls first, and the difference from the strongest."""
    size = ""
    if leader is not None and leader in ones:
        text = leader.interval if leader.here else leader.size
        size = f" ({text})" if text else ""
    first = [one.shown for one in ones if one in top]
    others = listed([one.shown for one in ones if one not in top])
    if not first:
        return f" than {others}{rest}{size}"
    others = f", and than {others}" if others else ""
    return f" than {listed(first)}, the strongest {'control' if len(first) == 1 else 'controls'} evaluated{size}{others}{rest}"


def _names_with_sizes(ones: Sequence[Against]) -> str:
    """Return the names, each with its difference. Controls that were compared on only some of the tasks are listed
    last, with these tasks."""
    whole = listed([f"{one.shown} ({one.size})" for one in ones if not one.where])
    parts = [f", {one.where}, than {one.shown} ({one.size})" for one in ones if one.where]
    return " and".join([*([f" than {whole}"] if whole else []), *parts])


def _episodes(leader: Against | None) -> str:
    """Return the difference on these tasks, with the number of episodes on which it is based."""
    if leader is None:
        return ""
    if leader.comparison is None or leader.before is None:
        return f" ({leader.size})"
    one = leader.comparison
    num, changed = one.num_tasks, len(one.fixed if leader.difference > 0 else one.broken)
    tasks = f"all {num}" if changed == num else f"{leader.here.split()[0]} on {changed} of {num}"
    each = f"{leader.before.group_size} episodes"
    return f" ({leader.difference:+.2f}; {each if num == 1 else f'{tasks}, {each} each'})"
