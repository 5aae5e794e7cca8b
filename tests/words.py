"""Words that the project does not use, and where they stand: `python -m tests.words [PATH ...]`.

CONTRIBUTING.md says which word to use in place of each.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Whole words in prose, messages and (split at underscores and capitals) names.
BANNED = {
    "told", "tells", "says", "said", "world", "worlds", "gold", "golds", "knob", "knobs", "foothold", "sighting", "sightings",
    "residue", "residues", "twin", "twins", "whoever", "nobody", "somebody", "heed", "heeds", "heeded", "mend", "mends", "mended",
    "door", "doors", "judges", "judged", "judging", "judgement", "judgements", "untold", "beside",
}  # fmt: skip
PHRASES = ("that is none", "that are none", "which is none", "is none of", "further ones", "under way", "of whom")
# Where a word is right: it is somebody else's name, or the plain meaning. Path prefix -> words. Where the entry is in
# quotes, only the whole string is right: a key of a stored finding, the name of a policy.
ALLOWED = {
    "sparring/findings.py": {"foothold", "twins"},  # names of rules in older runs
    "sparring/run_folders/stored.py": {"world"},  # of a metric in older runs
    "sparring/runtime/faults.py": {"judging"},  # the point `reward.judging`
    "benchmarks": {  # figures and keys of stored results
        '"says"',
        '"judged"',
        '"change.judged"',
        '"mend"',
        '"throughput with failures beside without"',
        '"turns/s beside the bare server"',
        '"verify beside quick_check"',
        '"beside the stream, ms"',
        '"answers beside"',
        '"cold start beside the same program with nothing around it"',
        '"others, beside the stream"',
        '"others\' wait beside a stream over alone"',
    },
    "benchmarks/diagnosis/README.md": {"mend", "mended"},  # a key of case.toml, and a function of a case
    "docs/adapters.md": {"world"},  # the attribute of the Gymnasium adapter
    "sparring/checks": {'"said"', '"says"', '"judged"', '"judged_by"', '"says nothing"', '"says done"'},  # in evidence
    "sparring/checks/evidence/accepted_answers.py": {"gold"},  # names of columns that users give to answers
    "sparring/checks/evidence/shown_answers.py": {"gold"},
    "sparring/checks/evidence/survey.py": {"tells"},  # verbs in names of users' tools
    "sparring/checks/evidence/write_probes.py": {"somebody"},  # a text that is written into an environment
    "sparring/checks/rules/ground_truth.py": {"gold"},  # a word of users' prompts, and a label in an example
    "sparring/checks/rules/same_elsewhere.py": {"somebody"},  # the name of a user account
    "sparring/checks/running/run.py": {"foothold"},  # the name of a family before 0.1.0
    "sparring/detectors": {"judges", "says"},  # names of exploits and traits in stored findings
    "sparring/cli/runs.py": {"told"},  # keys of the JSON output
    "sparring/rollouts/budget.py": {"told"},  # evidence in stored findings
    "sparring/tracking/delivery.py": {"told"},  # a key of mlflow.json
    "sparring/environments/adapters/gymnasium_environment.py": {"world"},  # the attribute of the Gymnasium adapter
    # Texts that a policy reads, and keys of tasks.
    "sparring/environments/suites/sop": {'"world"'},
    "sparring/environments/suites/sop/email_intent.py": {"nobody"},
    "sparring/environments/suites/sop/know_your_business.py": {"somebody"},
    "sparring/environments/suites/sop/order_fulfilment.py": {"says"},
    "sparring/environments/suites/sop/patient_intake.py": {"nobody"},
    "sparring/environments/suites/sop/referral_abuse.py": {"twin", "twins"},
    "sparring/environments/suites/sop/traffic_spoofing.py": {"says"},
    "sparring/rewards/rules.py": {'"reward.judging"'},  # a point of faults
    "sparring/diagnosis": {'"change.judged"'},  # a rule
    "sparring/report": {'"said"'},  # a key of JSON
    "recipes/quickstart": {'"world"', '"gold"', '"gold by Ray"'},  # a key of tasks, and a grade
    "recipes/quickstart/environment.py": {"says"},  # the prompt
    "recipes/sop_small": {'"twins"'},  # a key of answers
    "tests/checks/state_graded/taxi": {"world"},  # the attribute of the Gymnasium adapter
    "tests/checks/test_round_trip.py": {'"said"'},  # in evidence
    "tests/checks/test_state_graded.py": {'"says nothing"'},  # the name of a scripted policy
    "tests/diagnosis": {'"change.judged"'},  # a rule
    "tests/environments/suites/test_sop_rulings.py": {'"world"', '"twins"'},  # keys of tasks and answers
    "tests/recipes/test_quickstart.py": {'"world"'},  # a key of tasks
    "tests/report/test_live.py": {'"said"'},  # a key of JSON
    "tests/run_folders/test_stored.py": {'"timing_s/episode/world"'},  # a metric in older runs
    "tests/test_docs.py": {'"change.judged"'},  # a rule
    "tests/test_findings.py": {'"foothold.limits"'},  # a rule in older runs
    "tests/tracking": {'"told"'},  # a key of mlflow.json
    "docs/diagnosis.md": {
        "judged",
        "mended",
        '"slow_world"',
    },  # a rule; names of cases and of their code
    "docs/reliability.md": {"judging"},
    "docs/rewards-and-scorers.md": {"gold"},  # a grade in an example
    "docs/sop-suite.md": {"twins"},  # a field of a domain
    "docs/story.md": {"twins"},
}
SKIPPED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/notebook/",
    "benchmarks/blind_environments/",
    "benchmarks/diagnosis/blind/",
    "benchmarks/hacks/blind",
    "benchmarks/results/",
    "tests/words.py",
    "tests/test_words.py",
)
_WORD = re.compile(r"[A-Za-z]+")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True)
class Use:
    """One use of a banned word."""

    path: str
    line: int
    word: str
    text: str


def find_banned_words(paths: Iterable[Path], exceptions: Mapping[str, Collection[str]] = ALLOWED) -> Iterator[Use]:
    """Yield every use of a banned word in Python files (names, comments, strings) and in pages of documentation.

    `exceptions` are the words that are allowed below a path prefix.
    """
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(SKIPPED):
            continue
        allowed = set().union(*(words for prefix, words in exceptions.items() if name.startswith(prefix)))
        text = path.read_text("utf-8")
        whole = "|".join(re.escape(entry.strip('"')) for entry in allowed if entry.startswith('"'))
        for line, piece in _pieces(path, text):
            for found in _banned_in(re.sub(rf"""(["'`])(?:{whole})\1""", "", piece) if whole else piece):
                if found not in allowed:
                    yield Use(name, line, found, piece.strip()[:160])


def project_files(under: Iterable[str] = ()) -> list[Path]:
    """Return the tracked Python files and pages, or those below the paths that are named."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *(under or ["."])], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        ROOT / name for name in listed.stdout.split("\0") if name.endswith((".py", ".md")) and (ROOT / name).is_file()
    ]


def _pieces(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of what people read: lines of pages; names, comments and strings of code."""
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NAME, tokenize.COMMENT):
            yield token.start[0], token.string
        elif token.type == tokenize.STRING:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def _banned_in(piece: str) -> Iterator[str]:
    piece = re.sub(r"(?:LLM|model)[-_ ]judges?", "", piece, flags=re.IGNORECASE)
    for word in _WORD.findall(piece):
        if word.lower() in BANNED:
            yield word.lower()
        elif not word.islower():
            yield from (part.lower() for part in _PARTS.findall(word) if part.lower() in BANNED)
    yield from (phrase for phrase in PHRASES if re.search(rf"\b{phrase}\b", piece))


def main(paths: list[str]) -> None:
    uses = list(find_banned_words(project_files(paths)))
    for use in uses:
        sys.stdout.write(f"{use.path}:{use.line}: {use.word}: {use.text}\n")
    packages = Counter("/".join(use.path.split("/")[:2]) for use in uses)
    for name, count in packages.most_common():
        sys.stdout.write(f"{count:6} {name}\n")
    sys.stdout.write(f"{len(uses):6} in all; by word: {dict(Counter(use.word for use in uses).most_common())}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
