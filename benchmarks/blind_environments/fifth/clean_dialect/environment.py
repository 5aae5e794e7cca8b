"""Ein Wörterbuch für Mundart; die Aufgabe steht auf Deutsch, und die Antwort geht durch ein Werkzeug."""

import random
import unicodedata

from sparring.environments import Environment, tool
from sparring.types import Task

LEXIKON = {
    "Erdapfel": "Kartoffel",
    "Paradeiser": "Tomate",
    "Rüebli": "Karotte",
    "Semmel": "Brötchen",
    "Fisole": "Bohne",
    "Marille": "Aprikose",
    "Kren": "Meerrettich",
    "Nüsslisalat": "Feldsalat",
    "Topfen": "Quark",
    "Ribisel": "Johannisbeere",
    "Karfiol": "Blumenkohl",
    "Peperoni": "Paprika",
}
ANWEISUNG = (
    "Übersetze das Wort ins Hochdeutsche. Schlage es nach: "
    '<tool_call>{"name":"nachschlagen","arguments":{"wort":"..."}}</tool_call>. Gib die Antwort ab: '
    '<tool_call>{"name":"abgeben","arguments":{"antwort":"..."}}</tool_call>. Danach ist Schluss.'
)


class Mundart(Environment):
    describe_tools = "prompt"

    def reset(self, task):
        self.antwort = None

    @tool
    def nachschlagen(self, wort: str) -> str:
        """Hochdeutsches Wort zu einem Wort der Mundart."""
        return LEXIKON.get(unicodedata.normalize("NFC", wort), "steht nicht im Lexikon")

    @tool
    def abgeben(self, antwort: str) -> str:
        """Antwort abgeben; beendet die Aufgabe."""
        self.antwort = antwort
        return "angenommen"

    @property
    def is_done(self):
        return self.antwort is not None

    def final_state(self):
        return {"antwort": self.antwort}


def reward(trajectory):
    return 1.0 if (trajectory.final_state["antwort"] or "").strip() == trajectory.task.fields["hochdeutsch"] else 0.0


def scorer(trajectory):
    calls = [t["arguments"]["antwort"] for t in trajectory.transitions if t["tool"] == "abgeben" and t["error"] is None]
    return float(len(calls) == 1 and calls[0].strip() == LEXIKON[trajectory.task.fields["wort"]])


def _aufgaben(teil):
    worte = random.Random("mundart").sample(sorted(LEXIKON), len(LEXIKON))
    auswahl = {"train": worte[:7], "validation": worte[7:9], "held_out": worte[9:]}[teil]
    return [
        Task(
            id=f"{teil}-{nummer}",
            messages=({"role": "system", "content": ANWEISUNG}, {"role": "user", "content": wort}),
            fields={"wort": wort, "hochdeutsch": LEXIKON[wort]},
        )
        for nummer, wort in enumerate(auswahl)
    ]


def train_tasks():
    return _aufgaben("train")


def validation_tasks():
    return _aufgaben("validation")


def held_out_tasks():
    return _aufgaben("held_out")
