"""`python fixes.py DIR` writes copies of the cases with each defect put right, by replacing text."""

import shutil
import sys
from pathlib import Path

FIXES = {
    "hotel_desk": (
        "environment.py",
        "SET status = 'cancelled' WHERE guest = ?\", (guest,))",
        "SET status = 'cancelled' WHERE id = ?\", (booking_id,))",
    ),
    "branch_library": ("environment.py", "max(1, len(everything) // PAGE_SIZE)", "-(-len(everything) // PAGE_SIZE)"),
    "weather_station": (
        "environment.py",
        'float(self._of(place)["celsius"].mean())',
        'float(self._of(place)["celsius"].replace(MISSING, float("nan")).mean())',
    ),
    "cellar_crawl": (
        "environment.py",
        "        self.is_won = False\n",
        "        self.is_won = False\n        self.bag = []\n",
    ),
    "payroll": (
        "environment.py",
        "return Decimal(int(net * 100)) / 100",
        "return net.quantize(CENT, rounding=ROUND_HALF_UP)",
    ),
    "lab_journal": ("environment.py", 'self._path(name), "w"', 'self._path(name), "a"'),
    "flight_search": ("environment.py", 'key=lambda row: row["price"]', 'key=lambda row: int(row["price"])'),
    "expense_desk": ("environment.py", '["amount"] >= 500', '["amount"] > 500'),
    "doc_portal": (
        "environment.py",
        "if self.role == Role.ADMIN or Role.EDITOR:",
        "if self.role in (Role.ADMIN, Role.EDITOR):",
    ),
    "contracts": ("environment.py", "dt.date.today()", "TODAY"),
    "kitchen": ("environment.py", "people or 2", "people or 4"),
    "playlist": ("environment.py", "len(given & wanted) / len(wanted)", "len(given & wanted) / len(given | wanted)"),
    "parcels": ("environment.py", '" days$"', '" days?$"'),
    "village_bank": (
        "environment.py",
        "        source.withdraw(amount)\n",
        '        if target.is_closed:\n            raise ToolFailure(f"the account of {receiver} is closed")\n        source.withdraw(amount)\n',
    ),
    "dilution": ("environment.py", "random.Random(2024)", 'random.Random(f"{split} 2024")'),
    "clinic": (
        "environment.py",
        "taken = {start for start, _, _ in self.diary}",
        "taken = {minute for start, length, _ in self.diary for minute in range(start, start + length, STEP)}",
    ),
    "directory": (
        "environment.py",
        'return name.casefold().encode("ascii", "ignore").decode()',
        "return name.casefold()",
    ),
    "stockroom": (
        "environment.py",
        '        return f"{delivery} is unpacked"',
        '        self._counts.pop(article, None)\n        return f"{delivery} is unpacked"',
    ),
    "family_tree": ("recipe.toml", "max_turns = 6", "max_turns = 9"),
    "meter_reading": ("environment.py", r'\s*(\d+)"', r'\s*(\d+(?:\.\d+)?)\s*</final_output>"'),
}


def main(target: Path) -> None:
    here = Path(__file__).parent
    for folder in sorted(path.parent for path in here.glob("*/recipe.toml")):
        shutil.copytree(folder, target / folder.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (file, old, new) in FIXES.items():
        path = target / name / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, text.count(old))
        path.write_text(text.replace(old, new), encoding="utf-8")
    print(f"{len(FIXES)} put right in {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
