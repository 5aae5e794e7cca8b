"""Puts each planted defect right in a copy, and asserts that nothing else keeps a careful policy from being paid.

python fixes.py [FOLDER]      FOLDER keeps the copies; otherwise they are removed
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

import play

FIXES: dict[str, list[tuple[str, str]]] = {
    "hotel_desk": [
        ('"SELECT room, first_night FROM bookings WHERE id = ?"', '"SELECT room, first_night, first_night + nights - 1 FROM bookings WHERE id = ?"'),
        ("DELETE FROM occupied WHERE room = ? AND night = ?", "DELETE FROM occupied WHERE room = ? AND night BETWEEN ? AND ?"),
    ],
    "warehouse_count": [("max(1, len(self.articles) // PAGE_SIZE)", "max(1, -(-len(self.articles) // PAGE_SIZE))")],
    "library_loans": [("self.catalog = dict(CATALOG)", "import copy\n        self.catalog = copy.deepcopy(CATALOG)")],
    "expense_desk": [('int(float(self.receipts[one]["amount"]) * 100)', 'int(Decimal(self.receipts[one]["amount"]) * 100)')],
    "meeting_times": [
        (
            "{datetime.fromisoformat(one['utc']) + shift:%Y-%m-%d %H:%M}",
            "{datetime.fromisoformat(one['utc'] + '+00:00').astimezone(ZONES[self.city]):%Y-%m-%d %H:%M}",
        )
    ],
    "dungeon": [("random.Random(hash(task.id))", "random.Random(task.id)")],
    "config_search": [("for file in self._files()\n            for line", 'for file in self._files() if not file.name.startswith(".")\n            for line')],
    "helpdesk": [("WHERE login LIKE ? ORDER", "WHERE login = lower(?) ORDER")],
    "ward_pharmacy": [('scale = {"mcg": 1, "mg": 1_000}', "scale = MICROGRAMS")],
    "payments": [("        self._withdraw(source, cents)\n", '        if self.row(target)[2]:\n            raise ToolFailure(f"account {target} is closed")\n        self._withdraw(source, cents)\n')],
    "flight_rebooking": [
        ("        self.bookings = {}\n", "        self.bookings, self.made = {}, 0\n"),
        ('booking = f"BK{len(self.bookings) + 1:03d}"', 'self.made += 1\n        booking = f"BK{self.made:03d}"'),
    ],
    "headcount": [("if not self.granted:", "if department not in self.granted:")],
    "order_totals": [("str(first) <= order.placed <= str(last)", "str(first) <= order.placed[:10] <= str(last)")],
    "thermostats": [('Literal["comfort", "eco", "off"]', 'Literal["comfort", "eco", "frost"]')],
    "vet_registry": [("self._owners.get(name.strip().lower())", "self._owners.get(registry_key(name))")],
    "price_list": [('        return f"{changed.rowcount} prices', '        self._read.clear()\n        return f"{changed.rowcount} prices')],
    "meter_usage": [("self.table.groupby(by)", "self.table.groupby(by, dropna=False)")],
    "lot_recall": [("/ len(given) if given else 0.0", "/ len(set(given) | wanted) if len(given) == len(set(given)) else 0.0")],
    "spare_parts": [("max_turns = 8", "max_turns = 12")],
    "timetable": [("rng = random.Random(seed)", 'rng = random.Random(f"{split} {seed}")')],
}  # fmt: skip


async def main(folder: Path) -> None:
    async def prove_fixed(self: play.Case, policy: play.Policy, is_hit: object) -> str:
        return await self.prove_clean(policy)

    play.HERE, play.Case.prove = folder, prove_fixed
    defects = sorted(path.parent.name for path in Path(__file__).parent.glob("*/defect.toml"))
    assert defects == sorted(FIXES), set(defects) ^ set(FIXES)
    for name in defects:
        shutil.copytree(
            Path(__file__).parent / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "defect.toml")
        )
        changed = 0
        for file in ("environment.py", "recipe.toml"):
            text = (folder / name / file).read_text()
            for old, new in FIXES[name]:
                changed += text.count(old)
                text = text.replace(old, new)
            (folder / name / file).write_text(text)
        assert changed == len(FIXES[name]), (name, changed)
        case = play.Case(name)
        await play.general(case)
        try:
            told = await getattr(play, name)(case)
        except AssertionError as error:
            told = f"the proof of the defect fails, as it must: {error!s:.100}"
            assert name in ("library_loans", "dungeon", "config_search", "headcount", "lot_recall", "timetable"), name
        except play.Refused as error:
            told = f"the proof of the defect is refused, as it must be: {error}"
            assert name == "headcount"
        print(f"{name}: {told}")


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            asyncio.run(main(Path(temporary)))
