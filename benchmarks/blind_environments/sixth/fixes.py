"""Writes copies of the planted environments with the defect taken out: python fixes.py TARGET_FOLDER."""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENT = "environment.py"

FIXES = {
    "airport_gates": [
        (
            ENVIRONMENT,
            ' by {self.gates[gate]}"\n',
            ' by {self.gates[gate]}"\n        old = next(g for g, f in self.gates.items() if f == flight)\n        self.gates[old] = None\n',
        )
    ],
    "auction_bids": [(ENVIRONMENT, "str(amount) <= highest:\n", "amount <= int(highest):\n")],
    "bank_transfers": [
        (
            ENVIRONMENT,
            '        db.execute("UPDATE accounts SET balance = balance - ? WHERE owner = ?", (amount, sender))\n',
            "",
        ),
        (
            ENVIRONMENT,
            'receiver} has no account"',
            'receiver} has no account"\n        db.execute("UPDATE accounts SET balance = balance - ? WHERE owner = ?", (amount, sender))',
        ),
    ],
    "bus_timetable": [(ENVIRONMENT, '{5: "saturday", 6: "sunday"}.get(day.isoweekday(), "weekday"', "kind_of(day")],
    "cinema_seats": [
        (ENVIRONMENT, "self.hall = dict(HALL)\n", "self.hall = {row: list(seats) for row, seats in HALL.items()}\n")
    ],
    "clinic_records": [(ENVIRONMENT, "begin = page * PAGE\n", "begin = (page - 1) * PAGE\n")],
    "code_katas": [(ENVIRONMENT, 'all(state["results"]) ', 'state["results"] and all(state["results"]) ')],
    "court_docket": [(ENVIRONMENT, ") if index % 5 >= 3]\n", ") if index % 5 == 4]\n")],
    "dictionary_hangman": [(ENVIRONMENT, " not letter.isalpha():\n", " len(letter) != 1 or not letter.isalpha():\n")],
    "elevator_shafts": [("recipe.toml", "max_turns = 5\n", "max_turns = 20\n")],
    "farm_irrigation": [(ENVIRONMENT, ') * plot["area"] / 1000\n', ') * plot["area"]\n')],
    "festival_files": [
        (ENVIRONMENT, "import json\n", ""),
        (
            ENVIRONMENT,
            '        # What the clerk has to find out.\n        (folder / "task.json").write_text(json.dumps(dict(task.fields)))\n',
            "",
        ),
    ],
    "garage_parts": [(ENVIRONMENT, " for word in words)][:10", ".lower() for word in words)][:10")],
    "gym_membership": [
        (
            ENVIRONMENT,
            '\n\ndef end_of(start: date, months: int) -> date:\n    """The same day so many months later."""\n    return start.replace(month=start.month + months)\n',
            "",
        ),
        (ENVIRONMENT, "end_of(date.", "later(date."),
    ],
    "hotel_desk": [(ENVIRONMENT, "trajectory.transitions]\n", 'trajectory.transitions if t["error"] is None]\n')],
    "insurance_claims": [(ENVIRONMENT, '"] > 1000 else "pay"\n', '"] > 2000 else "pay"\n')],
    "kitchen_orders": [
        (
            ENVIRONMENT,
            'sum(item in fields["needed"] for item in looked',
            'min(3, len({item for item in looked if item in fields["needed"]})',
        )
    ],
    "library_loans": [
        (ENVIRONMENT, "f\"DELETE FROM loans WHERE title = '{title}'\"", '"DELETE FROM loans WHERE title = ?", (title,)')
    ],
    "lottery_odds": [(ENVIRONMENT, "=1e-3, abs_tol=1))\n", "=1e-3, abs_tol=5e-4))\n")],
    "mail_triage": [
        (
            ENVIRONMENT,
            'trajectory.task.fields["team"] in _answer(trajectory)',
            '_answer(trajectory).strip(" .") == trajectory.task.fields["team"]',
        )
    ],
}


def write_fixed(target):
    for name, replacements in FIXES.items():
        folder = Path(target) / name
        shutil.copytree(HERE / name, folder, ignore=shutil.ignore_patterns("__pycache__", "defect.toml"))
        for file, old, new in replacements:
            text = (folder / file).read_text(encoding="utf-8")
            if text.count(old) != 1:
                raise SystemExit(f"{name}/{file} has {old!r} {text.count(old)} times")
            (folder / file).write_text(text.replace(old, new), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write_fixed(sys.argv[1])
