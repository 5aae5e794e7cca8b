"""Foreign text in pages: nothing of it is markup, hides, or ends what it stands in."""

import base64
import hashlib
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from sparring.pages.html import data_text, document, text, visible

ANY_TEXT = st.text(st.characters(exclude_categories=()))


def test_control_and_reordering_characters_are_shown_and_the_rest_stays() -> None:
    assert visible("\x1b[31mred\x00") == "␛[31mred␀"
    assert visible("abc\u202edcb\u2028") == "abc[U+202E]dcb[U+2028]"
    assert visible("\ud800 \U000e0041") == "[U+D800] [U+E0041]"
    assert visible("line\n\tتجربة 👩‍💻 §") == "line\n\tتجربة 👩‍💻 §"


@given(ANY_TEXT)
def test_text_for_markup_has_no_character_that_markup_is_made_of(value: str) -> None:
    shown = text(value)
    assert not set(shown) & set("<>\"'")
    assert re.fullmatch(r"(?:[^&]|&(?:lt|gt|amp|quot|#x27);)*", shown)
    shown.encode()


LEAF = ANY_TEXT | st.none() | st.booleans() | st.integers(-9, 9)
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner), max_leaves=8)


@given(VALUE)
def test_data_has_no_character_of_markup_and_reads_back_as_what_is_visible(value: object) -> None:
    content = data_text(value)
    assert not set(content) & set("<>&\u2028\u2029")
    content.encode()
    assert json.loads(content) == _visible(value)


def _visible(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible(one) for one in value]
    if isinstance(value, dict):
        return {_visible(key): _visible(one) for key, one in value.items()}
    return value


def test_the_policy_of_a_page_lets_its_own_script_and_style_through_by_hash_and_nothing_else() -> None:
    page = document("t", "<p>x</p>", script="let a = 1;")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(b"let a = 1;").digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none'")
    assert "unsafe" not in policy[1]
    assert page.index("Content-Security-Policy") < page.index("<style>")
