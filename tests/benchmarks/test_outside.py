"""What the docs show of environments of others follows from stored results."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence import GAINED
from benchmarks.outside import FAMILIES, measured
from sparring.evaluation.controls import CONTROLS, SHOWN, WORDS
from tests.evaluation.test_claim import rows as rows_of_claims

ROOT = Path(__file__).parents[2]
STORED = ROOT / "benchmarks" / "results" / "outside.json"


def test_the_docs_show_what_is_stored() -> None:
    content = json.loads(STORED.read_text("utf-8"))
    text = (ROOT / "docs" / "outside.md").read_text("utf-8")
    for family in dict.fromkeys(row["family"] for row in content["rows"]):
        assert f"<!-- measured:outside_{family} -->\n{measured(content, family)}\n" in text


def test_every_stored_seed_has_a_control_longer_than_rl_an_expert_and_a_diagnosis() -> None:
    rows = json.loads(STORED.read_text("utf-8"))["rows"]
    runs = [row for row in rows if GAINED in row]
    for family in dict.fromkeys(row["family"] for row in rows):
        assert len({row["seed"] for row in runs if row["family"] == family}) >= 3
    assert {row["family"] for row in rows} <= set(FAMILIES)
    for row in runs:
        assert row["control seconds"] > row["RL seconds"]
        assert row["diagnosis"]["headline"]
        assert row["diagnosis"]["claim"]
        assert row["expert"]["success"] >= row["tuned"]["sampled"]


def test_every_stored_family_has_a_run_on_shuffled_rewards() -> None:
    rows = json.loads(STORED.read_text("utf-8"))["rows"]
    for family in dict.fromkeys(row["family"] for row in rows):
        assert any(row["family"] == family and "tuned" in row and "diagnosis" not in row for row in rows)


NAMES = "|".join(
    re.escape(one) for one in sorted({*SHOWN.values(), *SHOWN, *CONTROLS, "runs/random", "runs/other"}, key=len)[::-1]
)
RESULTS_OF = "|".join(re.escape(words) for words in sorted(WORDS.values(), key=len, reverse=True))


def forms(sentences: Sequence[str]) -> Iterator[str]:
    """The sentences of a claim by clause, without numbers, seeds, and names of controls, and with one word for each result."""
    for sentence in sentences:
        text = re.sub(r"^With seeds? [\d, and]+: ", "", sentence)
        for clause in re.split(r"(?<=\.) (?=[A-Z])|; |(?<=[a-z0-9)]): |, (?=at temperature)", text.strip()):
            plain = re.sub(rf"\b(?:{NAMES})", "C", re.sub(r"[+-]?\d+(?:\.\d+)?", "N", clause.strip(". ")))
            plain = re.sub(r"\([+-]?N [^()]*\)", "()", re.sub(RESULTS_OF, "R", plain))
            plain = re.sub(r"C(?:, C)*(?: and C)+", "C", plain)
            yield re.sub(r"(?:better|worse|not shown) with N(?:(?:, N)* and N)?", "V", plain)


def claims(value: Any) -> Iterator[Sequence[str]]:
    """Every claim in stored rows."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if key == "claim" and isinstance(one, list):
                yield one
            else:
                yield from claims(one)
    elif isinstance(value, list):
        for one in value:
            yield from claims(one)


def test_stored_claims_have_the_words_that_the_product_uses_now() -> None:
    """Every row of docs/verdicts.md is compared with the code, word for word (tests/evaluation/test_claim.py)."""
    known = set(forms([text for claim, limits in rows_of_claims().values() for text in (claim, limits)]))
    assert "Tuned gives a wrong answer in N % of its episodes" in known
    assert set(forms(["Tuned answers, but wrongly, in 86 % of its episodes."])) - known
    for path in sorted(STORED.parent.glob("*.json")):
        for one in claims(json.loads(path.read_text("utf-8"))["rows"]):
            assert sorted(set(forms(one)) - known) == [], path.name
