"""A quiz for visitors: look the exhibits up, choose one of four."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You take part in the quiz of a museum. Exactly one of the four exhibits fits. The labels of the exhibits say what is known of them.
Answer with the letter alone: A, B, C or D."""

THINGS = ("vase", "globe", "clock", "mask", "lute", "helmet", "mirror", "carpet", "sundial", "chess set")
PLACES = ("Delft", "Kyoto", "Fez", "Puebla", "Turin", "Lagos", "Bergen", "Esfahan")
MATERIALS = ("brass", "oak", "silk", "ivory", "glass", "clay", "silver", "bone")


class Museum(Environment):
    def reset(self, task):
        self.labels = task.fields["labels"]

    @tool
    def label(self, exhibit: str) -> dict[str, str] | str:
        """What the label of an exhibit says: where it was made, and of what.

        Args:
            exhibit: as the question names it
        """
        return self.labels.get(exhibit, "there is no such exhibit")

    @tool
    def exhibits(self) -> list[str]:
        """All exhibits of the quiz."""
        return sorted(self.labels)


def _task(split, index, rng):
    things = rng.sample(THINGS, 4)
    place, *other_places = rng.sample(PLACES, 4)
    material, *other_materials = rng.sample(MATERIALS, 4)
    right = things[0]
    labels = {
        right: {"made in": place, "material": material},
        things[1]: {"made in": place, "material": other_materials[0]},
        things[2]: {"made in": other_places[0], "material": material},
        things[3]: {"made in": other_places[1], "material": other_materials[1]},
    }
    options = [right, *things[1:]]
    rng.sample(options, len(options))
    question = f"Which of these is of {material} and was made in {place}?\n" + "\n".join(
        f"{letter}: {option}" for letter, option in zip("ABCD", options, strict=True)
    )
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": question}),
        fields={"labels": labels, "answer": "ABCD"[options.index(right)]},
    )


def train_tasks():
    rng = random.Random("hall one")
    return [_task("train", index, rng) for index in range(48)]


def validation_tasks():
    rng = random.Random("hall two")
    return [_task("validation", index, rng) for index in range(12)]


def held_out_tasks():
    rng = random.Random("hall three")
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return float((last.get("content") or "").strip() == trajectory.task.fields["answer"])


def scorer(trajectory):
    final = trajectory.messages[-1]
    said = (final.get("content") or "").split() if final["role"] == "assistant" else []
    return 1.0 if said == [trajectory.task.fields["answer"]] and not final.get("tool_calls") else 0.0
