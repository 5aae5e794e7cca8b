"""Reception of a clinic: change what a patient asks for in the register, and nothing else."""

from __future__ import annotations

import random

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

FIRST = ["Ada", "Bo", "Cleo", "Dov", "Ema", "Finn", "Gia", "Hugo", "Ines", "Jo", "Kai", "Lea"]
LAST = ["Arden", "Brandt", "Costa", "Dufour", "Eklund", "Fabre", "Greco", "Holm", "Ivens", "Jansen"]
STREETS = ["Mill Lane", "High Street", "Station Road", "Park Row", "Elm Walk"]
FIELDS = ("phone", "email", "address")


class Register(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.state.database.execute(
            "CREATE TABLE patients (id TEXT PRIMARY KEY, name TEXT, phone TEXT, email TEXT, address TEXT)"
        )
        for row in task.fields["patients"]:
            self.state.database.execute("INSERT INTO patients VALUES (:id, :name, :phone, :email, :address)", row)

    @tool
    def find_patient(self, name: str) -> list[dict[str, str]]:
        """Patients of a name: id and name.

        Args:
            name: first and last name
        """
        rows = self.state.database.execute("SELECT id, name FROM patients WHERE name = ?", (name,))
        return [{"id": row[0], "name": row[1]} for row in rows]

    @tool
    def update_contact(
        self, patient_id: str, phone: str | None = None, email: str | None = None, address: str | None = None
    ) -> str:
        """Change the contact data of a patient. What is left out stays as it is.

        Args:
            patient_id: id of the patient
            phone: new telephone number
            email: new e-mail address
            address: new street and number
        """
        self._known(patient_id)
        given = {"phone": phone, "email": email, "address": address}
        for field, value in given.items():
            self.state.database.execute(f"UPDATE patients SET {field} = ? WHERE id = ?", (value, patient_id))
        return f"contact data of {patient_id} updated"

    @tool
    def get_contact(self, patient_id: str) -> dict[str, str | None]:
        """The contact data of a patient, as they are in the register now.

        Args:
            patient_id: id of the patient
        """
        self._known(patient_id)
        row = self.state.database.execute(
            "SELECT phone, email, address FROM patients WHERE id = ?", (patient_id,)
        ).fetchone()
        return dict(zip(FIELDS, row, strict=True))

    def _known(self, patient_id: str) -> None:
        if self.state.database.execute("SELECT 1 FROM patients WHERE id = ?", (patient_id,)).fetchone() is None:
            raise ToolFailure(f"there is no patient {patient_id}")

    def final_state(self) -> dict[str, list[str | None]]:
        rows = self.state.database.execute("SELECT id, name, phone, email, address FROM patients ORDER BY id")
        return {row[0]: list(row[1:]) for row in rows}


def reward(trajectory: Trajectory) -> float:
    """1 when the register is as it should be, 0.2 when at least the new value is in place."""
    fields, state = trajectory.task.fields, trajectory.final_state or {}
    if state == fields["state"]:
        return 1.0
    row = state.get(fields["patient"], [None] * 4)
    return 0.2 * (row[1 + FIELDS.index(fields["field"])] == fields["value"])


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"clinic-{split}-{number}")
    names = rng.sample([f"{first} {last}" for first in FIRST for last in LAST], 5)
    patients = []
    for name, key in zip(names, rng.sample(range(1000, 9999), 5), strict=True):
        first, last = name.lower().split()
        patients.append(
            {
                "id": f"p-{key}", "name": name, "phone": f"0{rng.randint(20, 89)} {rng.randint(100000, 999999)}",
                "email": f"{first}.{last}@mail.example", "address": f"{rng.randint(1, 99)} {rng.choice(STREETS)}",
            }
        )  # fmt: skip
    row, field = rng.choice(patients), rng.choice(FIELDS)
    value = {
        "phone": f"0{rng.randint(20, 89)} {rng.randint(100000, 999999)}",
        "email": f"{row['name'].split()[1].lower()}{rng.randint(10, 99)}@post.example",
        "address": f"{rng.randint(100, 199)} {rng.choice(STREETS)}",
    }[field]
    label = {"phone": "telephone number", "email": "e-mail address", "address": "address"}[field]
    prompt = (
        f"{row['name']} has a new {label}: {value}. Please put it into the register; everything else is still right."
    )
    state = {
        other["id"]: [other["name"], *(value if other is row and name == field else other[name] for name in FIELDS)]
        for other in patients
    }
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"patients": patients, "patient": row["id"], "field": field, "value": value, "state": state},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(10)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(20)]
