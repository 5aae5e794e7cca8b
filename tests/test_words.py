"""The words of the field in names, docstrings, messages and pages (CONTRIBUTING.md has the list)."""

from tests.words import ALLOWED, ROOT, find_banned_words, project_files


def test_no_banned_word_is_in_the_project() -> None:
    uses = list(find_banned_words(project_files()))
    assert [f"{use.path}:{use.line}: {use.word}: {use.text}" for use in uses] == []


def test_every_exception_is_needed() -> None:
    texts = {file: file.read_text("utf-8").lower() for file in project_files(tuple(ALLOWED))}
    unused = []
    for prefix, words in ALLOWED.items():
        for word in words:
            bare = word.strip('"').lower()
            below = [
                file for file in texts if file.relative_to(ROOT).as_posix().startswith(prefix) and bare in texts[file]
            ]
            others = {**ALLOWED, prefix: words - {word}}
            if not any(use.word in word for use in find_banned_words(below, others)):
                unused.append(f"{prefix}: {word}")
    assert unused == []
