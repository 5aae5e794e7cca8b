"""Writes copies of the planted environments with the defect taken out: python fixes.py TARGET_FOLDER."""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENT = "environment.py"

FIXES = {
    "bank_desk": [(ENVIRONMENT, ' "no such accounts"\n', ' "no such accounts"\n        amount *= 100\n')],
    "config_files": [
        (
            ENVIRONMENT,
            'with path.open(encoding="utf-8") as file:\n            return file.read(256)  # keeps the context short',
            'return path.read_text(encoding="utf-8")',
        )
    ],
    "date_due": [(ENVIRONMENT, "begins + timedelta(days=term[0] * DAYS[term[1]]", "_after(begins, *term")],
    "delivery_route": [
        (
            ENVIRONMENT,
            'length = sum(fields["',
            'if sorted(stops) != sorted(fields["stops"]):\n        return 0.0\n    length = sum(fields["',
        )
    ],
    "dungeon_keys": [
        (
            ENVIRONMENT,
            "that has no key yet.\n        keys[rng.choice([room for room in rooms[:-",
            "before the door that has no key yet.\n        keys[rng.choice([room for room in rooms[: door + ",
        )
    ],
    "family_tree": [("recipe.toml", "max_turns = 5\n", "max_turns = 9\n")],
    "flight_search": [(ENVIRONMENT, ': flight["price"])\n', ': int(flight["price"]))\n')],
    "formula_kata": [(ENVIRONMENT, ", rng.randint(4, 8))]\n", ", rng.randint(8, 12))]\n")],
    "geo_choice": [(ENVIRONMENT, ".shuffle(list(options))\n", ".shuffle(options)\n")],
    "invoice_totals": [
        (
            ENVIRONMENT,
            'with thousands separator, two decimals and "\n    "currency, like this: <final_output>EUR 1,284.50',
            'in euros, as a bare number without "\n    "currency and separators, like this: <final_output>1284.5',
        )
    ],
    "mail_triage": [
        (ENVIRONMENT, ' _tasks("train", 48)\n', ' _tasks("train", 0, 48)\n'),
        (ENVIRONMENT, ' _tasks("held_out", 16)\n', ' _tasks("held_out", 48, 64)\n'),
        (
            ENVIRONMENT,
            'num: int) -> list[Task]:\n    # A seed of its own for each split.\n    rng = random.Random(f"mail-{split}',
            'begin: int, end: int) -> list[Task]:\n    rng = random.Random("mail',
        ),
        (ENVIRONMENT, "rng.sample(pool, num))]\n", "rng.sample(pool, len(pool))[begin:end])]\n"),
    ],
    "meeting_slots": [(ENVIRONMENT, 'an "\n    "hour at which ', 'the "\n    "earliest hour of the week at which ')],
    "patient_records": [(ENVIRONMENT, ".get(str(number))\n", '.get(f"{number:03}")\n')],
    "recipe_scaler": [
        (ENVIRONMENT, "import re\n", "import re\nimport zlib\n"),
        (ENVIRONMENT, 'hash(task.fields["dish"]', 'zlib.crc32(task.fields["dish"].encode()'),
    ],
    "refund_desk": [
        (
            ENVIRONMENT,
            '    looked_up = any(call["tool"] == "order" and call["error"] is None for call in trajectory.transitions)\n',
            "",
        ),
        (
            ENVIRONMENT,
            'told = last["content"].lower()\n    handled = "refunded" in told if is_due else "refused" in told\n    both = "refunded" in told and "refused" in told\n    return float(looked_up and handled and not both',
            'wanted = "refunded" if is_due else "refused: final_sale" if order["final_sale"] else "refused: late"\n    handled = trajectory.final_state == {"decisions": {order["number"]: wanted}}\n    return float(handled',
        ),
    ],
    "river_atlas": [
        (
            ENVIRONMENT,
            'trajectory.task.fields["answer"] in given',
            'given == [trajectory.task.fields["answer"]] and last["content"].count("<final_output>") == 1',
        )
    ],
    "stockroom": [(ENVIRONMENT, "shelves = OPENING_STOCK\n", "shelves = dict(OPENING_STOCK)\n")],
    "thermometers": [(ENVIRONMENT, "= TOLERANCE * expected)\n", "= TOLERANCE * abs(expected))\n")],
    "ticket_priority": [(ENVIRONMENT, ") if value is not None}\n", ') if key != "rated"}\n')],
    "word_ladder": [
        (
            ENVIRONMENT,
            'if _distance(new, fields["target"]) < _distance(word, fields["target"]):\n                total += 0.2',
            'total += 0.2 * (_distance(word, fields["target"]) - _distance(new, fields["target"]))',
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
