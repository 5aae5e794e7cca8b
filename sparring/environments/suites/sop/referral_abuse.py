"""Referral abuse: decide whether a host is paid for the friends that they referred.

The decision depends on several counts over a group, each with a different condition. They are compared with a limit and
with the size of the group. The policy writes the SQL query for these counts, and the query runs on a real
database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from sparring.environments.demonstrations import tool_call
from sparring.environments.suites.sop.domain import Case, Clause, Script, SopDomain, SqlDesk, distractor, final_output
from sparring.environments.suites.sop.entities import Draw, Pool, codes
from sparring.environments.tools import tool
from sparring.types import Json

ACCOUNTS, DEVICES, CARDS, PLANS = Pool(codes("JKLNRSTUW")), Pool(codes("DEF")), Pool(codes("CGH")), Pool(codes("PQ"))
CIRCLE = "SELECT a.name FROM friends a JOIN friends b ON a.name=b.host AND a.host=b.name WHERE a.host='{}'"
Action: TypeAlias = Literal["pay", "hold", "close"]


class Desk(SqlDesk):
    """Tools for hosts and plans, and for a database of referrals."""

    @tool
    def host(self, host: str) -> Json:
        """plan, device and card of a host"""
        return self.fact("host", host)

    @tool
    def plan(self, plan: str) -> Json:
        """limit of a plan"""
        return self.fact("plan", plan)

    @tool
    async def query(self, sql: str) -> Json:
        """rows of the tables friends(name, host, device, card, spent), refunds(name, euros)"""
        return await self.rows(sql)

    @tool
    def columns(self, table: str) -> Json:
        """columns of a table"""
        return self.fact("columns", table)

    @distractor
    def visits(self, host: str) -> Json:
        """visits of a host this year"""
        return self.fact("visits", host)

    @distractor
    def city(self, host: str) -> Json:
        """where a host lives"""
        return self.fact("city", host)

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        host = given["host"]
        account = yield tool_call("host", host=host)
        limit = 0
        if "limit" not in skipped:
            limit = (yield tool_call("plan", plan=account["plan"]))["limit"]
        column = "card" if account["device"] is None and "missing" not in skipped else "device"
        twin, idle = f"{column}='{account[column]}'", "spent=0"
        if longer >= 1 and "refunds" not in skipped:
            idle = "(spent=0 OR name IN (SELECT name FROM refunds))"
        good = f"NOT {idle}" if "good" in skipped else f"NOT {idle} AND NOT {twin}"
        counts = [f"count(*) AS n, sum({idle}) AS idle, sum({good}) AS good"]
        counts += [] if "twins" in skipped else [f"sum({twin}) AS twins"]
        found = yield tool_call("query", sql=f"SELECT {', '.join(counts)} FROM friends WHERE host='{host}'")
        row = dict(zip(found["columns"], found["rows"][0], strict=True))
        twins = row.get("twins", 0)
        action = _action(row["n"], twins, 0 if "idle" in skipped else row["idle"], limit)
        if longer >= 2 and "circle" not in skipped and (yield tool_call("query", sql=CIRCLE.format(host)))["rows"]:
            action = "close"
        yield final_output(action=action, twins=twins, good=row["good"])


def _action(num_friends: int, twins: int, idle: int, limit: int) -> Action:
    if twins > limit:
        return "close"
    return "hold" if 2 * idle >= num_friends else "pay"


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw a host with four to eight friends; some friends are twins and some are idle. Other hosts have similar
    friends."""
    host, *others = (draw.entity(ACCOUNTS) for _ in range(3))
    device, card, plan = draw.entity(DEVICES), draw.entity(CARDS), draw.entity(PLANS)
    names = [draw.entity(ACCOUNTS) for _ in range(draw.between(4, 8))]
    limit = draw.between(1, 3)
    action: Action = draw.pick(("pay", "hold", "close"))
    least_twins = 1 if is_missing else 0
    num_twins = (
        limit + draw.between(1, min(2, len(names) - limit)) if action == "close" else draw.between(least_twins, limit)
    )
    half = -(-len(names) // 2)
    fewest, most = {"pay": (0, half - 1), "hold": (half, half + 1), "close": (0, half + 1)}[action]
    twins = draw.rng.sample(names, num_twins)
    idle = draw.rng.sample(names, draw.between(fewest, most))
    refunded = [name for name in idle if draw.pick((True, False))] if longer >= 1 else []
    is_circle = longer >= 2 and action != "close" and draw.between(1, 5) == 1

    def friend(name: str, of: str) -> dict[str, Json]:
        own = {"device": draw.entity(DEVICES), "card": draw.entity(CARDS)}
        if of == host and name in twins:
            own |= {"card": card} if is_missing else {"device": device}
        spent = 0 if name in idle and name not in refunded else draw.between(5, 300)
        return {"name": name, "host": of, **own, "spent": spent}

    strangers = {other: [draw.entity(ACCOUNTS) for _ in range(draw.between(2, 4))] for other in others}
    friends = [friend(name, host) for name in names]
    friends += [friend(name, of) for of, found in strangers.items() for name in found]
    friends.append(friend(host, draw.pick(names) if is_circle else others[0]))
    draw.rng.shuffle(friends)
    good = sum(name not in twins and name not in idle for name in names)
    spenders = [name for name in names if name not in idle or name in refunded]
    hasty_good = sum(name not in twins for name in spenders)
    hasty_action = _action(len(names), num_twins, len(names) - len(spenders), limit)
    decides = {
        "twins": num_twins > 0,
        "limit": 0 < num_twins <= limit and not is_circle,
        "idle": action == "hold" and not is_circle,
        "good": any(name not in idle for name in twins),
        "missing": is_missing,
        "refunds": hasty_good != good or (hasty_action != action and not is_circle),
        "circle": is_circle,
    }
    return Case(
        request=f"Decide on host {host}.",
        given={"host": host},
        state={
            "facts": {
                "host": {host: {"plan": plan, "device": None if is_missing else device, "card": card}},
                "plan": {plan: {"limit": limit}},
                "columns": {"friends": {"columns": list(friends[0])}, "refunds": {"columns": ["name", "euros"]}},
                "visits": {host: {"visits": draw.between(1, 300)}},
                "city": {host: {"city": draw.pick(("Ghent", "Leeds", "Lyon", "Turin"))}},
            },
            "tables": {
                "friends": friends,
                "refunds": [
                    {"name": name, "euros": draw.between(5, 60)} for name in (*refunded, strangers[others[0]][0])
                ],
            },
        },
        answer={"action": "close" if is_circle else action, "twins": num_twins, "good": good},
        checks=tuple(check for check, does in decides.items() if does),
    )


DOMAIN = SopDomain(
    name="referral_abuse",
    role="You decide whether hosts are paid for their friends.",
    idea="counts over a group by several conditions, compared with a limit and with the size of the group",
    pattern="execution",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Get the host, and the limit of its plan.",
        "Query the friends of the host. Twins are on the host's device, idle ones spent 0, good ones are neither. Like:\n"
        "SELECT count(*) AS n, sum(spent=0) AS idle FROM friends WHERE host='A1'",
        "Action: close if there are more twins than the limit; else hold if half of the friends or more are idle; else pay.",
    ),
    if_missing="If the device is null, twins are those with the host's card.",
    clauses=(
        Clause(text="Friends in table refunds are idle, whatever they spent."),
        Clause(text="If the host is a friend of one of these friends: close."),
    ),
    answer_form={"action": "", "twins": 0, "good": 0},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
