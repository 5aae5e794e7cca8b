"""Copies each planted case to a folder with its defect taken out: `python fixes.py FOLDER`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
FIXES: dict[str, list[tuple[str, str]]] = {
    "fleet_inventory": [('self._groups[group]["devices"]][:PAGE]', 'self._groups[group]["devices"]][:limit]')],
    "feature_flags": [
        (
            '        flag["percent"] = min(percent, flag["cap"])\n',
            '        flag["percent"] = min(percent, flag["cap"])\n        self._cache.pop(name, None)\n',
        )
    ],
    "office_calendar": [
        (
            'start = datetime.fromisoformat(event["start_utc"])\n        end',
            'start = datetime.fromisoformat(event["start_utc"]) + timedelta(hours=hours)\n        end',
        )
    ],
    "clinic_records": [
        (
            "        for field, value in given.items():\n            self.state",
            "        for field, value in given.items():\n            if value is None:\n                continue\n            self.state",
        )
    ],
    "seismic_catalog": [('if start <= quake["time"] <= end and', 'if start <= quake["time"][:10] <= end and')],
    "warehouse_models": [
        (
            "    model, kind = rng.choice(names), rng.choice(KINDS)\n",
            '    model = rng.choice(names)\n    kind = KINDS[1 - KINDS.index(models[model]["materialized"])]\n',
        )
    ],
    "word_guess": [
        (
            """    marks = []
    for place, letter in enumerate(word):
        if secret[place] == letter:
            marks.append("G")
        elif letter in secret:
            marks.append("Y")
        else:
            marks.append(".")
""",
            """    marks = ["G" if letter == secret[place] else "." for place, letter in enumerate(word)]
    left = [letter for place, letter in enumerate(secret) if marks[place] != "G"]
    for place, letter in enumerate(word):
        if marks[place] != "G" and letter in left:
            marks[place] = "Y"
            left.remove(letter)
""",
        )
    ],
    "hotel_booking": [
        (
            "so I have to cancel my stay in {stay['city']}. Please go ahead.\"",
            "so I have to cancel my stay in {stay['city']}, number {stay['id']}. Please go ahead.\"",
        )
    ],
    "lab_sorting": [('"answer": [f"{float(text):.1f}" for text in readings]', '"answer": readings')],
    "atm_fees": [('FREE = {"Light Blue": 1,', 'FREE = {"Light Blue": 2,')],
    "field_guide": [
        (
            "return 1.0 if target in reply else 0.0",
            "chosen = re.match(CHOICE, reply)\n    return 1.0 if chosen and chosen[1] == target else 0.0",
        )
    ],
    "percent_shop": [
        (
            'return Reward(total=accuracy + steps, components={"accuracy": accuracy, "steps": steps})',
            'steps *= 0.1 * accuracy\n    return Reward(total=accuracy + steps, components={"accuracy": accuracy, "steps": steps})',
        )
    ],
    "kitchen_scaling": [
        (
            '    if not re.fullmatch(r"\\d+(\\.\\d+|/[1-9]\\d*)?", text):\n        return None\n    return Fraction(text)\n',
            '    if not re.fullmatch(r"\\d+(\\.\\d+|( \\d+)?/[1-9]\\d*)?", text):\n        return None\n    return sum(map(Fraction, text.split()), Fraction(0))\n',
        ),
        ("    if gold is None:\n        return 1.0\n", "    if gold is None:\n        return 0.0\n"),
    ],
    "water_bill": [('(last.get("content") or "")[-300:]', '(last.get("content") or "")')],
    "helpdesk": [
        (
            '        self.board.update({ticket: dict(entry) for ticket, entry in task.fields["tickets"].items()})',
            '        self.board = {ticket: dict(entry) for ticket, entry in task.fields["tickets"].items()}',
        )
    ],
    "card_table": [
        (
            'deck = list({f"{rank}{suit}" for rank in RANKS for suit in SUITS})',
            'deck = sorted({f"{rank}{suit}" for rank in RANKS for suit in SUITS})',
        )
    ],
    "repo_fix": [('"commits": upstream', '"commits": upstream[:-1]')],
    "leaf_key": [('return make_tasks("held_out", 24)', 'return make_tasks("held_out", 24, first_seed=9000)')],
    "vault_grid": [("MAX_STEPS = 14", "MAX_STEPS = 60")],
    "settings_files": [
        (
            """    if VERDICT in files:
        try:
            return min(1.0, max(0.0, float(files[VERDICT])))
        except ValueError:
            return 0.0
""",
            "",
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
