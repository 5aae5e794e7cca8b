"""Small environments that break a law of tools, each with a line that is wrong and what is right in its place."""

from __future__ import annotations

from tests.checks.unguided import BY_STATE, HEAD, Case

BEGIN = (
    HEAD
    + """
import random
import re

"""
)
END = """

def train_tasks():
    return [_task(number, random.Random(f"case {number}")) for number in range(40)]
"""
BY_ANSWER = """

def scorer(trajectory):
    return float(trajectory.messages[-1].get("content") == trajectory.task.fields["answer"])


reward = scorer
"""
MEMORY = '''
NAMES = ["Ann", "Bob", "Cem", "Dora", "Eva", "Finn", "Gus", "Hana"]
KINDS = ["knows", "manages", "likes"]

class Desk(Environment):
    """A memory of entities and what relates them."""
    def reset(self, task):
        self.entities = dict(task.fields["entities"])
        self.relations = [list(one) for one in task.fields["relations"]]

    @tool
    def read_graph(self) -> dict:
        """All entities and relations."""
        return {"entities": self.entities, "relations": self.relations}

    @tool
    def delete_entity(self, name: str) -> str:
        """Delete an entity and its relations."""
        if name not in self.entities:
            return f"no entity {name}"
        del self.entities[name]
        self.relations = [one for one in self.relations if one[0] != name]
        return "deleted"

    @tool
    def add_relation(self, source: str, kind: Literal["knows", "manages", "likes"], target: str) -> str:
        """Relate two entities."""
        if source not in self.entities or target not in self.entities:
            return "no such entity"
        self.relations.append([source, kind, target])
        return "added"

    def final_state(self) -> dict:
        return {"entities": self.entities, "relations": sorted(self.relations)}

def _task(n, rng):
    names = rng.sample(NAMES, 5)
    entities = {name: rng.choice(["person", "bot"]) for name in names}
    relations = []
    for _ in range(5):
        a, b = rng.sample(names, 2)
        one = [a, rng.choice(KINDS), b]
        if one not in relations:
            relations.append(one)
    gone = rng.choice(names)
    a, b = rng.sample([one for one in names if one != gone], 2)
    kind = rng.choice(KINDS)
    kept = [one for one in relations if gone not in one] + [[a, kind, b]]
    wanted = {"entities": {k: v for k, v in entities.items() if k != gone}, "relations": sorted(kept)}
    text = f"Forget {gone}, with all that relates to them. Then note that {a} {kind} {b}."
    fields = {"entities": entities, "relations": relations, "wanted": wanted}
    return asked(f"g{n}", text, **fields)
'''
CART = '''
GOODS = ["apples", "bread", "coffee", "dates", "eggs", "flour", "grapes", "honey", "jam", "kale"]

class Desk(Environment):
    def reset(self, task):
        self.cart = dict(task.fields["cart"])

    @tool
    def show_cart(self) -> dict[str, int]:
        """What is in the cart, with quantities."""
        return dict(self.cart)

    @tool
    def set_quantity(self, product: str, quantity: int) -> str:
        """Set how many of a product are in the cart; 0 takes it out."""
        if product not in GOODS or quantity < 0:
            return "not possible"
        if quantity == 0:
            self.cart.pop(product, None)
        else:
            self.cart[product] = self.cart.get(product, 0) + quantity
        return "ok"

    def final_state(self) -> dict:
        return self.cart

def _task(n, rng):
    goods = rng.sample(GOODS, 4)
    cart = {one: rng.randint(1, 6) for one in goods[:3]}
    wanted = dict(cart)
    changed = rng.choice(goods)
    wanted[changed] = rng.choice([k for k in range(1, 9) if k != cart.get(changed)])
    text = f"I need {wanted[changed]} {changed} in my cart, all else as it is."
    fields = {"cart": cart, "wanted": wanted}
    return asked(f"c{n}", text, **fields)
'''
CALENDAR = '''
TITLES = ["standup", "review", "dentist", "lunch", "gym", "call", "class", "demo"]

class Desk(Environment):
    def reset(self, task):
        self.events = {name: dict(one) for name, one in task.fields["events"].items()}

    @tool
    def list_events(self) -> list[dict]:
        """All events of the day, with hours."""
        return [{"title": name, **one} for name, one in sorted(self.events.items(), key=lambda item: item[1]["start"])]

    @tool
    def move_event(self, title: str, start: int) -> str:
        """Move an event to another hour; it must not overlap other events.

        Args:
            title: of the event
            start: the hour at which it begins, 0 to 23
        """
        event = self.events.get(title)
        if event is None:
            return "no such event"
        if any(start < one["start"] + one["hours"] and one["start"] < start + event["hours"] for one in self.events.values()):
            return "overlaps another event"
        event["start"] = start
        return "moved"

    def final_state(self) -> dict:
        return self.events

def _task(n, rng):
    at, events = 7, {}
    for title in rng.sample(TITLES, 3):
        at += rng.randint(1, 3)
        hours = rng.randint(1, 3)
        events[title] = {"start": at, "hours": hours}
        at += hours
    title = rng.choice(list(events))
    others = [one for name, one in events.items() if name != title]
    own = events[title]
    taken = {hour for one in others for hour in range(one["start"], one["start"] + one["hours"])}
    free = [s for s in range(6, 21) if s != own["start"] and not taken & set(range(s, s + own["hours"]))]
    near = [s for s in free if abs(s - own["start"]) < own["hours"]]
    start = rng.choice(near or free) if n % 3 else rng.choice(free)
    wanted = {name: dict(one) for name, one in events.items()}
    wanted[title]["start"] = start
    fields = {"events": events, "wanted": wanted}
    return asked(f"m{n}", f"Please move {title} to {start}:00.", **fields)
'''
ORDERS = '''
CUSTOMERS = ["Ames", "Boyle", "Crane", "Dunn", "Ellis", "Frost", "Grant", "Hale"]

class Desk(Environment):
    def reset(self, task):
        self.orders = task.fields["orders"]

    @tool
    def list_orders(self, customer: str) -> list[dict]:
        """The orders of a customer.

        Args:
            customer: the last name
        """
        return [one for one in self.orders if one["customer"] == customer][:10]

    @tool
    def order(self, number: int) -> dict | str:
        """One order by its number."""
        return next((one for one in self.orders if one["number"] == number), "no such order")

def _task(n, rng):
    customers = rng.sample(CUSTOMERS, 3)
    orders = [
        {"number": 1000 + i, "customer": rng.choice(customers), "total": rng.randint(5, 300)}
        for i in range(rng.randint(12, 40))
    ]
    who = rng.choice(customers)
    fields = {"orders": orders, "who": who, "answer": str(sum(one["total"] for one in orders if one["customer"] == who))}
    return asked(f"o{n}", f"What do all orders of {who} come to?", **fields)
'''
MAILBOX = r'''
SUBJECTS = ["Invoice", "Meeting", "Holiday", "Parcel", "Contract", "Lunch"]
THINGS = ["printer", "ladder", "kettle", "scanner", "carpet", "lamp", "sofa", "radio", "drill", "mirror"]

class Desk(Environment):
    def reset(self, task):
        self.mails = task.fields["mails"]

    @tool
    def search(self, text: str) -> list[dict]:
        """The mails that have a text in subject or body, with id, sender and subject."""
        return [{k: one[k] for k in ("id", "sender", "subject")} for one in self.mails if text.lower() in one["subject"].lower()]

    @tool
    def read(self, id: str) -> dict | str:
        """A whole mail."""
        return next((one for one in self.mails if one["id"] == id), "no such mail")

def _task(n, rng):
    mails = []
    for i, thing in enumerate(rng.sample(THINGS, 6)):
        where = rng.random() < 0.5
        subject = f"{rng.choice(SUBJECTS)} {thing}" if where else rng.choice(SUBJECTS)
        body = f"It is about the {thing}, as agreed. It costs {rng.randint(20, 400)} euros."
        sender = rng.choice(["kai", "lea"])
        mails.append({"id": f"m{rng.randint(100, 999)}{i}", "sender": sender, "subject": subject, "body": body})
    one = rng.choice(mails)
    thing = re.search(r"the (\w+),", one["body"]).group(1)
    price = re.search(r"costs (\d+)", one["body"]).group(1)
    fields = {"mails": mails, "answer": price}
    return asked(f"b{n}", f"How many euros does the {thing} cost?", **fields)
'''
HEATING = '''
DAYS = ["mon", "tue", "wed", "thu", "fri"]
Day = Literal["mon", "tue", "wed", "thu", "fri"]

class Desk(Environment):
    def reset(self, task):
        self.plan = {day: list(hours) for day, hours in task.fields["plan"].items()}

    @tool
    def day(self, name: Day) -> list[int]:
        """The hours at which the heating goes on."""
        return list(self.plan[name])

    @tool
    def copy_day(self, source: Day, target: Day) -> str:
        """Give a day the hours of another one."""
        self.plan[target] = self.plan[source]
        return "copied"

    @tool
    def add_hour(self, name: Day, hour: int) -> str:
        """Have the heating go on at one more hour of a day."""
        if not 0 <= hour <= 23 or hour in self.plan[name]:
            return "not possible"
        self.plan[name].append(hour)
        self.plan[name].sort()
        return "added"

    def final_state(self) -> dict:
        return self.plan

def _task(n, rng):
    plan = {day: sorted(rng.sample(range(5, 23), 2)) for day in DAYS}
    a, b = rng.sample(DAYS, 2)
    hour = rng.choice([h for h in range(5, 23) if h not in plan[a]])
    wanted = {day: list(hours) for day, hours in plan.items()}
    wanted[b] = sorted([*wanted[a], hour])
    fields = {"plan": plan, "wanted": wanted}
    return asked(f"e{n}", f"Let {b} be as {a}, and on {b} also at {hour}.", **fields)
'''
BANK = '''
class Desk(Environment):
    def reset(self, task):
        self.cents = dict(task.fields["accounts"])

    @tool
    def balance(self, owner: str) -> str:
        """The items of a person."""
        return f"{self.cents[owner] / 100:.2f} EUR" if owner in self.cents else "no such account"

    @tool
    def transfer(self, payer: str, payee: str, amount: int) -> str:
        """Move money from one account to another.

        Args:
            payer: who pays
            payee: who gets it
            amount: how much, in whole euros
        """
        moved = amount
        if not {payer, payee} <= self.cents.keys() or payer == payee or not 0 < moved <= self.cents[payer]:
            return "not possible"
        self.cents[payer] -= moved
        self.cents[payee] += moved
        return "transferred"

    def final_state(self):
        return dict(self.cents)


def _task(n, rng):
    accounts = {one: rng.randint(20_000, 90_000) for one in rng.sample(["Abel", "Bea", "Carlo", "Dunya", "Emil"], 3)}
    payer, payee = rng.sample(sorted(accounts), 2)
    euros = rng.randint(5, 150)
    wanted = {**accounts, payer: accounts[payer] - 100 * euros, payee: accounts[payee] + 100 * euros}
    return asked(f"b{n}", f"{payer} pays {payee} {euros} EUR.", accounts=accounts, wanted=wanted)
'''
WARDS = '''
class Desk(Environment):
    def reset(self, task):
        self.patients = json.loads(task.fields["patients"])

    @tool
    def patient(self, number: int) -> str:
        """The ward of a patient."""
        return self.patients.get(str(number), f"no patient {number}")


def _task(n, rng):
    numbers = [*rng.sample(range(1, 100), 3), *rng.sample(range(100, 400), 4)]
    patients = {f"{one:03}": f"ward {rng.choice('ABCD')}{rng.randint(1, 9)}" for one in numbers}
    number = rng.choice(numbers)
    fields = {"patients": json.dumps(patients), "answer": patients[f"{number:03}"]}
    return asked(f"p{n}", f"In which ward is patient {number}?", **fields)
'''

HOUSE = '''
class Desk(Environment):
    def reset(self, task):
        self.house, self.made = dict(task.fields["taken"]), 0

    @tool
    def free_seats(self, row: Literal["A", "B"]) -> list[str]:
        """The free seats of a row."""
        return [f"{row}{n}" for n in range(1, 6) if f"{row}{n}" not in self.house]

    @tool
    def reserve(self, seat: str) -> str:
        """Reserve a free seat; gives the number of the booking."""
        if seat in self.house or not re.fullmatch("[AB][1-5]", seat):
            return "error: not a free seat"
        self.made += 1
        self.house[seat] = f"R{self.made}"
        self.bookings = {**getattr(self, "bookings", {}), f"R{self.made}": seat}
        return f"R{self.made}"

    @tool
    def cancel(self, booking: str) -> str:
        """Cancel a booking; its seat is free again."""
        if booking not in getattr(self, "bookings", {}):
            return "error: no such booking"
        del self.bookings[booking]
        return "cancelled"

    def final_state(self):
        return {"taken": sorted(self.house), "bookings": sorted(getattr(self, "bookings", {}))}


def _task(n, rng):
    taken = dict.fromkeys(rng.sample([f"{row}{k}" for row in "AB" for k in range(1, 6)], 3), "K1")
    wish = rng.choice([f"{row}{k}" for row in "AB" for k in range(1, 6) if f"{row}{k}" not in taken])
    wanted = {"taken": sorted([*taken, wish]), "bookings": ["R1"]}
    return asked(f"h{n}", f"Reserve seat {wish}.", taken=taken, wanted=wanted)
'''

LAWS: dict[str, Case] = {
    "what is deleted is named elsewhere": Case(
        BEGIN + MEMORY + BY_STATE + END,
        "if one[0] != name]",
        "if name not in (one[0], one[2])]",
        "data.unreachable",
        "`delete_entity` leaves something that must be removed",
    ),
    "a quantity is added and not set": Case(
        BEGIN + CART + BY_STATE + END,
        "self.cart[product] = self.cart.get(product, 0) + quantity",
        "self.cart[product] = quantity",
        "environment.amounts",
        "set_quantity adds the argument quantity",
    ),
    "an event overlaps with itself": Case(
        BEGIN + CALENDAR + BY_STATE + END,
        "for one in self.events.values()):",
        "for name, one in self.events.items() if name != title):",
        "data.unreachable",
        "`move_event` refuses the requested call, but accepts it after `start` was changed",
    ),
    "a list ends after ten rows": Case(
        BEGIN + ORDERS + BY_ANSWER + END,
        "== customer][:10]",
        "== customer]",
        "environment.whole",
        "list_orders never returns more than 10 rows",
    ),
    "one field is not searched": Case(
        BEGIN + MAILBOX + BY_ANSWER + END,
        'if text.lower() in one["subject"].lower()]',
        'if text.lower() in (one["subject"] + " " + one["body"]).lower()]',
        "environment.whole",
        "search finds rows by 'subject', but never by 'body'",
    ),
    "two days share a list": Case(
        BEGIN + HEATING + BY_STATE + END,
        "self.plan[target] = self.plan[source]",
        "self.plan[target] = list(self.plan[source])",
        "data.unreachable",
        "`add_hour` changes another place in addition to the one that it names",
    ),
    "an amount is moved in another unit": Case(
        BEGIN + BANK + BY_STATE + END,
        "moved = amount",
        "moved = 100 * amount",
        "data.unreachable",
        "`amount` of `transfer` must be 100 times the number that the prompt names",
    ),
    "a number in JSON text has lost its zeros": Case(
        BEGIN + WARDS + BY_ANSWER + END,
        "str(number)",
        'f"{number:03}"',
        "environment.found",
        "all of them with a leading zero",
    ),
    "a seat stays taken": Case(
        BEGIN + HOUSE + BY_STATE + END,
        "del self.bookings[booking]",
        "del self.house[self.bookings.pop(booking)]",
        "environment.undone",
        "cancel undoes what reserve did, but final_state/taken/",
    ),
}
