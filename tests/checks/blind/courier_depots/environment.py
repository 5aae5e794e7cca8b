"""A courier dispatcher: send a parcel through the least loaded depot that serves its postcode."""

import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Message, Reward, Task, Trajectory

DEPOTS = ("Ashby", "Brent", "Corby", "Dover", "Esher", "Frome", "Goole", "Hythe")
PROCEDURE = """\
Dispatch one parcel.
- Ask depots which depots serve the postcode.
- Ask load for each of them: parcels waiting there, and how many fit.
- A depot whose waiting parcels are as many as fit is full and is left out.
- Of the others, the one with the fewest waiting parcels takes it.
Last line of your answer: Depot: <name>"""


class Dispatch(Environment):
    """Which depots serve a postcode follows from the contracts of the day."""

    def reset(self, task: Task) -> None:
        self.contracts: list[dict[str, str]] = task.fields["contracts"]
        self.loads: dict[str, list[int]] = task.fields["loads"]

    @tool
    def depots(self, postcode: str) -> list[str]:
        """Depots that serve a postcode."""
        serving = {contract["depot"] for contract in self.contracts if contract["postcode"] == postcode}
        return list(serving) or ["no depot"]

    @tool
    def load(self, depot: str) -> str:
        """How busy a depot is."""
        if depot not in self.loads:
            raise LookupError(f"no depot is called {depot}")
        waiting, room = self.loads[depot]
        return f"{waiting} parcels wait in {depot}; {room} fit"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        serving = sorted(
            {row["depot"] for row in task.fields["contracts"] if row["postcode"] == task.fields["postcode"]}
        )
        calls = [
            tool_call("depots", postcode=task.fields["postcode"]),
            *(tool_call("load", depot=one) for one in serving),
        ]
        return [*calls, answer(f"Depot: {task.fields['depot']}")]


def last_line(trajectory: Trajectory) -> str:
    message = trajectory.messages[-1]
    lines = str(message.get("content") or "").strip().splitlines()
    return lines[-1] if lines and message["role"] == "assistant" else ""


def reward(trajectory: Trajectory) -> Reward:
    label, _, name = last_line(trajectory).partition(": ")
    form = label == "Depot" and name in DEPOTS
    right = form and name == trajectory.task.fields["depot"]
    return Reward(total=0.1 * form + 0.9 * right, components={"form": 0.1 * form, "right": 0.9 * right})


def scorer(trajectory: Trajectory) -> float:
    final = trajectory.messages[-1]
    if final["role"] != "assistant" or not final.get("content"):
        return 0.0
    return float(final["content"].strip().splitlines()[-1:] == [f"Depot: {trajectory.task.fields['depot']}"])


def train_tasks() -> list[Task]:
    return _tasks("NSW", 48)


def validation_tasks() -> list[Task]:
    return _tasks("E", 16)


def held_out_tasks() -> list[Task]:
    return _tasks("L", 16)


def _tasks(areas: str, num: int) -> list[Task]:
    rng = random.Random(f"dispatch {areas}")
    codes = rng.sample(
        [f"{area}{one}{two} {three}PQ" for area in areas for one in "123456789" for two in "12" for three in "456"], num
    )
    made = []
    for index, postcode in enumerate(codes):
        right, *others = rng.sample(DEPOTS, 5)
        right = DEPOTS[index % len(DEPOTS)]
        serving = [right, *[other for other in others if other != right][:2]]
        fewest = rng.randint(3, 20)
        loads = {depot: [rng.randint(1, 60), 70] for depot in DEPOTS}
        loads |= {
            right: [fewest, 40],
            serving[1]: [fewest + rng.randint(1, 9), 40],
            serving[2]: [fewest - 2, fewest - 2],
        }
        rows = [{"depot": depot, "postcode": postcode, "day": day} for depot in serving for day in ("Mon", "Thu")]
        rows += [{"depot": depot, "postcode": codes[index - 1], "day": "Tue"} for depot in rng.sample(DEPOTS, 2)]
        rng.shuffle(rows)
        text = f"Parcel of {rng.randint(1, 30)} kg and {rng.randint(20, 90)} cm for {postcode}, which depot?"
        fields = {"postcode": postcode, "contracts": rows, "loads": loads, "depot": right}
        messages = ({"role": "system", "content": PROCEDURE}, {"role": "user", "content": text})
        made.append(Task(id=f"parcel-{postcode}", messages=messages, fields=fields))
    return made
