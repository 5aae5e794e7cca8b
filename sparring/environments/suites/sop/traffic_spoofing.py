"""Traffic spoofing: decide whether a client is in two countries at once.

The verdict depends on pairs of hits: two consecutive hits that count, from different countries and too close together
in time. The kind of client determines how close is too close. The hits are in a database that must be queried.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparring.environments.demonstrations import tool_call
from sparring.environments.suites.sop.domain import Case, Clause, Script, SopDomain, SqlDesk, distractor, final_output
from sparring.environments.suites.sop.entities import Draw, Pool, codes
from sparring.environments.tools import tool
from sparring.types import Json

CLIENTS, HITS, NETS = Pool(codes("C", 100, 399)), Pool(codes("H", 100, 799)), Pool(codes("N", 100, 499))
COUNTRIES = ("AT", "BR", "CA", "DK", "FI", "JP", "KE", "PT")
MINUTES = {"app": 20, "browser": 30, "crawler": 40}
VERDICTS = ("pass", "challenge", "block")
"""The verdict by the number of jumps."""
QUERY = "SELECT hit, minute, country, type FROM hits JOIN nets USING (net) WHERE client = '{}' ORDER BY minute"


class Desk(SqlDesk):
    """Tools for clients, the policy for their kind, and the log as a database."""

    @tool
    def client(self, client: str) -> Json:
        """kind of a client"""
        return self.fact("client", client)

    @tool
    def policy(self, kind: str) -> Json:
        """minutes that a client of a kind needs between two countries"""
        return self.fact("policy", kind)

    @tool
    async def query(self, sql: str) -> Json:
        """rows of the tables hits(hit, client, minute, net, code), nets(net, country, type)"""
        return await self.rows(sql)

    @tool
    def allowed(self, client: str) -> Json:
        """whether a client is on the allow list"""
        return self.fact("allowed", client)

    @distractor
    def load(self, net: str) -> Json:
        """hits an hour from a net"""
        return self.fact("load", net)

    @distractor
    def agent(self, client: str) -> Json:
        """version that a client reports"""
        return self.fact("agent", client)

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        client = given["client"]
        if longer >= 2 and "allowed" not in skipped and (yield tool_call("allowed", client=client))["allowed"]:
            yield final_output(verdict="pass", hit="none")
        minutes = MINUTES["browser"]
        if "policy" not in skipped:
            kind = (yield tool_call("client", client=client))["kind"]
            minutes = (yield tool_call("policy", kind=kind))["minutes"]
        query = QUERY.format(client)
        found = yield tool_call("query", sql=query.replace("type", "type, code", 1) if longer >= 1 else query)
        jumps, before = [], None
        for hit, minute, country, kind, *code in found["rows"]:
            is_relay = kind == "relay" and "relay" not in skipped
            is_refused = code == [403] and "refused" not in skipped
            if is_relay or is_refused or (country is None and "missing" not in skipped):
                continue
            if before and country != before[1] and (minute - before[0] < minutes or "minutes" in skipped):
                jumps.append(hit)
            before = (minute, country)
        yield final_output(verdict=VERDICTS[min(2, len(jumps))], hit=jumps[0] if jumps else "none")


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw a log in which ignored hits and a slow change of country come before the first jump."""
    client, other = draw.entity(CLIENTS), draw.entity(CLIENTS)
    kind = draw.pick(list(MINUTES))
    minutes = MINUTES[kind]
    num_jumps = draw.rng.choices((0, 1, 2), weights=(20, 40, 40))[0]
    log = _Log(draw, client)
    checks: list[str] = []
    log.add(draw.between(1, 60))
    start = log.minute
    # Ignored hits come within minutes of a hit from another country, so that counting them changes the answer.
    ignored = [("relay", 200, "relay")] if draw.between(1, 5) <= 3 else []
    ignored += [("home", 403, "refused")] if longer >= 1 and draw.pick((True, False)) else []
    ignored += [("home", 200, "missing")] if is_missing else []
    for minute, (type, code, check) in zip(draw.rng.sample(range(1, 9), len(ignored)), ignored, strict=True):
        log.add_ignored(start + minute, type, code, None if check == "missing" else log.elsewhere())
        checks.append(check)
    log.add(start + draw.between(9, minutes - 1))
    if draw.between(1, 5) <= 3:
        wait = minutes + draw.pick((0, draw.between(1, 9)))
        log.jump(wait)
        checks += ["minutes", "policy"] if wait < MINUTES["browser"] else ["minutes"]
    steps = [True] * num_jumps + [False] * draw.between(0, 1)
    draw.rng.shuffle(steps)
    jumps: list[str] = []
    for is_jump in steps:
        if is_jump:
            # The first change of country takes nearly as long as allowed, so that only the policy for the kind decides.
            jumps.append(log.jump(draw.between(1, minutes - 1) if jumps else minutes - draw.between(1, 10)))
        else:
            log.add(log.minute + draw.between(1, 70))
    checks += ["policy"] if jumps and minutes > MINUTES["browser"] else []
    is_allowed = longer >= 2 and num_jumps > 0 and draw.between(1, 5) == 1
    if is_allowed:
        num_jumps, jumps, checks = 0, [], ["allowed"]
    for _ in range(3):
        log.add_ignored(draw.between(1, 200), "home", 200, draw.pick(COUNTRIES), of=other)
    draw.rng.shuffle(log.hits)
    return Case(
        request=f"Check client {client}.",
        given={"client": client},
        state={
            "facts": {
                "client": {client: {"kind": kind}, other: {"kind": draw.pick(list(MINUTES))}},
                "policy": {name: {"minutes": least} for name, least in MINUTES.items()},
                "allowed": {client: {"allowed": is_allowed}, other: {"allowed": draw.pick((True, False))}},
                "load": {row["net"]: {"hits": draw.between(1, 900)} for row in log.nets},
                "agent": {name: {"version": draw.between(2, 19)} for name in (client, other)},
            },
            "tables": {"hits": log.hits, "nets": log.nets},
        },
        answer={"verdict": VERDICTS[num_jumps], "hit": jumps[0] if jumps else "none"},
        checks=tuple(dict.fromkeys(checks)),
    )


class _Log:
    """The hits of a client in order, each from its own net."""

    def __init__(self, draw: Draw, client: str) -> None:
        self._draw, self._client = draw, client
        self.minute = 0
        self.country = draw.pick(COUNTRIES)
        self.hits: list[dict[str, Json]] = []
        self.nets: list[dict[str, Json]] = []

    def elsewhere(self) -> str:
        return self._draw.pick([country for country in COUNTRIES if country != self.country])

    def add(self, minute: int) -> str:
        """Add a hit from the client's current country."""
        self.minute = minute
        return self.add_ignored(minute, "home", 200, self.country)

    def jump(self, wait: int) -> str:
        """Add a hit from a different country."""
        self.country = self.elsewhere()
        return self.add(self.minute + wait)

    def add_ignored(self, minute: int, type: str, code: int, country: str | None, of: str | None = None) -> str:
        """Add a hit that does not change the client's country."""
        hit, net = self._draw.entity(HITS), self._draw.entity(NETS)
        self.nets.append({"net": net, "country": country, "type": type})
        self.hits.append({"hit": hit, "client": of or self._client, "minute": minute, "net": net, "code": code})
        return hit


DOMAIN = SopDomain(
    name="traffic_spoofing",
    role="You watch the traffic of a web site.",
    idea="pairs of hits in time: too little time between two countries, by the client's kind; queried in SQL",
    pattern="execution",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Get the client's kind and the policy for it.",
        f"Query its hits: {QUERY.format('C1')}",
        "Leave out hits of type relay.",
        "A jump is a hit from another country than the hit before, fewer minutes later than the policy says.",
        "Verdict: pass without jumps, challenge with one, block with more. hit is the first that jumped, or none.",
    ),
    if_missing="Leave out hits whose country is null, too.",
    clauses=(
        Clause(text="Hits with code 403 were refused: leave them out as well (add code to the query)."),
        Clause(text="Before all: an allowed client gets pass and hit none."),
    ),
    answer_form={"verdict": "", "hit": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
