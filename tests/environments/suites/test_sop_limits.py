"""Cases made by hand at the limits of six procedures, with the rulings that a reader of each procedure comes to."""

from typing import Any

import pytest

from sparring.environments.suites.sop import replies
from sparring.environments.suites.sop.domain import slip
from sparring.types import Json
from tests.environments.suites.test_sop_rulings import call_tools, find_ruling


def build_aircraft(hours: int, landings: int, extension: int, signed: str = "P10") -> list[dict[str, Json]]:
    return [
        replies("fitted", {"units": ["P10"]}, aircraft="D1"),
        replies("papers", {"units": [signed]}, aircraft="D1"),
        replies("left", {"hours": hours, "landings": landings}, unit="P10"),
        replies("extension", {"hours": extension}, unit="P10"),
    ]


@pytest.mark.parametrize(
    ("data", "over", "verdict"),
    [
        (build_aircraft(8, 3, 0), "land", "release"),  # both are just enough
        (build_aircraft(7, 3, 1), "land", "release"),  # 7 + 1 are the 8 of the trip
        (build_aircraft(6, 3, 1), "land", "overhaul"),
        (build_aircraft(6, 3, 9, signed="Q20"), "land", "ground"),
        (build_aircraft(8, 2, 9), "land", "inspect"),  # an extension gives no landings
        (build_aircraft(8, 4, 0), "water", "inspect"),  # 3 + 2 are needed
        (build_aircraft(8, 5, 0), "water", "release"),
    ],
)
def test_an_aircraft_flies_when_both_limits_hold(data: Json, over: str, verdict: str) -> None:
    given = {"aircraft": "D1", "hours": 8, "landings": 3, "over": over}
    unit = "none" if verdict == "release" else "P10"
    assert find_ruling("aircraft_inspection", given, data, longer=1) == {"verdict": verdict, "unit": unit}


@pytest.mark.parametrize(
    ("due", "hours", "plan", "signal", "since", "action", "facts"),
    [
        (12, 5, "plus", "dead", 2020, "remind", ["A1", 12]),
        (0, 5, "basic", "dead", 2020, "credit", ["A1", 8]),  # (5 - 1) * 2
        (0, 5, "plus", "dead", 2020, "credit", ["A1", 12]),  # (5 - 1) * 3
        (0, 0, "plus", "weak", 2010, "reboot", ["L1"]),
        (0, 0, "plus", "weak", 2009, "visit", ["L1"]),
        (0, 0, "plus", None, 2020, "visit", ["L1"]),
    ],
)
def test_a_ticket_ends_in_the_first_cause_that_holds(
    due: int, hours: int, plan: str, signal: str | None, since: int, action: str, facts: list[Json]
) -> None:
    tables = {
        "accounts": [["A1", due, "N1", "L1", since, plan]],
        "outages": [["N1", hours]],
        "lines": [["L1", signal, 50]],
        "paid": [["A1", 1]],
    }
    expected = {"action": action, "slip": slip("s", action, *facts)}
    assert find_ruling("customer_service", {"account": "A1"}, {"salt": "s", "tables": tables}, longer=2) == expected


def test_a_ticket_takes_one_action() -> None:
    tables = {"accounts": [["A1", 9, "N1", "L1", 2020, "basic"]], "lines": [["L1", "weak", 50]]}
    first, second, *_ = call_tools(
        "customer_service", {"salt": "s", "tables": tables}, [("reboot", {"line": "L1"}), ("visit", {"line": "L1"})]
    )
    assert first.error is None
    assert "closed" in second.content


@pytest.mark.parametrize(
    ("free", "kind", "status", "action", "holds"),
    [
        ([10, 5, 5], "fragile", "whole", "ship", [["W1", 10]]),
        ([4, 6, 5], "normal", "split", "ship", [["W1", 4], ["W2", 6]]),
        ([4, 5, 5], "normal", "back", "cancel", [["W1", 4], ["W2", 5]]),
        ([4, 9, 9], "fragile", "back", "cancel", [["W1", 4]]),
        ([0, 10, 0], "normal", "split", "ship", [["W2", 10]]),
    ],
)
def test_an_order_is_filled_from_two_warehouses_at_most(
    free: list[int], kind: str, status: str, action: str, holds: list[Json]
) -> None:
    stock = [[place, f"W{place + 1}", free[place], 3] for place in range(3)]
    tables = {"orders": [["F1", "C1", 10, 0]], "items": [["C1", kind, 4, 9]], "stock": stock}
    expected = {"status": status, "slip": slip("s", action, *holds)}
    assert find_ruling("order_fulfilment", {"order": "F1"}, {"salt": "s", "tables": tables}) == expected


@pytest.mark.parametrize(
    ("liters", "apart", "plane", "verdict", "percent"),
    [
        ((10, 15), [], "cargo", "small", 50),  # 10 * 2 + 15 * 2
        ((11, 15), [], "cargo", "load", 52),
        ((10, 15), [], "passenger", "load", 100),
        ((11, 15), [], "passenger", "refuse", 104),
        ((10, 15), [7], "cargo", "split", 50),
    ],
)
def test_a_crate_is_as_full_as_its_shares_add_up_to(
    liters: tuple[int, int], apart: list[int], plane: str, verdict: str, percent: int
) -> None:
    # A liter is 2 per cent of the limit of class 3, and 1 of that of class 7, but counts double in an aerosol.
    data = [
        replies("crate", {"substances": ["E1", "E2"]}, crate="B1"),
        replies("substance", {"class": 3, "liters": liters[0], "packing": "can"}, id="E1"),
        replies("substance", {"class": 7, "liters": liters[1], "packing": "aerosol"}, id="E2"),
        replies("rule", {"limit": 50, "apart": apart}, number=3),
        replies("rule", {"limit": 100, "apart": []}, number=7),
    ]
    found = find_ruling("dangerous_goods", {"crate": "B1", "plane": plane}, data, longer=2)
    assert found == {"verdict": verdict, "percent": percent}


def build_record(date: str, doctor: str | None, allergy: str | None, insurer: str | None) -> dict[str, Any]:
    return {"date": date, "doctor": doctor, "allergy": allergy, "insurer": insurer}


def test_the_newest_record_counts_but_an_allergy_stays() -> None:
    records = {
        "form": build_record("03-02", "Ada", "nuts", "H1"),
        "chart": build_record("03-09", None, "none", None),
        "referral": build_record("02-27", "Bo", None, "H2"),
        "pharmacy": build_record("03-11", "Cy", None, "H3"),
    }
    data = [replies(source, found, patient="P1") for source, found in records.items()]
    data += [
        replies("staff", {"stand_in": "Di" if name == "Ada" else None}, doctor=name) for name in ("Ada", "Bo", "Cy")
    ]
    data += [replies("cover", {"pays": code != "H1"}, insurer=code) for code in ("H1", "H2", "H3")]
    given = {"patient": "P1", "date": "03-10"}
    assert find_ruling("patient_intake", given, data) == {"doctor": "Cy", "allergy": "nuts", "insurer": "H3"}
    # The pharmacy wrote after the visit; Ada is away; H1 no longer pays.
    assert find_ruling("patient_intake", given, data, longer=2) == {
        "doctor": "Di",
        "allergy": "nuts",
        "insurer": "self",
    }


@pytest.mark.parametrize(
    ("minute", "type", "code", "verdict"),
    [(39, "home", 200, "challenge"), (40, "home", 200, "pass"), (39, "relay", 200, "pass"), (39, "home", 403, "pass")],
)
def test_a_client_jumps_when_it_is_elsewhere_too_soon(minute: int, type: str, code: int, verdict: str) -> None:
    hits = [
        {"hit": "H2", "client": "C1", "minute": minute, "net": "N2", "code": code},
        {"hit": "H1", "client": "C1", "minute": 10, "net": "N1", "code": 200},
        {"hit": "H9", "client": "C2", "minute": 11, "net": "N2", "code": 200},
    ]
    nets = [{"net": "N1", "country": "AT", "type": "home"}, {"net": "N2", "country": "BR", "type": type}]
    facts = {"client": {"C1": {"kind": "browser"}}, "policy": {"browser": {"minutes": 30}}}
    data = {"facts": facts, "tables": {"hits": hits, "nets": nets}}
    expected = {"verdict": verdict, "hit": "none" if verdict == "pass" else "H2"}
    assert find_ruling("traffic_spoofing", {"client": "C1"}, data, longer=1) == expected
