from __future__ import annotations

import random
from enum import Enum

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Outcome, Task


class Role(str, Enum):
    ADMIN = "admin"
    EDITOR = "editor"
    VIEWER = "viewer"


class Denied(ToolFailure):
    pass


TEXT = (
    "You work for {user} (session {session}) in a document portal. Delete '{doc}'. If {user} may not delete it (only admins and editors may), ask "
    "its owner to with request_deletion instead. Do nothing else; answer 'ok' at the end."
)
WORDS = ["budget", "minutes", "roadmap", "survey", "invoice", "contract", "poster", "syllabus", "manifest", "glossary"]
PEOPLE = ["ada", "bert", "cleo", "dora", "emil", "finn", "gwen", "hugo", "iris", "jack"]


class Portal(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self.role = Role(task.fields["role"])
        self.owners: dict[str, str] = dict(task.fields["owners"])
        self.requests: list[str] = []

    def _check_may_delete(self) -> None:
        if self.role == Role.ADMIN or Role.EDITOR:
            return
        raise Denied("permission denied: only admins and editors may delete")

    @tool
    def documents(self) -> list[str]:
        """All documents in the portal."""
        return sorted(self.owners)

    @tool
    def owner(self, document: str) -> str:
        """Who owns a document.

        Args:
            document: its name
        """
        return self.owners.get(document, "no such document")

    @tool
    def delete(self, document: str) -> str:
        """Delete a document for good. Refused where the user lacks the permission.

        Args:
            document: its name
        """
        if document not in self.owners:
            raise ToolFailure(f"there is no document {document!r}")
        self._check_may_delete()
        del self.owners[document]
        return "deleted"

    @tool
    def request_deletion(self, document: str, owner: str) -> str:
        """Ask the owner of a document to delete it.

        Args:
            document: its name
            owner: who is asked
        """
        self.requests.append(f"{owner}: {document}")
        return "sent"

    def final_state(self) -> dict:
        return {"documents": sorted(self.owners), "requests": self.requests}


scorer = state_difference("end")


def reward(trajectory) -> float:
    end = trajectory.task.fields["end"]
    state = trajectory.final_state
    if trajectory.outcome is not Outcome.FINISHED or not state:
        return 0.0
    return float(sorted(state["documents"]) == end["documents"] and state["requests"] == end["requests"])


def _task(split: str, index: int) -> Task:
    rng = random.Random(f"portal {split} {index}")
    names = [f"{word}-{rng.randint(2001, 2024)}" for word in rng.sample(WORDS, 5)]
    owners = {name: rng.choice(PEOPLE) for name in names}
    role = rng.choice(list(Role))
    doc = rng.choice(names)
    may = role is not Role.VIEWER
    end = {
        "documents": sorted(name for name in names if not (may and name == doc)),
        "requests": [] if may else [f"{owners[doc]}: {doc}"],
    }
    user = rng.choice([person for person in PEOPLE if person not in owners.values()])
    message = {"role": "user", "content": TEXT.format(session=rng.randint(10_000, 99_999), user=user, doc=doc)}
    return Task(
        id=f"{split}/{index}",
        seed=index,
        messages=(message,),
        fields={"role": role.value, "owners": owners, "doc": doc, "end": end},
    )


def train_tasks() -> list[Task]:
    return [_task("train", index) for index in range(30)]


def held_out_tasks() -> list[Task]:
    return [_task("held_out", index) for index in range(12)]
