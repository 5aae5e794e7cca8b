"""E-mail intent: read a thread, and state what the buyer wants and what the shop does about it.

Two things determine the answer. The first is the one mail that counts: the buyer's newest mail, regardless of later
automated mails and mails from the shop. The second is a table that is looked up with two keys: what the buyer wants,
and where the order is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

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
from sparring.environments.suites.sop.entities import Draw, Pool, codes
from sparring.types import Json

THREADS, MAILS, ORDERS = Pool(codes("TUW")), Pool(codes("EFGHJM")), Pool(codes("RSXY"))
THINGS = Pool((
    "bag", "bed", "bell", "belt", "bench", "bike", "blanket", "blender", "boots", "bowl", "broom", "brush", "bucket", "camera",
    "candle", "carpet", "chair", "clock", "coat", "curtain", "cushion", "desk", "drill", "fan", "fork", "glove", "guitar",
    "hammer", "hat", "heater", "helmet", "jacket", "kettle", "knife", "ladder", "lamp", "laptop", "mattress", "mirror", "mixer",
    "mug", "oven", "pan", "pen", "phone", "piano", "pillow", "plate", "printer", "purse", "racket", "radio", "ring", "rope",
    "saddle", "saw", "scale", "scarf", "shelf", "shirt", "skirt", "sofa", "spoon", "stove", "table", "tent", "toaster", "towel",
    "toy", "tray", "vase", "wallet", "watch", "wheel",
))  # fmt: skip

Intent: TypeAlias = Literal["money", "swap", "stop", "find"]
INTENTS: tuple[Intent, ...] = get_args(Intent)
STATES = ("packed", "sent", "arrived")
ACTIONS = ("repay", "resend", "collect", "recall", "phone", "voucher")
COSTLY = 100

Wording: TypeAlias = Mapping[Intent, tuple[str, ...]]
"""Mails by topic. The placeholder is the ordered product."""
BUYER: Wording = {
    "money": (
        "Please pay me back for the {}.",
        "I want a refund for the {}.",
        "I return the {} and expect what I paid.",
    ),
    "swap": (
        "The {} is too small, send a bigger one.",
        "I got the wrong {}, send the right one.",
        "I want a red {} instead.",
    ),
    "stop": (
        "Please cancel the {}.",
        "I no longer need the {}, do not send it.",
        "Do not ship the {}, I ordered it twice.",
    ),
    "find": ("When will the {} be here?", "Nobody knows where the {} is.", "I still wait for the {}."),
}
OTHERS: Mapping[Literal["shop", "robot"], Wording] = {
    "shop": {"money": ("We can refund the {}.",), "swap": ("We have the {} in other sizes.",)},
    "robot": {"stop": ("You can cancel the {} until it ships.",), "find": ("Track the {} at any time.",)},
}
TAKEN_BACK = "Please forget my last mail."


class Desk(ReplayDesk):
    """Tools for threads and mails, orders, and the handbook."""

    @replayed
    def thread(self, id: str) -> Json:
        """its order, and its mails from old to new"""

    @replayed
    def mail(self, id: str) -> Json:
        """who wrote it, and what"""

    @replayed
    def order(self, order: str) -> Json:
        """state of an order"""

    @replayed
    def parcel(self, order: str) -> Json:
        """state of the parcel of an order"""

    @replayed
    def options(self, order: str, intent: str) -> Json:
        """the action for each state of the order"""

    @replayed
    def price(self, order: str) -> Json:
        """price of an order"""

    @distractor
    @replayed
    def tone(self, thread: str) -> Json:
        """how polite a thread is"""

    @distractor
    @replayed
    def route(self, order: str) -> Json:
        """depots on the way of an order"""

    @distractor
    @replayed
    def rating(self, order: str) -> Json:
        """stars that the buyer gave"""

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        thread = yield tool_call("thread", id=given["thread"])
        ids = thread["mails"] if "newest" in skipped else thread["mails"][::-1]
        num_forgotten, text = 0, ""
        for id in ids:
            mail = yield tool_call("mail", id=id)
            if mail["from"] != "buyer" and "sender" not in skipped:
                continue
            if mail["text"] == TAKEN_BACK:
                # The buyer's mail before this one does not count either.
                num_forgotten = 0 if "taken_back" in skipped else 1
            elif num_forgotten:
                num_forgotten -= 1
            else:
                text = mail["text"]
                break
        intent = _intent_of(text)
        state = None
        if "state" not in skipped:
            state = (yield tool_call("order", order=thread["order"]))["state"]
            if state is None and "missing" not in skipped:
                state = (yield tool_call("parcel", order=thread["order"]))["state"]
        options = yield tool_call("options", order=thread["order"], intent=intent)
        # An expert that does not know the state takes the first option.
        action = options[state or next(iter(options))]
        if longer >= 2 and "price" not in skipped:
            price = (yield tool_call("price", order=thread["order"]))["price"]
            action = "escalate" if price >= COSTLY else action
        yield final_output(intent=intent, action=action)


def _intent_of(text: str) -> Intent:
    """Return the topic of a mail, which is determined by its wording."""
    for wording in (BUYER, *OTHERS.values()):
        for intent, texts in wording.items():
            for before, after in (one.split("{}") for one in texts):
                if text.startswith(before) and text.endswith(after):
                    return intent
    raise ValueError(f"no intent is known for the mail {text!r}")


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw a thread in which older mails of the buyer, and newer mails of others, are about other topics."""
    order, thing = draw.entity(ORDERS), draw.entity(THINGS)
    intent: Intent = draw.pick(INTENTS)
    checks: list[str] = []

    def about(wording: Wording) -> str:
        others: list[Intent] = [one for one in wording if one != intent]
        return draw.pick(wording[draw.pick(others)]).format(thing)

    mails = [("buyer", draw.pick(BUYER[intent]).format(thing))]
    if longer >= 1 and draw.between(1, 3) == 1:
        checks.append("taken_back")
        mails += [("buyer", about(BUYER)), ("buyer", TAKEN_BACK)]
    elif draw.between(1, 3) > 1:
        checks.append("newest")
        mails.insert(0, ("buyer", about(BUYER)))
    if draw.between(1, 3) > 1:
        checks.append("sender")
        senders = draw.rng.sample(tuple(OTHERS), draw.pick((1, 2)))
        mails += [(sender, about(OTHERS[sender])) for sender in senders]
    ids = [draw.entity(MAILS) for _ in mails]
    options = {one: dict(zip(STATES, draw.rng.sample(ACTIONS, len(STATES)), strict=True)) for one in INTENTS}
    price, state = draw.between(5, COSTLY - 1), draw.pick(STATES[1:] if is_missing else STATES)
    action = options[intent][state]
    if longer >= 2 and draw.between(1, 4) == 1:
        checks.append("price")
        action, price = "escalate", draw.between(COSTLY, 400)
    elif state != STATES[0]:
        checks += ["state", "missing"] if is_missing else ["state"]
    id = draw.entity(THREADS)
    return Case(
        request=f"Handle thread {id}.",
        given={"thread": id},
        state=[
            replies("thread", {"order": order, "mails": ids}, id=id),
            *(
                replies("mail", {"from": sender, "text": text}, id=id)
                for id, (sender, text) in zip(ids, mails, strict=True)
            ),
            replies("order", {"state": None if is_missing else state}, order=order),
            replies("parcel", {"state": state}, order=order),
            *(replies("options", options[one], order=order, intent=one) for one in INTENTS),
            replies("price", {"price": price}, order=order),
            replies("tone", {"tone": draw.pick(("cross", "plain", "polite"))}, thread=id),
            replies("route", {"depots": draw.between(1, 4)}, order=order),
            replies("rating", {"stars": draw.between(1, 5)}, order=order),
        ],
        answer={"intent": intent, "action": action},
        checks=tuple(checks),
    )


DOMAIN = SopDomain(
    name="email_intent",
    role="You answer the mail of a shop.",
    idea="the buyer's newest mail counts, whatever came later from others; a table by wish and place of the order",
    pattern="replay",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Read the mails of the thread from the newest back until one is from the buyer. Only that one counts.",
        "Its intent: money (wants a refund), swap (wants another one), stop (wants no delivery) or find (asks where it is).",
        "Look up the state of the order, and the options for the intent. The action is the one for that state.",
    ),
    if_missing="If the state is null, take that of the parcel.",
    clauses=(
        Clause(text="If that mail takes the last one back, skip both: the buyer mail before them counts."),
        Clause(text=f"A price of {COSTLY} or more: action escalate.", tools=("price",)),
    ),
    answer_form={"intent": "", "action": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
