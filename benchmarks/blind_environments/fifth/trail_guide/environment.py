"""Questions to a hiking guide, each asked in several ways."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

TRAILS = {
    "Eagle Ridge": {"km": 14, "climb": 880, "hut": "Adler"},
    "Mill Valley": {"km": 6, "climb": 120, "hut": "Grist"},
    "Two Lakes": {"km": 11, "climb": 410, "hut": "Heron"},
    "Old Border": {"km": 19, "climb": 640, "hut": "Customs"},
    "Pine Loop": {"km": 8, "climb": 260, "hut": "Cone"},
    "Chapel Path": {"km": 4, "climb": 90, "hut": "Bell"},
    "High Meadow": {"km": 12, "climb": 730, "hut": "Gentian"},
    "Smugglers Way": {"km": 16, "climb": 950, "hut": "Lantern"},
    "River Bend": {"km": 9, "climb": 60, "hut": "Otter"},
    "Quarry Trail": {"km": 5, "climb": 310, "hut": "Chisel"},
}
WAYS = {
    "km": ("How long is {}?", "What is the length of {} in km?", "How many kilometres does {} have?"),
    "climb": (
        "How much does {} climb?",
        "How many metres of ascent does {} have?",
        "What is the ascent of {} in metres?",
    ),
    "hut": ("Which hut is on {}?", "Where can one stay on {}?", "What is the name of the hut of {}?"),
}
HELP = "Call facts for a trail and reply with the number or the name only."


class Guide(Environment):
    @tool
    def facts(self, trail: str) -> dict[str, str]:
        """Length, ascent and hut of a trail.

        Args:
            trail: its name
        """
        if trail not in TRAILS:
            raise ValueError(f"no trail {trail!r}; there are {', '.join(TRAILS)}")
        return {key: str(value) for key, value in TRAILS[trail].items()}

    @tool
    def trails(self, at_most_km: int = 99) -> list[str]:
        """Names of the trails, those that are not longer than so many kilometres."""
        return [name for name, row in TRAILS.items() if row["km"] <= at_most_km]


def _reply(trajectory):
    last = trajectory.messages[-1]
    return str(last.get("content") or "").strip().rstrip(".") if last["role"] == "assistant" else ""


def reward(trajectory):
    return float(_reply(trajectory) == trajectory.task.fields["answer"])


def scorer(trajectory):
    fields = trajectory.task.fields
    return 1.0 if _reply(trajectory) == str(TRAILS[fields["trail"]][fields["about"]]) else 0.0


def everything():
    """One row a question: trail, what about, wording."""
    return [(trail, about, way) for trail in TRAILS for about, ways in WAYS.items() for way in ways]


def _split(name):
    rows = everything()
    random.Random(11).shuffle(rows)
    return {"train": rows[:60], "validation": rows[60:75], "held_out": rows[75:]}[name]


def _tasks(name):
    return [
        Task(
            id=f"{name}-{index}",
            messages=({"role": "system", "content": HELP}, {"role": "user", "content": way.format(trail)}),
            fields={"trail": trail, "about": about, "answer": str(TRAILS[trail][about])},
        )
        for index, (trail, about, way) in enumerate(_split(name))
    ]


def train_tasks():
    return _tasks("train")


def validation_tasks():
    return _tasks("validation")


def held_out_tasks():
    return _tasks("held_out")
