"""Customer service: find out which one action a ticket needs, and take it.

The causes are checked in a fixed order (money, then outage, then line) and lead to exactly one action. The first action
closes the ticket, and the answer must quote the slip number of that action. The slip number depends on the action, its
target and the amount.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from sparring.environments.demonstrations import tool_call
from sparring.environments.suites.sop.domain import (
    Case,
    Clause,
    Script,
    SopDomain,
    StatefulDesk,
    distractor,
    final_output,
    slip,
)
from sparring.environments.suites.sop.entities import Draw, Pool, codes
from sparring.environments.tools import tool
from sparring.types import Json

ACCOUNTS, AREAS, LINES = Pool(codes("AKM")), Pool(codes("NR")), Pool(codes("LT"))

SCHEMA = """
CREATE TABLE accounts (account TEXT PRIMARY KEY, due INTEGER, area TEXT, line TEXT, since INTEGER, plan TEXT);
CREATE TABLE outages (area TEXT PRIMARY KEY, hours INTEGER);
CREATE TABLE lines (line TEXT PRIMARY KEY, signal TEXT, speed INTEGER);
CREATE TABLE paid (account TEXT PRIMARY KEY, hours INTEGER);
CREATE TABLE bookings (action TEXT, target TEXT, euros INTEGER, slip TEXT);
"""


class Desk(StatefulDesk):
    """Tools for accounts, outages and lines, and for booking one action."""

    def open(self, state: Mapping[str, Json], database: sqlite3.Connection) -> None:
        database.executescript(SCHEMA)
        for table, rows in state["tables"].items():
            database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)

    @tool
    def account(self, account: str) -> Json:
        """due, area, line and plan of a customer"""
        return self._row("SELECT due, area, line, plan, since FROM accounts WHERE account = ?", account)

    @tool
    def outage(self, area: str) -> Json:
        """hours without service in an area"""
        return self._row("SELECT hours FROM outages WHERE area = ?", area)

    @tool
    def test(self, line: str) -> Json:
        """signal of a line"""
        return self._row("SELECT signal FROM lines WHERE line = ?", line)

    @tool
    def paid(self, account: str) -> Json:
        """hours already credited"""
        return self._row("SELECT hours FROM paid WHERE account = ?", account)

    @tool
    def remind(self, account: str, euros: int) -> Json:
        """action: ask for what is due"""
        return self._booked("remind", "SELECT 1 FROM accounts WHERE account = ?", account, euros)

    @tool
    def credit(self, account: str, euros: int) -> Json:
        """action: pay back"""
        return self._booked("credit", "SELECT 1 FROM accounts WHERE account = ?", account, euros)

    @tool
    def visit(self, line: str) -> Json:
        """action: send a technician"""
        return self._booked("visit", "SELECT 1 FROM lines WHERE line = ?", line)

    @tool
    def reboot(self, line: str) -> Json:
        """action: restart a line"""
        return self._booked("reboot", "SELECT 1 FROM lines WHERE line = ?", line)

    @distractor
    def speed(self, line: str) -> Json:
        """speed of a line"""
        return self._row("SELECT speed FROM lines WHERE line = ?", line)

    @distractor
    def neighbors(self, area: str) -> Json:
        """number of customers in an area"""
        return self._row("SELECT count(*) * 40 + ?2 AS customers FROM accounts WHERE area = ?1", area, len(area))

    @distractor
    def bookings(self) -> Json:
        """number of actions on this ticket"""
        return self._row("SELECT count(*) AS bookings FROM bookings")

    def _row(self, query: str, *keys: Json) -> Json:
        cursor = self.state.database.execute(query, keys)
        row = cursor.fetchone()
        if row is None:
            raise LookupError(f"not found: {keys[0]}")
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    def _booked(self, action: str, exists: str, target: str, euros: int | None = None) -> Json:
        self._row(exists, target)
        database = self.state.database
        if database.execute("SELECT 1 FROM bookings").fetchone():
            raise ValueError("the ticket is closed: one action was booked")
        facts = [target] if euros is None else [target, euros]
        number = self.slip(action, *facts)
        database.execute("INSERT INTO bookings VALUES (?, ?, ?, ?)", (action, target, euros, number))
        return {"slip": number}

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        account = given["account"]
        facts = yield tool_call("account", account=account)
        action, arguments = "reboot", {"line": facts["line"]}
        if facts["due"] and "due" not in skipped:
            action, arguments = "remind", {"account": account, "euros": facts["due"]}
        elif "outage" not in skipped and (hours := (yield tool_call("outage", area=facts["area"]))["hours"]):
            if longer >= 2 and "paid" not in skipped:
                hours -= (yield tool_call("paid", account=account))["hours"]
            rate = 3 if facts["plan"] == "plus" and "plan" not in skipped else 2
            action, arguments = "credit", {"account": account, "euros": rate * hours}
        else:
            signal = (yield tool_call("test", line=facts["line"]))["signal"]
            is_old = longer >= 1 and facts["since"] < 2010 and "since" not in skipped
            is_missing = signal is None and "missing" not in skipped
            if (signal == "dead" and "line" not in skipped) or is_old or is_missing:
                action = "visit"
        number = (yield tool_call(action, **arguments))["slip"]
        yield final_output(action=action, slip=number)


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw a ticket of one account. Later causes also apply, but no action may be taken on them."""
    account, area, line = draw.entity(ACCOUNTS), draw.entity(AREAS), draw.entity(LINES)
    action = draw.rng.choices(("remind", "credit", "visit", "reboot"), weights=(19, 27, 27, 27))[0]
    checks: list[str] = []
    due = hours = paid = 0
    since, plan = draw.between(2010, 2024), draw.pick(("basic", "plus"))
    signal: str | None = draw.pick(("dead", "weak"))
    if is_missing:
        action, signal, checks = "visit", None, ["missing"]
    if action == "remind":
        due, checks = draw.between(11, 99), ["due"]
        hours = draw.pick((0, draw.between(2, 9)))
    elif action == "credit":
        hours, checks = draw.between(3, 9), ["outage"]
        checks += ["plan"] if plan == "plus" else []
        paid = draw.between(1, hours - 1) if longer >= 2 and draw.pick((True, False)) else 0
        checks += ["paid"] if paid else []
    elif action == "reboot":
        signal = "weak"
    elif not is_missing and longer >= 1 and draw.pick((True, False)):
        signal, since, checks = "weak", draw.between(1995, 2009), ["since"]
    elif not is_missing:
        signal, checks = "dead", ["line"]
    salt = str(draw.rng.getrandbits(32))
    rate = 3 if plan == "plus" else 2
    facts = {
        "remind": [account, due],
        "credit": [account, rate * (hours - paid)],
        "visit": [line],
        "reboot": [line],
    }[action]
    return Case(
        request=f"Ticket of account {account}: no internet.",
        given={"account": account},
        state={
            "salt": salt,
            "tables": {
                "accounts": [[account, due, area, line, since, plan]],
                "outages": [[area, hours]],
                "lines": [[line, signal, draw.between(20, 90)]],
                "paid": [[account, paid]],
            },
        },
        answer={"action": action, "slip": slip(salt, action, *facts)},
        checks=tuple(checks),
    )


DOMAIN = SopDomain(
    name="customer_service",
    role="You close tickets of an internet provider.",
    idea="an ordered list of causes that ends in exactly one irrevocable action, whose slip follows from the booking",
    pattern="stateful",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Look the account up. If money is due: remind of that amount. Do not look further.",
        "Else, if its area has an outage: credit 2 euros an hour, on plan plus 3.",
        "Else test the line: dead: visit it, weak: reboot it.",
        "Take exactly one action. It closes the ticket and gives a slip.",
    ),
    if_missing="A signal of null counts as dead.",
    clauses=(
        Clause(text="Customers since before 2010 get a visit for a weak line, too."),
        Clause(text="Before a credit: hours that were paid are not credited again.", tools=("paid",)),
    ),
    answer_form={"action": "", "slip": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
