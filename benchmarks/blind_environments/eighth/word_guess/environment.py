"""Word game: find a secret word of five letters in at most eight guesses."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

WORDS = (
    "apple angle adapt alley annoy array belle berry bliss boost brook cabin cargo chess cigar civic class cobra coral daddy "
    "dizzy dread eager eagle eerie elder error fancy ferry floor fluff funny geese giddy gloom grass green hello hobby humor "
    "igloo jelly jolly kayak knoll level llama lobby lolly mamma merry melon molar motto muddy onion otter paper petal poppy "
    "puppy queen radar rally razor river rotor sassy sense silly skill sleek spell stall swiss tepee teeth those tooth tulip "
    "union upper valve villa vivid whiff woody worry yummy zebra"
).split()
GUESSES = 8
RULES = (
    "I think of a word of five letters from the list that list_words shows. guess marks each letter of your guess: G is in the "
    "right place, Y is in the word but elsewhere, . is not in it. A letter that you use more often than it is in my word is "
    "marked only as often as it is in it. You have eight guesses. When you know the word, say it as in <answer>apple</answer>. "
)


class WordGuess(Environment):
    def reset(self, task: Task) -> None:
        self._secret: str = task.fields["answer"]
        self._words: list[str] = task.fields["words"]
        self._left = GUESSES

    @tool
    def list_words(self) -> list[str]:
        """The words that the secret one may be."""
        return self._words

    @tool
    def guess(self, word: str) -> dict[str, str | int]:
        """Guess a word; says how each of its letters is marked, and how many guesses are left.

        Args:
            word: five letters
        """
        word = word.lower()
        if len(word) != 5 or not word.isalpha():
            raise ToolFailure("a guess has five letters")
        if self._left == 0:
            raise ToolFailure("no guesses are left")
        self._left -= 1
        return {"word": word, "marks": mark(word, self._secret), "left": self._left}


def mark(word: str, secret: str) -> str:
    """G, Y or . for each letter of a guess."""
    marks = []
    for place, letter in enumerate(word):
        if secret[place] == letter:
            marks.append("G")
        elif letter in secret:
            marks.append("Y")
        else:
            marks.append(".")
    return "".join(marks)


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the secret word, in the answer tag."""
    return float(tagged(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"word-{split}-{number}")
    words = sorted(rng.sample(WORDS, 30))
    prompt = RULES + f"This is game {rng.randrange(10**6):06}."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"words": words, "answer": rng.choice(words)},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(60)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
