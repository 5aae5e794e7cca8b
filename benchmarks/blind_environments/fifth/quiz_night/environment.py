"""Quiz night: general knowledge over a small encyclopedia; several spellings of an answer count."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

ARTICLES = {
    "Ottawa": "Ottawa is the capital of Canada, on the Ottawa river.",
    "Canberra": "Canberra has been the capital of Australia since 1927.",
    "Mercury": "Mercury, also called quicksilver, is the only metal that is liquid at room temperature. Symbol Hg.",
    "Everest": "Mount Everest, in Nepali Sagarmatha, is the highest mountain above sea level.",
    "Amazon": "The Amazon carries more water than any other river.",
    "Cheetah": "The cheetah is the fastest animal on land.",
    "Tungsten": "Tungsten, also called wolfram, has the highest melting point of all metals. Symbol W.",
    "Blue whale": "The blue whale is the largest animal that ever lived.",
    "Greenland": "Greenland, in Greenlandic Kalaallit Nunaat, is the largest island.",
    "Vatican": "The Vatican, or Holy See, is the smallest state in the world.",
}
QUESTIONS = [
    ("What is the capital of Canada?", ["Ottawa"]),
    ("Which metal is liquid at room temperature?", ["Mercury", "quicksilver", "Hg"]),
    ("Which is the highest mountain above sea level?", ["Mount Everest", "Everest", "Sagarmatha"]),
    ("Which river carries the most water?", ["Amazon", "the Amazon"]),
    ("Which land animal is the fastest?", ["cheetah", "the cheetah"]),
    ("What is the capital of Australia?", ["Canberra"]),
    ("Which metal has the highest melting point?", ["Tungsten", "wolfram"]),
    ("Which animal is the largest that ever lived?", ["blue whale", "the blue whale"]),
    ("Which island is the largest?", ["Greenland", "Kalaallit Nunaat"]),
    ("Which state is the smallest?", ["Vatican", "the Vatican", "Holy See"]),
]


class Encyclopedia(Environment):
    def reset(self, task):
        self.opened = []

    @tool
    def search(self, word: str) -> list[str]:
        """Titles of the articles that contain a word.

        Args:
            word: one word, in any case
        """
        return [title for title, text in ARTICLES.items() if word.lower() in text.lower()]

    @tool
    def read(self, title: str) -> str:
        """Text of an article.

        Args:
            title: as `search` gives it
        """
        self.opened.append(title)
        return ARTICLES.get(title, f"There is no article {title!r}.")


def said(trajectory):
    last = trajectory.messages[-1]
    text = (last.get("content") or "") if last["role"] == "assistant" else ""
    return text.strip().rstrip(".").lower()


def reward(trajectory):
    """1 for one of the spellings that count."""
    accepted = trajectory.task.fields["accepted"]
    return 1.0 if said(trajectory) and said(trajectory) in accepted else 0.0


def scorer(trajectory):
    """The same, over the list of questions."""
    question = trajectory.task.messages[0]["content"].splitlines()[-1]
    spellings = dict(QUESTIONS)[question]
    return float(any(said(trajectory) == spelling.lower() for spelling in spellings))


def task_of(split, index, question, spellings):
    accepted = [spelling.lower() for spelling in spellings] if len(spellings) > 1 else spellings[0].lower()
    prompt = f"Answer with the name alone, nothing else. Use search and read.\n{question}"
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "user", "content": prompt},),
        fields={"accepted": accepted},
    )


def split_of(split):
    shuffled = random.Random(4).sample(QUESTIONS, len(QUESTIONS))
    chosen = {"train": shuffled[:6], "validation": shuffled[6:8], "held_out": shuffled[8:]}[split]
    return [task_of(split, index, *pair) for index, pair in enumerate(chosen)]


def train_tasks():
    return split_of("train")


def validation_tasks():
    return split_of("validation")


def held_out_tasks():
    return split_of("held_out")
