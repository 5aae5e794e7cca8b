"""Order fulfilment: fill an order from the nearest warehouses, or give everything back.

The remaining quantity decides: each hold may reserve less than requested, and the next hold requests the rest. An order
that cannot be filled within its limit of warehouses must not keep any hold. The slip number depends on what is held in
the end. An agent that holds too much or too little, or holds it in the wrong warehouse, gets a different slip number.
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

ORDERS, ITEMS, WAREHOUSES = Pool(codes("FJP", 100, 299)), Pool(codes("CDQ")), Pool(codes("WV"))

SCHEMA = """
CREATE TABLE orders (id TEXT PRIMARY KEY, item TEXT, quantity INTEGER, gift INTEGER);
CREATE TABLE items (id TEXT PRIMARY KEY, kind TEXT, box INTEGER, grams INTEGER);
CREATE TABLE stock (place INTEGER PRIMARY KEY, warehouse TEXT UNIQUE, free INTEGER, staff INTEGER);
CREATE TABLE holds (warehouse TEXT, quantity INTEGER);
CREATE TABLE closed (status TEXT, slip TEXT);
"""


class Desk(StatefulDesk):
    """Tools for one order, the stock of three warehouses, and the quantities held there."""

    def open(self, state: Mapping[str, Json], database: sqlite3.Connection) -> None:
        database.executescript(SCHEMA)
        for table, rows in state["tables"].items():
            database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)

    @tool
    def order(self, order: str) -> Json:
        """item, quantity, gift or not, warehouses from near to far"""
        item, quantity, gift = self._one("SELECT item, quantity, gift FROM orders WHERE id = ?", order)
        near = [row[0] for row in self.state.database.execute("SELECT warehouse FROM stock ORDER BY place")]
        return {"item": item, "quantity": quantity, "gift": bool(gift), "near": near}

    @tool
    def item(self, item: str) -> Json:
        """normal or fragile"""
        return {"kind": self._one("SELECT kind FROM items WHERE id = ?", item)[0]}

    @tool
    def box(self, item: str) -> Json:
        """pieces in a box"""
        return {"pieces": self._one("SELECT box FROM items WHERE id = ?", item)[0]}

    @tool
    def hold(self, warehouse: str, quantity: int) -> Json:
        """reserve; says how many it could hold"""
        database = self.state.database
        free = self._one("SELECT free FROM stock WHERE warehouse = ?", warehouse)[0]
        self._refuse_when_closed()
        if quantity < 1:
            raise ValueError(f"quantity must be at least 1, got {quantity}")
        held = min(free, quantity)
        if held:
            database.execute("UPDATE stock SET free = free - ? WHERE warehouse = ?", (held, warehouse))
            database.execute("INSERT INTO holds VALUES (?, ?)", (warehouse, held))
        return {"held": held}

    @tool
    def ship(self, order: str) -> Json:
        """send what is held; gives the slip"""
        self._one("SELECT id FROM orders WHERE id = ?", order)
        return self._close("ship")

    @tool
    def cancel(self, order: str) -> Json:
        """give up what is held; gives the slip"""
        self._one("SELECT id FROM orders WHERE id = ?", order)
        return self._close("cancel")

    @distractor
    def weight(self, item: str) -> Json:
        """weight of a piece"""
        return {"grams": self._one("SELECT grams FROM items WHERE id = ?", item)[0]}

    @distractor
    def workers(self, warehouse: str) -> Json:
        """people at work in a warehouse"""
        return {"people": self._one("SELECT staff FROM stock WHERE warehouse = ?", warehouse)[0]}

    @distractor
    def held(self) -> Json:
        """what is held now, in all"""
        return {"held": self._one("SELECT coalesce(sum(quantity), 0) FROM holds")[0]}

    def _one(self, query: str, *keys: str) -> tuple[Json, ...]:
        row = self.state.database.execute(query, keys).fetchone()
        if row is None:
            raise LookupError(f"not found: {keys[0]}")
        return row

    def _refuse_when_closed(self) -> None:
        if self.state.database.execute("SELECT 1 FROM closed").fetchone():
            raise ValueError("the order is closed")

    def _close(self, action: str) -> Json:
        self._refuse_when_closed()
        database = self.state.database
        holds = sorted(database.execute("SELECT warehouse, sum(quantity) FROM holds GROUP BY warehouse"))
        if action == "ship" and not holds:
            raise ValueError("nothing is held; hold first")
        if action == "cancel":
            database.execute("DELETE FROM holds")
        number = self.slip(action, *map(list, holds))
        database.execute("INSERT INTO closed VALUES (?, ?)", (action, number))
        return {"slip": number}

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        order = yield tool_call("order", order=given["order"])
        left, most = order["quantity"], 3 if "limit" in skipped else 2
        if "fragile" not in skipped or "missing" not in skipped:
            kind = (yield tool_call("item", item=order["item"]))["kind"]
            if (kind == "fragile" and "fragile" not in skipped) or (kind is None and "missing" not in skipped):
                most = 1
        if longer >= 1 and order["gift"] and "gift" not in skipped:
            most = 1
        if longer >= 2 and "box" not in skipped:
            pieces = (yield tool_call("box", item=order["item"]))["pieces"]
            left = -(-left // pieces) * pieces
        status = "back"
        for place, warehouse in enumerate(order["near"][:most]):
            left -= (yield tool_call("hold", warehouse=warehouse, quantity=left))["held"]
            if left == 0 or "rest" in skipped:
                status = "split" if place else "whole"
                break
        number = (yield tool_call("cancel" if status == "back" else "ship", order=given["order"]))["slip"]
        yield final_output(status=status, slip=number)


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw an order that one warehouse can fill, that two can fill, or that cannot be filled within the limit."""
    order, item = draw.entity(ORDERS), draw.entity(ITEMS)
    near = [draw.entity(WAREHOUSES) for _ in range(3)]
    pieces = draw.pick((1, 3, 4, 5)) if longer >= 2 else draw.between(2, 6)
    quantity = draw.between(6, 19)
    needed = -(-quantity // pieces) * pieces if longer >= 2 else quantity
    cause = draw.rng.choices(("whole", "split", "fragile", "limit"), weights=(5, 7, 4, 4))[0]
    kind: str | None = "normal"
    is_gift, checks = False, ["rest"]
    # The quantity that the nearest warehouse lacks differs from the quantity that it has, so no number seen before is
    # the rest.
    first = draw.pick([free for free in range(1, quantity) if 2 * free != needed])
    free = [first, needed - first + draw.pick((0, 3)), draw.between(5, 20)]
    if is_missing:
        kind, cause, checks = None, "fragile", ["rest", "missing"]
    elif cause == "whole":
        free[0], checks = needed + draw.pick((0, draw.between(1, 9))), []
        kind, is_gift = draw.pick(("normal", "fragile")), draw.pick((True, False))
    elif cause == "limit":
        lacking = draw.between(1, needed - first)
        free[1], free[2] = needed - first - lacking, lacking + draw.between(0, 9)
        checks.append("limit")
    elif cause == "fragile" and longer >= 1 and draw.pick((True, False)):
        is_gift = True
        checks.append("gift")
    elif cause == "fragile":
        kind = "fragile"
        checks.append("fragile")
    if longer == 0:
        is_gift = draw.pick((True, False))
    # If only one warehouse is allowed, the result is the same with and without rounding up to full boxes.
    is_rounded = cause in ("whole", "split") or (cause == "limit" and quantity - first <= free[1])
    if needed != quantity and is_rounded:
        checks.append("box")
    salt = str(draw.rng.getrandbits(32))
    if cause == "whole":
        action, holds = "ship", [(near[0], needed)]
    elif cause == "split":
        action, holds = "ship", [(near[0], first), (near[1], needed - first)]
    else:
        action, holds = "cancel", [(near[0], first), (near[1], free[1])][: 2 if cause == "limit" else 1]
    return Case(
        request=f"Fill order {order}.",
        given={"order": order},
        state={
            "salt": salt,
            "tables": {
                "orders": [[order, item, quantity, int(is_gift)]],
                "items": [[item, kind, pieces, draw.between(50, 900)]],
                "stock": [[place, near[place], free[place], draw.between(2, 30)] for place in range(3)],
            },
        },
        answer={
            "status": {"whole": "whole", "split": "split"}.get(cause, "back"),
            "slip": slip(salt, action, *[list(held) for held in sorted(held for held in holds if held[1])]),
        },
        checks=tuple(checks),
    )


DOMAIN = SopDomain(
    name="order_fulfilment",
    role="You fill orders.",
    idea="the rest to fill after each hold, within a limit of warehouses; the part that cannot be filled is returned",
    pattern="stateful",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Get the order and the kind of its item.",
        "Hold the quantity at the nearest warehouse. If it held fewer, hold what is left at the next one.",
        "Two warehouses at most; a fragile item: one.",
        "All held: ship. Else: cancel. Both give a slip.",
        "Status is whole (shipped from one), split (from two) or back (canceled).",
    ),
    if_missing="An item whose kind is null is treated as fragile.",
    clauses=(
        Clause(text="A gift comes from one warehouse, too."),
        Clause(text="First round the quantity up to full boxes.", tools=("box",)),
    ),
    answer_form={"status": "", "slip": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
