"""Cases made by hand at the edges of six procedures, with the rulings that a reader of each procedure comes to."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from sparring.environments import ToolResult, execute, opened
from sparring.environments.base import reset
from sparring.environments.suites import sop
from sparring.environments.suites.sop import replies, worked
from sparring.types import Json, Task


def find_ruling(domain: str, given: Mapping[str, Json], data: Json, longer: int = 0) -> Mapping[str, Json]:
    """Return the answer of the domain's expert from data written by hand."""
    task = build_task(given, data, longer)
    text = asyncio.run(worked(sop.DOMAINS[domain].desk(), task))[-1]["content"]
    return json.loads(text.removeprefix("<final_output>").removesuffix("</final_output>"))


def build_task(given: Mapping[str, Json], data: Json, longer: int = 0) -> Task:
    messages = ({"role": "system", "content": ""}, {"role": "user", "content": "Go."})
    return Task(id="t", messages=messages, fields={"given": given, "world": data, "longer": longer})


def call_tools(domain: str, data: Json, calls: Sequence[tuple[str, Mapping[str, Json]]]) -> list[ToolResult]:
    """Return the results of calls to a desk, one after the other."""

    async def play() -> list[ToolResult]:
        task = build_task({}, data)
        async with opened(desk := sop.DOMAINS[domain].desk(), task):
            await reset(desk, task)
            return [await execute(desk, name, arguments) for name, arguments in calls]

    return asyncio.run(play())


def post(role: str, strikes: int, level: str | None, trusted: int, **more: Any) -> list[dict[str, Json]]:
    return [
        replies("post", {"author": "Ada", "topic": "tea"}, id="P1"),
        replies("author", {"role": role, "strikes": strikes}, name="Ada"),
        replies("topic", {"level": level}, name="tea"),
        replies("reports", {"trusted": trusted, "new": 5, "first": "Bo"}, post="P1"),
        replies("stale", {"number": more.get("stale", 0)}, post="P1"),
        replies("appeal", {"state": more.get("appeal", "none"), "by": "Cy"}, post="P1"),
    ]


@pytest.mark.parametrize(
    ("data", "longer", "action", "tell"),
    [
        (post("press", 2, "touchy", 3), 0, "keep", "Bo"),
        (post("press", 0, "banned", 0), 0, "remove", "Ada"),
        (post("member", 1, "open", 1), 0, "hide", "Ada"),
        (post("member", 1, "open", 0), 0, "keep", "Bo"),
        (post("member", 0, "open", 2), 0, "warn", "Ada"),
        (post("member", 0, "touchy", 2), 0, "label", "Ada"),
        (post("member", 0, "open", 1), 0, "keep", "Bo"),
        (post("member", 0, None, 0), 0, "label", "Ada"),
        (post("member", 0, "open", 3, stale=2), 1, "keep", "Bo"),
        (post("member", 1, "banned", 3, appeal="open"), 2, "wait", "Cy"),
        (post("member", 1, "banned", 3, appeal="closed"), 2, "remove", "Ada"),
    ],
)
def test_posts(data: Json, longer: int, action: str, tell: str) -> None:
    assert find_ruling("content_flagging", {"post": "P1"}, data, longer) == {"action": action, "tell": tell}


def companies(
    owners: Mapping[str, str], listed: Mapping[str, Json], tier: str = "open", licence: str = "valid"
) -> Json:
    return [
        *(replies("company", {"owner": of, "director": "Dora"}, id=id) for id, of in owners.items()),
        replies("person", {"born": 1970, "country": "Chad"}, name="Olga"),
        replies("watchlist", listed, name="Olga"),
        replies("country", {"tier": tier}, name="Chad"),
        *(replies("licence", {"state": licence}, company=id) for id in owners),
    ]


LISTED, NAMESAKE, UNLISTED = {"listed": True, "born": 1970}, {"listed": True, "born": 1971}, {"listed": False}
NO_YEAR = {"listed": True, "born": None}


@pytest.mark.parametrize(
    ("data", "longer", "owner", "layers", "status"),
    [
        (companies({"C1": "Olga"}, UNLISTED), 0, "Olga", 1, "approve"),
        (companies({"C1": "C2", "C2": "C3", "C3": "Olga"}, NAMESAKE), 0, "Olga", 3, "approve"),
        (companies({"C1": "C2", "C2": "Olga"}, NAMESAKE, "watched"), 0, "Olga", 2, "review"),
        (companies({"C1": "Olga"}, LISTED, "watched"), 0, "Olga", 1, "reject"),
        (companies({"C1": "Olga"}, NO_YEAR), 0, "Olga", 1, "review"),
        (companies({"C1": "Olga"}, NO_YEAR, "watched"), 0, "Olga", 1, "reject"),
        (companies({"C1": "Olga"}, UNLISTED, licence="expired"), 0, "Olga", 1, "approve"),
        (companies({"C1": "Olga"}, UNLISTED, licence="expired"), 1, "Olga", 1, "review"),
        (companies({"C1": "Olga"}, LISTED, licence="expired"), 1, "Olga", 1, "reject"),
        (companies({"C1": "C2", "C2": "C1"}, UNLISTED), 2, "none", 2, "reject"),
    ],
)
def test_companies(data: Json, longer: int, owner: str, layers: int, status: str) -> None:
    expected = {"owner": owner, "layers": layers, "status": status}
    assert find_ruling("know_your_business", {"company": "C1"}, data, longer) == expected


def thread(mails: Sequence[tuple[str, str]], state: str | None = "sent", price: int = 9) -> Json:
    ids = [f"M{number}" for number in range(len(mails))]
    return [
        replies("thread", {"order": "O1", "mails": ids}, id="T1"),
        *(replies("mail", {"from": by, "text": text}, id=id) for id, (by, text) in zip(ids, mails, strict=True)),
        replies("order", {"state": state}, order="O1"),
        replies("parcel", {"state": "arrived"}, order="O1"),
        replies("price", {"price": price}, order="O1"),
        *(
            replies(
                "options", {at: f"{intent}-{at}" for at in ("packed", "sent", "arrived")}, order="O1", intent=intent
            )
            for intent in ("money", "swap", "stop", "find")
        ),
    ]


REFUND, CANCEL = ("buyer", "I want a refund for the mug."), ("buyer", "Please cancel the mug.")
SWAP = ("buyer", "I want a red mug instead.")
SHOP, FORGET = ("shop", "We have the mug in other sizes."), ("buyer", "Please forget my last mail.")


@pytest.mark.parametrize(
    ("data", "longer", "intent", "action"),
    [
        (thread([REFUND]), 0, "money", "money-sent"),
        (thread([REFUND, CANCEL]), 0, "stop", "stop-sent"),
        (thread([CANCEL, REFUND, SHOP, SHOP]), 0, "money", "money-sent"),
        (thread([SWAP], state=None), 0, "swap", "swap-arrived"),
        (thread([REFUND, CANCEL, FORGET, SHOP]), 1, "money", "money-sent"),
        (thread([REFUND, SHOP, CANCEL, SHOP, FORGET]), 1, "money", "money-sent"),
        (thread([CANCEL], price=99), 2, "stop", "stop-sent"),
        (thread([CANCEL], price=100), 2, "stop", "escalate"),
    ],
)
def test_threads(data: Json, longer: int, intent: str, action: str) -> None:
    assert find_ruling("email_intent", {"thread": "T1"}, data, longer) == {"intent": intent, "action": action}


def clip(grades: Mapping[str, int | None], *, unsure: Mapping[str, int] | None = None, banned: bool = False) -> Json:
    unsure = unsure or {}
    return [
        replies("clip", {"kind": "film", "market": "M1"}, clip="V1"),
        replies("due", {"checks": ["fire", "drugs", "music"]}, kind="film"),
        replies("market", {"cut": 4, "ban": 6}, market="M1"),
        *(
            replies(check, {"grade": grade, "sure": check not in unsure}, clip="V1")
            for check, grade in ({"gore": 9} | grades).items()
        ),
        *(replies("second", {"grade": grade}, clip="V1", check=check) for check, grade in unsure.items()),
        replies("history", {"banned": banned}, clip="V1"),
    ]


@pytest.mark.parametrize(
    ("data", "longer", "worst", "grade", "verdict"),
    [
        (clip({"fire": 1, "drugs": 3, "music": 2}), 0, "drugs", 3, "pass"),
        (clip({"fire": 1, "drugs": 3, "music": 4}), 0, "music", 4, "cut"),
        (clip({"fire": 6, "drugs": 3, "music": 5}), 0, "fire", 6, "ban"),
        (clip({"fire": 4, "drugs": None, "music": 3}), 0, "drugs", 5, "cut"),
        (clip({"fire": 6, "drugs": 3, "music": 2}, unsure={"fire": 1}), 1, "drugs", 3, "pass"),
        (clip({"fire": 1, "drugs": 3, "music": 2}, banned=True), 2, "drugs", 3, "cut"),
        (clip({"fire": 6, "drugs": 3, "music": 2}, banned=True), 2, "fire", 6, "ban"),
    ],
)
def test_clips(data: Json, longer: int, worst: str, grade: int, verdict: str) -> None:
    expected = {"worst": worst, "grade": grade, "verdict": verdict}
    assert find_ruling("media_review", {"clip": "V1"}, data, longer) == expected


def pallet(boxes: str, fee: int | None = 4, strict: bool = False, cap: int = 99) -> Json:
    words = {"g": "good", "b": "bent", "w": "wet"}
    return {
        "salt": "1",
        "pallet": ["L1", "S1", 1, 1],
        "contract": ["S1", fee, int(strict), cap, 2000],
        "boxes": [words[letter] for letter in boxes],
    }


@pytest.mark.parametrize(
    ("data", "longer", "verdict", "charge", "num_boxes"),
    [
        (pallet("ggbbbb"), 0, "accept", 0, 2),
        (pallet("bggbbb"), 0, "accept", 4, 3),
        (pallet("gbgbgg"), 0, "refuse", 8, 4),
        (pallet("bbgggg"), 0, "refuse", 8, 2),
        (pallet("bwgggg"), 0, "isolate", 8, 2),
        (pallet("wggggg", fee=None), 0, "isolate", 5, 1),
        (pallet("gbgggg", strict=True), 0, "accept", 4, 4),
        (pallet("gbgggg", strict=True), 1, "refuse", 4, 2),
        (pallet("bbgggg", cap=7), 1, "refuse", 8, 2),
        (pallet("bbgggg", cap=7), 2, "refuse", 7, 2),
    ],
)
def test_pallets(data: Json, longer: int, verdict: str, charge: int, num_boxes: int) -> None:
    found = dict(find_ruling("warehouse_inspection", {"pallet": "L1"}, data, longer))
    calls = [("unpack", {"pallet": "L1"})] * num_boxes + [("seal", {"pallet": "L1", "verdict": verdict})]
    number = json.loads(call_tools("warehouse_inspection", data, calls)[-1].content)["slip"]
    assert found == {"verdict": verdict, "charge": charge, "slip": number}


def test_a_pallet_is_sealed_once_and_each_way_of_sealing_it_has_a_slip_of_its_own() -> None:
    unpack, seal = ("unpack", {"pallet": "L1"}), ("seal", {"pallet": "L1", "verdict": "accept"})
    refuse = ("seal", {"pallet": "L1", "verdict": "refuse"})
    data = pallet("gggggg")
    ways = [[unpack, seal], [unpack, unpack, seal], [unpack, unpack, refuse]]
    assert len({call_tools("warehouse_inspection", data, calls)[-1].content for calls in ways}) == 3
    *_, sealed, late, twice = call_tools("warehouse_inspection", data, [unpack, seal, unpack, seal])
    assert sealed.error is None
    assert "the pallet is sealed" in late.content
    assert "the pallet is sealed" in twice.content
    assert "all 6 boxes are unpacked" in call_tools("warehouse_inspection", data, [unpack] * 7)[-1].content


def hosts(friends: Sequence[tuple[str, int]], limit: int, *, refunds: Sequence[str] = (), **more: Any) -> Json:
    """Friends named by letters from a on, by device and what they spent."""
    table = [
        {"name": name, "host": "K1", "device": device, "card": more.get("cards", {}).get(name, "G2"), "spent": spent}
        for name, (device, spent) in zip("abcdefgh", friends, strict=False)
    ]
    table += [
        {"name": name, "host": of, "device": "D1", "card": "G1", "spent": 0} for name, of in more.get("others", ())
    ]
    return {
        "facts": {
            "host": {"K1": {"plan": "P1", "device": more.get("device", "D1"), "card": "G1"}},
            "plan": {"P1": {"limit": limit}},
        },
        "tables": {"friends": table, "refunds": [{"name": name, "euros": 5} for name in ("z", *refunds)]},
    }


FOUR = [("D1", 9), ("D2", 0), ("D3", 7), ("D4", 8)]


@pytest.mark.parametrize(
    ("data", "longer", "action", "num_accounts", "good"),
    [
        (hosts(FOUR, limit=1), 0, "pay", 1, 2),
        (hosts(FOUR, limit=0), 0, "close", 1, 2),
        (hosts([*FOUR[:3], ("D4", 0)], limit=1), 0, "hold", 1, 1),
        (hosts([*FOUR[:3], ("D4", 0), ("D5", 1)], limit=1), 0, "pay", 1, 2),
        (hosts(FOUR, limit=1, others=[("x", "K2"), ("y", "K2")]), 0, "pay", 1, 2),
        (hosts(FOUR, limit=1, device=None, cards={"b": "G1", "c": "G1"}), 0, "close", 2, 2),
        (hosts(FOUR, limit=1, refunds="c"), 0, "pay", 1, 2),
        (hosts(FOUR, limit=1, refunds="c"), 1, "hold", 1, 1),
        (hosts(FOUR, limit=1, others=[("K1", "K2")]), 2, "pay", 1, 2),
        (hosts(FOUR, limit=1, others=[("K1", "c")]), 2, "close", 1, 2),
    ],
)
def test_hosts(data: Json, longer: int, action: str, num_accounts: int, good: int) -> None:
    expected = {"action": action, "twins": num_accounts, "good": good}
    assert find_ruling("referral_abuse", {"host": "K1"}, data, longer) == expected


def test_the_friends_table_is_read_and_never_written() -> None:
    data = hosts(FOUR, limit=1)
    calls = [("query", {"sql": "DELETE FROM friends"}), ("query", {"sql": "SELECT count(*) AS n FROM friends"})]
    refused, counted = call_tools("referral_abuse", data, calls)
    assert refused.error is not None
    assert json.loads(counted.content)["rows"] == [[4]]
