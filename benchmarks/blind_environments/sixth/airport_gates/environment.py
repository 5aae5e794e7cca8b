"""Airport gates: move flights to the gates that the tower asks for."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

GATES = ["A1", "A2", "A3", "B1", "B2", "B3"]
AIRLINES = ["KL", "BA", "LH", "AF", "IB", "SK"]


class Apron(Environment):
    def reset(self, task: Task) -> None:
        self.gates: dict[str, str | None] = dict.fromkeys(GATES)
        for flight, gate in task.fields["start"].items():
            self.gates[gate] = flight

    @tool
    def show_gates(self) -> dict[str, str]:
        """Which flight stands at which gate; free gates are "free"."""
        return {gate: flight or "free" for gate, flight in self.gates.items()}

    @tool
    def move_flight(self, flight: str, gate: str) -> str:
        """Move a flight to a free gate. Its old gate is free afterwards.

        Args:
            flight: flight number, such as KL204
            gate: the gate to move to, such as B2
        """
        if gate not in self.gates:
            return f"error: there is no gate {gate}"
        if flight not in self.gates.values():
            return f"error: flight {flight} is not on the apron"
        if self.gates[gate] is not None:
            return f"error: gate {gate} is taken by {self.gates[gate]}"
        self.gates[gate] = flight
        return f"{flight} is at {gate}"

    def final_state(self) -> dict:
        return {"gates": dict(self.gates)}


def _at_gate(trajectory: Trajectory, flight: str, gate: str) -> bool:
    state = trajectory.final_state or {"gates": {}}
    return state["gates"].get(gate) == flight


def reward(trajectory: Trajectory) -> float:
    """The share of the flights that stand where they were asked to go."""
    wanted = trajectory.task.fields["wanted"]
    return sum(_at_gate(trajectory, f, g) for f, g in wanted.items()) / len(wanted)


def scorer(trajectory: Trajectory) -> float:
    return float(all(_at_gate(trajectory, f, g) for f, g in trajectory.task.fields["wanted"].items()))


def _tasks(split: str, num: int) -> list[Task]:
    rng = random.Random(f"apron-{split}")
    out = []
    for index in range(num):
        flights = [f"{airline}{rng.randint(100, 999)}" for airline in rng.sample(AIRLINES, 4)]
        gates = rng.sample(GATES, 6)
        start = dict(zip(flights, gates))
        # The second flight goes to the gate that the first one leaves.
        wanted = {flights[0]: gates[4], flights[1]: gates[0]}
        text = (
            f"Please move {flights[0]} to gate {gates[4]} and after that {flights[1]} to gate {gates[0]}. "
            "Answer 'done' when both are moved."
        )
        out.append(
            Task(
                id=f"apron-{split}-{index}",
                messages=({"role": "user", "content": text},),
                fields={"start": start, "wanted": wanted},
            )
        )
    return out


def train_tasks() -> list[Task]:
    return _tasks("train", 80)


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", 30)
