"""Know your business: find out who owns a company, and whether to do business with the owner.

The agent follows a chain of owners to the person at its end, and compares two sources: a listed name is a hit only if
the years of birth match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from sparring.environments.demonstrations import tool_call
from sparring.environments.replayed_tools import replayed
from sparring.environments.suites.sop.domain import (
    Case,
    Clause,
    ReplayDesk,
    Script,
    SopDomain,
    distractor,
    final_output,
    replies,
)
from sparring.environments.suites.sop.entities import PEOPLE, Draw, Pool, codes
from sparring.types import Json

COMPANIES = Pool(codes("CKLN"))
COUNTRIES = Pool((
    "Albania", "Andorra", "Angola", "Armenia", "Austria", "Bahrain", "Belgium", "Belize", "Benin", "Bolivia", "Botswana",
    "Brazil", "Brunei", "Bulgaria", "Canada", "Chad", "Chile", "Colombia", "Croatia", "Cuba", "Cyprus", "Denmark", "Ecuador",
    "Egypt", "Estonia", "Fiji", "Finland", "France", "Gabon", "Georgia", "Ghana", "Greece", "Guyana", "Haiti", "Hungary",
    "Iceland", "India", "Ireland", "Italy", "Jamaica", "Japan", "Jordan", "Kenya", "Kuwait", "Laos", "Latvia", "Lebanon",
    "Malawi", "Malta", "Mexico", "Monaco", "Nepal", "Niger", "Norway", "Oman", "Panama", "Peru", "Poland", "Portugal",
    "Qatar", "Romania", "Rwanda", "Samoa", "Senegal", "Serbia", "Spain", "Sweden", "Togo", "Tonga", "Tunisia", "Turkey",
    "Uganda", "Ukraine", "Uruguay", "Vietnam", "Yemen", "Zambia",
))  # fmt: skip
BANKS = ("Alder", "Corvo", "Delta", "Fjord", "Lumen")
STREETS = ("Dock Road", "Elm Street", "Mill Lane", "North Quay")
Status: TypeAlias = Literal["approve", "review", "reject"]


class Desk(ReplayDesk):
    """Tools for the company register, the register of persons, the watchlist, and the tiers of countries."""

    @replayed
    def company(self, id: str) -> Json:
        """owner and director of a company"""

    @replayed
    def person(self, name: str) -> Json:
        """year of birth and country"""

    @replayed
    def watchlist(self, name: str) -> Json:
        """whether a name is listed, and the year of birth there"""

    @replayed
    def country(self, name: str) -> Json:
        """tier of a country"""

    @replayed
    def licence(self, company: str) -> Json:
        """state of the licence of a company"""

    @distractor
    @replayed
    def employees(self, company: str) -> Json:
        """number of employees"""

    @distractor
    @replayed
    def bank(self, company: str) -> Json:
        """bank of a company, and since when"""

    @distractor
    @replayed
    def address(self, company: str) -> Json:
        """where a company has its seat"""

    @distractor
    @replayed
    def press(self, name: str) -> Json:
        """how often newspapers named a person"""

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        first = given["company"]
        entry = yield tool_call("company", id=first)
        chain = [first]
        while _is_company(entry["owner"]) and "chain" not in skipped:
            if longer >= 2 and entry["owner"] in chain and "circle" not in skipped:
                yield final_output(owner="none", layers=len(chain), status="reject")
            if entry["owner"] in chain:
                break
            chain.append(entry["owner"])
            entry = yield tool_call("company", id=entry["owner"])
        # An expert that stops early takes the only person it has seen.
        owner = entry["director"] if _is_company(entry["owner"]) else entry["owner"]
        person = yield tool_call("person", name=owner)
        is_hit = is_unsure = False
        if "watchlist" not in skipped:
            entry = yield tool_call("watchlist", name=owner)
            born = entry.get("born")
            is_unsure = entry["listed"] and born is None and "missing" not in skipped
            is_hit = born is not None and (born == person["born"] or "namesake" in skipped)
        tier = "open"
        if "country" not in skipped:
            tier = (yield tool_call("country", name=person["country"]))["tier"]
        is_expired = False
        if longer >= 1 and "licence" not in skipped:
            is_expired = (yield tool_call("licence", company=first))["state"] == "expired"
        is_watched = tier == "watched"
        if is_hit or (is_unsure and is_watched):
            status = "reject"
        elif is_unsure or is_watched or is_expired:
            status = "review"
        else:
            status = "approve"
        yield final_output(owner=owner, layers=len(chain), status=status)


def _is_company(owner: str) -> bool:
    return owner[-1].isdigit()


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw a chain of one to three companies. The directors are different people with their own records."""
    chain = [draw.entity(COMPANIES) for _ in range(draw.between(1, 3))]
    people = [draw.entity(PEOPLE) for _ in range(len(chain) + 1)]
    owner, *directors = people
    homes = {name: draw.entity(COUNTRIES) for name in people}
    born = {name: draw.between(1941, 1999) for name in people}
    tiers = {name: draw.pick(("open", "watched")) for name in people}
    listings = {name: _listing(draw.pick((None, born[name], draw.between(1941, 1999)))) for name in people}
    licence = draw.pick(("valid", "expired")) if longer >= 1 else "valid"
    checks = ["chain"] if len(chain) > 1 else []
    status: Status
    if is_missing:
        listings[owner], licence = {"listed": True, "born": None}, "valid"
        status = "reject" if tiers[owner] == "watched" else "review"
        checks += ["missing", "watchlist"] + ["country"] * (status == "reject")
    else:
        status = draw.pick(("approve", "review", "reject"))
        if status == "reject":
            listings[owner] = _listing(born[owner])
            checks.append("watchlist")
        elif len(chain) == 1 or draw.pick((True, False)):
            listings[owner] = _listing(born[owner] + draw.pick((-1, 1)) * draw.between(1, 30))
            checks.append("namesake")
        else:
            listings[owner] = _listing(None)
        if status == "approve":
            tiers[owner], licence = "open", "valid"
        elif status == "review":
            reason = draw.pick(("country", "licence") if longer >= 1 else ("country",))
            tiers[owner], licence = ("watched", "valid") if reason == "country" else ("open", "expired")
            checks.append(reason)
    owners = [*chain[1:], owner]
    answer = {"owner": owner, "layers": len(chain), "status": status}
    if longer >= 2 and len(chain) > 1 and draw.between(1, 4) == 1:
        owners[-1] = draw.pick(chain[:-1])
        answer, checks = {"owner": "none", "layers": len(chain), "status": "reject"}, ["chain", "circle"]
    return Case(
        request=f"Screen company {chain[0]}.",
        given={"company": chain[0]},
        state=[
            *(
                replies("company", {"owner": of, "director": director}, id=id)
                for id, of, director in zip(chain, owners, directors, strict=True)
            ),
            *(replies("person", {"born": born[name], "country": homes[name]}, name=name) for name in people),
            *(replies("watchlist", listings[name], name=name) for name in people),
            *(replies("country", {"tier": tiers[name]}, name=homes[name]) for name in people),
            *(replies("licence", {"state": licence if id == chain[0] else "valid"}, company=id) for id in chain),
            *(replies("employees", {"employees": draw.between(1, 900)}, company=id) for id in chain),
            *(
                replies("bank", {"bank": draw.pick(BANKS), "since": draw.between(1990, 2024)}, company=id)
                for id in chain
            ),
            *(
                replies("address", {"street": draw.pick(STREETS), "number": draw.between(1, 99)}, company=id)
                for id in chain
            ),
            *(replies("press", {"articles": draw.between(0, 40)}, name=name) for name in people),
        ],
        answer=answer,
        checks=tuple(checks),
    )


def _listing(born: int | None) -> dict[str, Json]:
    """Return the watchlist record for a name. `born` is the year of birth in the watchlist, or None for a name that is
    not listed."""
    return {"listed": False} if born is None else {"listed": True, "born": born}


DOMAIN = SopDomain(
    name="know_your_business",
    role="You screen companies.",
    idea="a chain of owners followed to its end and counted; two sources compared with each other, for namesakes",
    pattern="replay",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Look up the company. While its owner is a company, look that up too. Layers is how many you looked up.",
        "Look up the last owner, a person, also on the watchlist. Another year of birth there is somebody else.",
        "Look up the country of the owner.",
        "Status: reject if the owner is listed; else review if the tier is watched; else approve.",
    ),
    if_missing="Listed with year null: reject if the tier is watched, else review.",
    clauses=(
        Clause(text="If the licence of the first company is expired, approve becomes review.", tools=("licence",)),
        Clause(text="A company that you meet again: stop there with owner none, status reject."),
    ),
    answer_form={"owner": "", "layers": 0, "status": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
