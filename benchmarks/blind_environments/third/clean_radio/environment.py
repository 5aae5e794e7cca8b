"""A weak radio link: a station answers only after it was called as often as its fading needs, which each task fixes."""

import random
import re

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

STATIONS = ["Alfa", "Bravo", "Delta", "Foxtrot", "Kilo", "Lima", "Oscar", "Tango", "Victor", "Zulu"]
RULES = """\
You are a radio operator. A call may be lost in the noise: the result is then '...' and you call again. No station needs more
than four calls. Two stations send one half of a code word each. Answer with the first station's half followed by the second's,
without a space: <final_output>abcdef</final_output>"""


class Radio(Environment):
    def reset(self, task):
        self.left = dict(task.fields["fading"])
        self.codes = task.fields["codes"]

    @tool
    def call_station(self, name: str) -> str:
        """Call a station; it sends its half of the code word, or the call is lost ('...') and has to be repeated.

        Args:
            name: of the station, for example Alfa
        """
        if name not in self.codes:
            return "no such station"
        if self.left[name] > 0:
            self.left[name] -= 1
            return "..."
        return self.codes[name]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant":
        return 0.0
    found = re.findall(r"<final_output>\s*([a-z]{6})\s*</final_output>", last.get("content") or "")
    wanted = trajectory.task.fields["answer"]
    if len(found) != 1:
        return 0.0
    halves = (found[0][:3] == wanted[:3]) + (found[0][3:] == wanted[3:])
    return {0: 0.0, 1: 0.3, 2: 1.0}[halves]


scorer = exact_match()


def _tasks(split, num):
    rng = random.Random(f"radio {split}")
    for index in range(num):
        names = rng.sample(STATIONS, 4)
        codes = {name: "".join(rng.sample("bcdfghklmnprstvwz", 3)) for name in names}
        fading = {name: rng.randint(0, 3) for name in names}
        first, second = names[:2]
        yield Task(
            id=f"{split}-{index}",
            messages=(
                {"role": "system", "content": RULES},
                {
                    "role": "user",
                    "content": f"Channel {rng.randint(100, 999)}.{index}. First station: {first}. Second station: {second}.",
                },
            ),
            fields={"codes": codes, "fading": fading, "pair": [first, second], "answer": codes[first] + codes[second]},
        )


def train_tasks():
    return list(_tasks("train", 30))


def held_out_tasks():
    return list(_tasks("held-out", 12))
