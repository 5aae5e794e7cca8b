"""A newspaper archive. Its search shows three hits at most, the newest first, and says how many there are: more words narrow it down."""

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

SHOWN = 3
SYSTEM = """You search the archive of a newspaper. The search shows the three newest hits and the number of all; add words until the article
that is asked for is among them. Answer with its page and its author:
<final_output>{"page":0,"author":""}</final_output>"""
TOPICS = {
    "train": ["bridge", "harvest", "strike", "flood", "election"],
    "held_out": ["museum", "tram", "drought", "festival"],
}
PLACES = {"train": ["Ashford", "Brook", "Calder", "Denby"], "held_out": ["Elmwood", "Farley", "Grange"]}
KINDS = ["report", "interview", "letter", "comment"]
AUTHORS = {"train": ["M. Reyes", "T. Holm", "A. Sen", "P. Dube"], "held_out": ["L. Brandt", "C. Osei", "R. Amari"]}


class Archive(Environment):
    def reset(self, task):
        self.articles = task.fields["articles"]

    @tool
    def search(self, words: list[str]) -> dict:
        """Articles whose headline has all of some words: how many there are, and the three newest with number and headline.

        Args:
            words: whole words, upper and lower case are the same
        """
        wanted = {word.strip(" ,").lower() for word in words}
        if not wanted:
            raise ToolFailure("give one word at least")
        hits = [one for one in self.articles if wanted <= set(one["headline"].lower().replace(",", "").split())]
        hits.sort(key=lambda one: one["number"], reverse=True)
        return {
            "all": len(hits),
            "shown": [{"number": one["number"], "headline": one["headline"]} for one in hits[:SHOWN]],
        }

    @tool
    def article(self, number: int) -> dict:
        """Page and author of an article.

        Args:
            number: as search() gives it; newer articles have higher numbers
        """
        for one in self.articles:
            if one["number"] == number:
                return {"number": number, "page": one["page"], "author": one["author"]}
        raise ToolFailure(f"there is no article {number}")


reward = json_fields("final_output")
scorer = json_exact("final_output")


def train_tasks(num=32):
    return [make_task("train", index) for index in range(num)]


def held_out_tasks(num=12):
    return [make_task("held_out", index) for index in range(num)]


def make_task(split, index):
    rng = random.Random(f"archive {split} {index}")
    # A headline for each topic, place and kind, so that these three words name one article.
    headlines = [
        f"{topic.capitalize()} in {place}, {kind}"
        for topic in TOPICS[split]
        for place in PLACES[split]
        for kind in KINDS
    ]
    numbers = sorted(rng.sample(range(1000, 5000) if split == "train" else range(5000, 9000), len(headlines)))
    articles = [
        {"number": number, "headline": headline, "page": rng.randint(1, 48), "author": rng.choice(AUTHORS[split])}
        for number, headline in zip(numbers, rng.sample(headlines, len(headlines)), strict=True)
    ]
    asked = rng.choice(articles)
    return Task(
        id=f"archive-{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f'Request {split[0].upper()}{index}: the article "{asked["headline"]}".'},
        ),
        fields={
            "articles": articles,
            "headline": asked["headline"],
            "answer": {"page": asked["page"], "author": asked["author"]},
        },
        seed=index,
    )
