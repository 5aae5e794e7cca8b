"""Content flagging: decide what happens to a post, and who is notified.

The first matching rule of an ordered list decides, and the first rule has an exception. The same reports have a
different weight in every rule, and the rule determines who is notified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from sparring.environments.demonstrations import tool_call
from sparring.environments.replayed_tools import replayed
from sparring.environments.suites.sop.domain import (
    Case,
    Clause,
    ReplayDesk,
    Script,
    SopDomain,
    distractor,
    final_output,
    replies,
)
from sparring.environments.suites.sop.entities import PEOPLE, Draw, Pool, codes
from sparring.types import Json

POSTS = Pool(codes("PQV"))
TOPICS = Pool((
    "angling", "archery", "baking", "banking", "biking", "birds", "boats", "bonds", "cats", "chess", "cider", "coins", "crypto",
    "dance", "diets", "dogs", "dreams", "drones", "elections", "engines", "fasting", "films", "fishing", "gardens", "golf",
    "herbs", "hiking", "horses", "hunting", "jazz", "jokes", "judo", "kites", "knives", "knots", "lasers", "loans", "magic",
    "maps", "metals", "mines", "models", "opera", "pills", "poker", "quizzes", "radio", "riding", "rifles", "rugs", "sailing",
    "ships", "skiing", "stamps", "stocks", "surfing", "tattoos", "tea", "trains", "vapes", "wine", "yoga",
))  # fmt: skip
Action: TypeAlias = Literal["keep", "remove", "hide", "label", "warn"]
Role: TypeAlias = Literal["press", "member"]
Level: TypeAlias = Literal["open", "touchy", "banned"]


class Desk(ReplayDesk):
    """Tools for posts, their authors, topics and reports."""

    @replayed
    def post(self, id: str) -> Json:
        """author and topic"""

    @replayed
    def author(self, name: str) -> Json:
        """role and strikes"""

    @replayed
    def topic(self, name: str) -> Json:
        """level"""

    @replayed
    def reports(self, post: str) -> Json:
        """number of trusted and of new reports, and who was first"""

    @replayed
    def stale(self, post: str) -> Json:
        """how many of the trusted reports are old"""

    @replayed
    def appeal(self, post: str) -> Json:
        """state of an appeal, and who handles it"""

    @distractor
    @replayed
    def views(self, post: str) -> Json:
        """how often the post was seen"""

    @distractor
    @replayed
    def followers(self, name: str) -> Json:
        """number of followers of an author"""

    @distractor
    @replayed
    def language(self, post: str) -> Json:
        """language of the post"""

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        id = given["post"]
        if longer >= 2 and "appeal" not in skipped:
            appeal = yield tool_call("appeal", post=id)
            if appeal["state"] == "open":
                yield final_output(action="wait", tell=appeal["by"])
        post = yield tool_call("post", id=id)
        author = {"role": "member", "strikes": 0}
        if "author" not in skipped:
            author = yield tool_call("author", name=post["author"])
        level = "open"
        if "topic" not in skipped:
            level = (yield tool_call("topic", name=post["topic"]))["level"]
        if level is None:
            level = "open" if "missing" in skipped else "touchy"
        reports = yield tool_call("reports", post=id)
        trusted = reports["trusted"] + (reports["new"] if "new" in skipped else 0)
        if longer >= 1 and "stale" not in skipped:
            trusted -= (yield tool_call("stale", post=id))["number"]
        if "count" in skipped:
            trusted = min(trusted, 1)
        action = _ruling(author["role"], level, author["strikes"], trusted)
        is_kept = action == "keep" and "tell" not in skipped
        yield final_output(action=action, tell=reports["first"] if is_kept else post["author"])


def _ruling(role: Role, level: Level, strikes: int, trusted: int) -> Action:
    """Return the action of the first matching rule."""
    if role == "press" and level != "banned":
        return "keep"
    if level == "banned":
        return "remove"
    if strikes and trusted:
        return "hide"
    if level == "touchy":
        return "label"
    return "warn" if trusted >= 2 else "keep"


SITUATIONS: Mapping[Action, tuple[tuple[Sequence[Role], Sequence[Level], Sequence[int], Sequence[int]], ...]] = {
    "keep": (
        (("press",), ("open", "touchy"), (1, 2), (1, 2, 3)),
        (("press",), ("touchy",), (0,), (0, 1)),
        (("member",), ("open",), (0,), (0, 1)),
        (("member",), ("open",), (1, 2), (0,)),
    ),
    "remove": ((("press", "member"), ("banned",), (0, 1, 2), (0, 1, 2, 3)),),
    "hide": ((("member",), ("open", "touchy"), (1, 2), (1, 2, 3)),),
    "label": (
        (("member",), ("touchy",), (0,), (0, 1, 2, 3)),
        (("member",), ("touchy",), (1, 2), (0,)),
    ),
    "warn": ((("member",), ("open",), (0,), (2, 3)),),
}
"""Roles, levels, numbers of strikes and numbers of trusted reports. Any combination of them leads to the action."""


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw a post so that each action is equally likely. If the level of a topic is missing, the topic counts as
    touchy."""
    id, name = draw.entity(POSTS), draw.entity(TOPICS)
    author, first, handler = (draw.entity(PEOPLE) for _ in range(3))
    action = draw.pick(("keep", "hide", "label") if is_missing else tuple(SITUATIONS))
    situations = [one for one in SITUATIONS[action] if not is_missing or "touchy" in one[1]]
    roles, levels, all_strikes, all_trusted = draw.pick(situations)
    role, strikes, trusted = draw.pick(roles), draw.pick(all_strikes), draw.pick(all_trusted)
    level = "touchy" if is_missing else draw.pick(levels)
    new, stale = draw.between(1, 9), draw.between(1, 3) if longer >= 1 else 0
    hasty = {
        "author": _ruling("member", level, 0, trusted),
        "topic": _ruling(role, "open", strikes, trusted),
        "new": _ruling(role, level, strikes, trusted + new),
        "count": _ruling(role, level, strikes, min(trusted, 1)),
        "stale": _ruling(role, level, strikes, trusted + stale),
    }
    if is_missing:
        hasty["missing"] = hasty["topic"]
    checks = [check for check, ruling in hasty.items() if ruling != action] + ["tell"] * (action == "keep")
    answer: Mapping[str, Json] = {"action": action, "tell": first if action == "keep" else author}
    is_appealed = longer >= 2 and draw.between(1, 5) == 1
    if is_appealed:
        answer, checks = {"action": "wait", "tell": handler}, ["appeal"]
    return Case(
        request=f"Decide on post {id}.",
        given={"post": id},
        state=[
            replies("post", {"author": author, "topic": name}, id=id),
            replies("author", {"role": role, "strikes": strikes}, name=author),
            replies("author", {"role": "member", "strikes": draw.between(0, 2)}, name=first),
            replies("topic", {"level": None if is_missing else level}, name=name),
            replies("reports", {"trusted": trusted + stale, "new": new, "first": first}, post=id),
            replies("stale", {"number": stale}, post=id),
            replies(
                "appeal", {"state": "open" if is_appealed else draw.pick(("none", "closed")), "by": handler}, post=id
            ),
            replies("views", {"views": draw.between(20, 9000)}, post=id),
            replies("followers", {"followers": draw.between(5, 5000)}, name=author),
            replies("followers", {"followers": draw.between(5, 5000)}, name=first),
            replies("language", {"language": draw.pick(("Dutch", "Hindi", "Polish", "Thai"))}, post=id),
        ],
        answer=answer,
        checks=tuple(checks),
    )


DOMAIN = SopDomain(
    name="content_flagging",
    role="You decide on posts.",
    idea="an ordered list of rules, where the first that applies counts, with an exception in its first rule",
    pattern="replay",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Look up the post, its author, its topic and its reports. New reports never count.",
        "The action is that of the first rule that fits:\n"
        "role press and level not banned: keep\n"
        "level banned: remove\n"
        "a strike and a trusted report: hide\n"
        "level touchy: label\n"
        "two or more trusted reports: warn\n"
        "else: keep",
        "Tell the first reporter if you keep the post, else the author.",
    ),
    if_missing="A level that is null counts as touchy.",
    clauses=(
        Clause(text="Take the stale reports off the trusted ones.", tools=("stale",)),
        Clause(text="Before step 1: if an appeal is open, the action is wait; tell who handles it.", tools=("appeal",)),
    ),
    answer_form={"action": "", "tell": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
