"""Times that two tools return in UTC and in local time. Their difference must be the offset of the time zone on that
day."""

from __future__ import annotations

import re
import zoneinfo
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache

from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import CallResult, Survey, get_documentation
from sparring.findings import Finding, Severity
from sparring.types import Json

FEWEST = 2
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(?::\d\d)?(Z|\+00:?00)?")


def find_wrong_clocks(subject: Subject, surveys: list[Survey]) -> list[Finding]:
    """Return findings on tools whose local times ignore daylight saving time, or whose difference from UTC is not the
    offset of the only zone that the results name."""
    right: dict[str, int] = defaultdict(int)
    wrong: dict[str, list[dict[str, Json]]] = defaultdict(list)
    for survey in surveys:
        zone = _find_zone(survey)
        if zone is None:
            continue
        for utc, local, one, other in _find_pairs(subject, survey):
            expected = utc.replace(tzinfo=UTC).astimezone(zoneinfo.ZoneInfo(zone)).utcoffset() or timedelta()
            if local - utc == expected:
                right[other.call.tool] += 1
            elif abs(local - utc - expected) <= timedelta(hours=2):
                wrong[other.call.tool].append(
                    {
                        "task": survey.task.id,
                        "zone": zone,
                        "calls": [str(one.call), str(other.call)],
                        "utc": str(utc),
                        "shown": str(local),
                        "right": str(utc + expected),
                    }
                )
    return [
        _report_wrong_clock(tool, seen, right[tool])
        for tool, seen in wrong.items()
        if len(seen) >= FEWEST and right[tool] >= FEWEST
    ]


def _report_wrong_clock(tool: str, seen: Sequence[dict[str, Json]], num_right: int) -> Finding:
    return Finding(
        rule="environment.agreement",
        severity=Severity.WARNING,
        symptom=f"{tool} shows wrong local times, as if the difference from UTC were the same all year: "
        f"{seen[0]['shown']} for {seen[0]['utc']} UTC in {seen[0]['zone']}, where it is {seen[0]['right']}.",
        evidence={"tool": tool, "seen": list(seen[:4]), "right": num_right, "wrong": len(seen)},
        change="Convert with the zone's own rules (`zoneinfo.ZoneInfo`), not with a number of hours.",
        confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
    )


@cache
def _list_zones() -> dict[str, str]:
    """Return time zones, keyed by their names and by the names of their cities. Names that several zones share are left
    out."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in zoneinfo.available_timezones():
        if "/" in name and not name.startswith(("Etc/", "posix/", "right/", "SystemV/", "US/", "Canada/")):
            found[name.rpartition("/")[2].replace("_", " ")].append(name)
            found[name].append(name)
    return {name: zones[0] for name, zones in found.items() if len(zones) == 1}


def _find_zone(survey: Survey) -> str | None:
    """Return the only time zone that is a value in the results of a task, or None if there is none or several."""
    named = {
        _list_zones()[value]
        for one in survey.found()
        for value in one.fields.values()
        if isinstance(value, str) and value in _list_zones()
    }
    return named.pop() if len(named) == 1 else None


def _find_pairs(subject: Subject, survey: Survey) -> Iterator[tuple[datetime, datetime, CallResult, CallResult]]:
    """Yield the UTC time and the local time of the same object, with the results that contain them."""
    times: dict[str, list[tuple[datetime, bool, CallResult]]] = defaultdict(list)
    for one in survey.found():
        is_local = "local time" in get_documentation(subject, one.call.tool)
        for row in (one.fields, *(row for rows in one.listings.values() for row in rows)):
            for name, value in row.items():
                match = _TIME.fullmatch(value) if isinstance(value, str) else None
                is_utc = match is not None and (bool(match[3]) or "utc" in split_words(name))
                if match is not None and (is_utc or is_local):
                    for thing in {
                        str(own) for own in row.values() if isinstance(own, str) and not _TIME.fullmatch(own)
                    }:
                        times[thing].append((datetime.fromisoformat(f"{match[1]} {match[2]}"), is_utc, one))
    for known in times.values():
        by_kind = {kind: {at: shown for at, is_utc, shown in known if is_utc is kind} for kind in (True, False)}
        if len(by_kind[True]) == len(by_kind[False]) == 1:
            ((utc, one),), ((local, other),) = by_kind[True].items(), by_kind[False].items()
            if one.call.tool != other.call.tool:
                yield utc, local, one, other
