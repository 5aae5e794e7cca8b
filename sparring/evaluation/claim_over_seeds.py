"""The claim that several runs support together, if they differ only in their seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from types import MappingProxyType

from sparring.evaluation.claim import Claim, NotKnown, join_remedies
from sparring.evaluation.controls import WORDS, Against, Rise, listed, strongest_first


def claim_over(seeds: Mapping[int, Claim], *, without: Mapping[int, str] = MappingProxyType({})) -> Claim:
    """Return the claim supported by each of several runs that differ only in their seed.

    Controls that are missing for some seeds are left out. `without` maps each seed without a result to the reason.
    """
    left_out = tuple(_left_out(without))
    if len(seeds) < 2:
        claim = next(iter(seeds.values()), Claim(scope=()))
        scope = (_num_seeds(1, without), *claim.scope[1:]) if without and claim.tuned else claim.scope
        return replace(claim, scope=scope, caveats=(*left_out, *claim.caveats))
    by_seed = {seed: {one.control: one for one in claim.against} for seed, claim in seeds.items()}
    controls = dict.fromkeys(control for known in by_seed.values() for control in known)
    against, caveats = [], [*left_out]
    is_unranked = any(claim.is_unranked for claim in seeds.values())
    for control in controls:
        ones = {seed: known[control] for seed, known in by_seed.items() if control in known}
        if len(ones) < len(seeds):
            is_unranked = True
            caveats += _lacking(ones, {seed: claim for seed, claim in seeds.items() if seed not in ones})
            continue
        against.append(_over(ones))
        if len({one.rise for one in ones.values()}) > 1:
            clauses = ", ".join(f"{_verb(rise)} with {listed(members)}" for rise, members in _by_rise(ones).items())
            caveats.append(f"The seeds disagree about {against[-1].shown}: {clauses}.")
        elif against[-1].rise is Rise.NOT_SHOWN and not against[-1].here and min(against[-1].by_seed) > 0:
            caveats.append(
                f"The difference from {against[-1].shown} is positive with every seed, but no seed shows it alone; use "
                "more tasks."
            )
    for caveat in dict.fromkeys(caveat for claim in seeds.values() for caveat in claim.caveats):
        having = [str(seed) for seed, claim in seeds.items() if caveat in claim.caveats]
        caveats.append(caveat if len(having) == len(seeds) else f"With {_seeds(having)}: {caveat}")
    settings = {frozenset(part for part in claim.scope if part.startswith("with ")) for claim in seeds.values()}
    if len(settings) > 1:
        caveats.append("The seeds were evaluated with different settings.")
    missing = dict.fromkeys(one for claim in seeds.values() for one in claim.not_known.controls if one not in controls)
    lacking = [claim for claim in seeds.values() if not missing.keys().isdisjoint(claim.not_known.controls)]
    alike = {claim.alike for claim in seeds.values()}
    return Claim(
        scope=(_num_seeds(len(seeds), without), *_scope_over(seeds)),
        against=tuple(strongest_first(against)),
        alike=alike.pop() if len(alike) == 1 else "",
        is_unranked=is_unranked,
        caveats=tuple(caveats),
        not_known=NotKnown(
            controls=tuple(missing),
            remedies=tuple(dict.fromkeys(one for claim in lacking for one in claim.not_known.remedies)),
        ),
        findings=tuple(finding for claim in seeds.values() for finding in claim.findings),
    )


def _num_seeds(num: int, without: Mapping[int, str]) -> str:
    """Return the number of seeds of a claim, and the status of the other seeds."""
    text = f"{num} {'seed' if num == 1 else 'seeds'}"
    reasons = Counter(why.partition(":")[0] for why in without.values())
    others = listed([f"{times} {why}" for why, times in reasons.items()])
    return f"{text} (of {num + len(without)}; {others})" if without else text


def _scope_over(seeds: Mapping[int, Claim]) -> Iterator[str]:
    """Yield the conditions of all claims. A condition that applies only to some seeds lists these seeds.

    A claim names its temperature only if a result at another temperature disagrees. All claims have the same
    temperature, so it is stated without seeds.
    """
    for part in dict.fromkeys(part for claim in seeds.values() for part in claim.scope[1:]):
        having = [str(seed) for seed, claim in seeds.items() if part in claim.scope]
        is_general = len(having) == len(seeds) or part.startswith("at temperature")
        yield part if is_general else f"{_seeds(having)} {part}"


def _left_out(without: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence about the seeds without a result, because a seed that did not finish may have learned
    nothing."""
    if without:
        names = listed([f"seed {seed} ({why})" for seed, why in without.items()])
        yield f"The claim leaves out {names}: what {'it' if len(without) == 1 else 'they'} would show is not known."


def _over(by_seed: Mapping[int, Against]) -> Against:
    """Combine the comparisons with one control, of all seeds."""
    ones, rises = list(by_seed.values()), _by_rise(by_seed)
    names, wheres = {one.shown for one in ones}, {one.where for one in ones}
    return Against(
        control=ones[0].control,
        # A control that was trained long enough with only some of the seeds is not called imitation for as long as RL.
        shown=ones[0].shown if len(names) == 1 else f"the {ones[0].control}",
        difference=fmean(one.difference for one in ones),
        by_seed=tuple(one.difference for one in ones),
        rise=ones[0].rise if len(rises) == 1 else Rise.NOT_SHOWN,
        here=ones[0].here if len({one.here for one in ones}) == 1 else "",
        where=next(iter(wheres)) if len(wheres) == 1 else "on the tasks that both ran",
        is_without_lost=any(one.is_without_lost for one in ones),
        opposed=f"with {_seeds(rises[Rise.FELL])} worse than" if len(rises) > 1 and Rise.FELL in rises else "",
    )


def _lacking(ones: Mapping[int, Against], lacking: Mapping[int, Claim]) -> Iterator[str]:
    """Yield sentences about a control that only some seeds have, and the command that evaluates it for the others."""
    shown = next(iter(ones.values())).shown
    clauses = ", ".join(
        f"with {_seeds(members)}, tuned is {WORDS[rise]} it" for rise, members in _by_rise(ones).items()
    )
    yield f"Not compared with {shown} with {_seeds([str(seed) for seed in lacking])}; {clauses}."
    control = next(iter(ones.values())).control
    unknown = [claim.not_known for claim in lacking.values() if control in claim.not_known.controls]
    remedies = dict.fromkeys(one for known in unknown for one in known.remedies)
    if remedies:
        yield f"{join_remedies(list(remedies), is_one=True)}."


def _by_rise(ones: Mapping[int, Against]) -> dict[Rise, list[str]]:
    groups = {rise: [str(seed) for seed, one in ones.items() if one.rise is rise] for rise in WORDS}
    return {rise: members for rise, members in groups.items() if members}


def _seeds(names: Sequence[str]) -> str:
    return f"{'seed' if len(names) == 1 else 'seeds'} {listed(names)}"


def _verb(rise: Rise) -> str:
    return {Rise.ROSE: "better", Rise.FELL: "worse"}.get(rise, "not shown")
