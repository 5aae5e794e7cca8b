"""The words of the field, in names, docstrings, messages and pages that have been reworded (CONTRIBUTING.md has the list)."""

from tests.words import FINISHED, find_banned_words, project_files


def test_no_banned_word_is_left_in_what_has_been_reworded() -> None:
    uses = list(find_banned_words(project_files(FINISHED)))
    assert [f"{use.path}:{use.line}: {use.word}: {use.text}" for use in uses] == []
