"""Copies each planted case to a folder with its defect taken out: `python fixes.py FOLDER`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
FIXES: dict[str, list[tuple[str, str]]] = {
    "bird_counts": [('key=lambda row: row["count"], reverse', 'key=lambda row: int(row["count"]), reverse')],
    "bus_connections": [('f"buses {number}"', 'f"buses {split} {number}"')],
    "card_refunds": [
        (
            'return {"currency": currency, "amount": f"{amount / 100:.2f}", "refunded": f"{refunded / 100:.2f}"}',
            "places = DIGITS[currency]\n"
            "        amount, refunded = (str(Decimal(one).scaleb(-places)) for one in (amount, refunded))\n"
            '        return {"currency": currency, "amount": amount, "refunded": refunded}',
        )
    ],
    "dosing_ward": [
        (
            "    amount, _, _, most = DRUGS[drug]\n    return min(amount * weight, most)\n",
            "    amount, basis, times, most = DRUGS[drug]\n"
            '    return min(amount * weight // (times if basis == "day" else 1), most)\n',
        )
    ],
    "flight_finder": [
        (
            "    flights = draw_flights(rng, origin, destination)\n",
            "    flights = draw_flights(rng, origin, destination)\n"
            '    while len({flight["fare"] + bags[flight["airline"]] for flight in flights}) < len(flights):\n'
            "        flights = draw_flights(rng, origin, destination)\n",
        )
    ],
    "library_desk": [
        (
            '        self._cards = {card: dict(entry) for card, entry in task.fields["cards"].items()}\n',
            '        self._cards = {card: dict(entry) for card, entry in task.fields["cards"].items()}\n'
            "        self._is_checked, self._is_early = False, False\n",
        ),
        (
            "        entry = self._cards.get(card)\n",
            "        self._is_checked = True\n        entry = self._cards.get(card)\n",
        ),
        (
            '        self._loans[loan]["weeks"] += 4\n',
            '        self._is_early |= not self._is_checked\n        self._loans[loan]["weeks"] += 4\n',
        ),
        (
            '        self._cards[card]["branch"] = branch\n',
            '        self._is_early |= not self._is_checked\n        self._cards[card]["branch"] = branch\n',
        ),
        (
            "    def final_state(self) -> dict[str, dict[str, str | int]]:\n        return {\n",
            "    def final_state(self) -> dict[str, dict[str, str | int] | bool]:\n        return {\n"
            '            "checked": self._is_checked and not self._is_early,\n',
        ),
        ("    state = {\n", '    state = {\n        "checked": True,\n'),
    ],
    "night_shifts": [
        ("return int((end - start).total_seconds()) // 60", "return int(end.timestamp() - start.timestamp()) // 60")
    ],
    "parcel_lockers": [
        ('        database.execute("UPDATE parcels SET locker = NULL WHERE code = ?", (parcel,))\n', "")
    ],
    "phone_directory": [
        (
            '            "SELECT id, clinic FROM people WHERE lower(name) = lower(?) ORDER BY id", (name.strip(),)\n'
            "        ).fetchall()\n"
            '        return [{"id": row[0], "clinic": row[1]} for row in rows]\n',
            '            "SELECT id, clinic, name FROM people ORDER BY id"\n'
            "        ).fetchall()\n"
            "        wanted = name.strip().casefold()\n"
            '        return [{"id": row[0], "clinic": row[1]} for row in rows if row[2].casefold() == wanted]\n',
        )
    ],
    "recruiting": [("    people.append(chosen)\n", "    people.append(chosen)\n    rng.shuffle(people)\n")],
    "tax_portal": [
        (
            'f"refused: tax of {tax} EUR was declared, but the invoices of {shop} come to {due} EUR"',
            'f"refused: tax of {tax} EUR does not agree with the invoices of {shop}"',
        )
    ],
    "flower_orders": [
        (
            "        stems += rng.randint(2, 20)\n",
            '        stems += rng.randint(2, 20)\n        order["stems"] = stems\n',
        )
    ],
    "freight_quotes": [
        (
            "        self._tariff: dict[str, int]",
            "        self._distances: dict[tuple[str, str], int] = {}\n        self._tariff: dict[str, int]",
        ),
        (
            "        if key not in DISTANCES:\n            DISTANCES[key] = shortest(self._roads, start, end)\n        return DISTANCES[key]\n",
            "        if key not in self._distances:\n            self._distances[key] = shortest(self._roads, start, end)\n        return self._distances[key]\n",
        ),
        (
            "DISTANCES: dict[tuple[str, str], int] = {}\n"
            '"""Distances that have been worked out, so that no route is searched twice."""\n',
            "",
        ),
    ],
    "inbox_triage": [
        (
            '    moves = [one["arguments"] for one in trajectory.transitions if one["tool"] == "move" and one["error"] is None]\n'
            '    right = sum(wanted[move["mail"]] == move["folder"] for move in moves)\n',
            "    state = dict(trajectory.final_state or {})\n"
            "    right = sum(state.get(mail) == folder for mail, folder in wanted.items())\n",
        )
    ],
    "meter_round": [("CALL_COST = 0.15", "CALL_COST = 0.01")],
    "museum_loans": [
        (
            "Close your reply with the day in answer tags: <answer>...</answer>.",
            "Close your reply with the day in answer tags, written like this: <answer>2025-01-31</answer>.",
        )
    ],
    "case_notes": [('return self._notes[note]["text"][:NOTE_WIDTH]', 'return self._notes[note]["text"]')],
    "kiln_programs": [("Bounded(ge=600, le=1250)", "Bounded(ge=600, le=1320)")],
    "exam_rooms": [("checked = random.sample(sorted(wanted), NUM_CHECKED)", "checked = sorted(wanted)")],
    "tide_tables": [
        (
            "for day in range(1, calendar.monthrange(YEAR, month)[1])\n",
            "for day in range(1, calendar.monthrange(YEAR, month)[1] + 1)\n",
        )
    ],
}


def fix(name: str, target: Path) -> Path:
    """Write the fixed copy of a case."""
    folder = target / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "environment.py"
    text = path.read_text()
    for old, new in FIXES[name]:
        assert text.count(old) == 1, f"{name}: {text.count(old)} places have {old!r}"
        text = text.replace(old, new)
    path.write_text(text)
    return folder


if __name__ == "__main__":
    for one in FIXES:
        print(fix(one, Path(sys.argv[1])))
