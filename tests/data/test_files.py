"""Dataset files become tasks, or the error names file, row, and what to do."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from sparring.data import read_tasks
from sparring.errors import DataError

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


CALL = {"id": "1", "type": "function", "function": {"name": "get", "arguments": '{"key": 1}'}}


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def test_the_prompt_column_is_the_prompt_and_other_columns_are_fields(tmp_path: Path) -> None:
    (task,) = read_tasks(written(tmp_path, "a.jsonl", '{"answer": 4, "prompt": "2+2?", "id": "sum", "tags": ["x"]}\n'))
    assert task.id == "sum"
    assert task.messages == ({"role": "user", "content": "2+2?"},)
    assert task.fields == {"answer": 4, "tags": ["x"]}


def test_without_a_prompt_column_the_first_is_the_prompt_and_rows_are_numbered(tmp_path: Path) -> None:
    tasks = read_tasks(written(tmp_path, "a.csv", "question,answer\n2+2?,4\n3+3?,6\n"))
    assert [(task.id, task.messages[0]["content"], task.fields) for task in tasks] == [
        ("1", "2+2?", {"answer": "4"}),
        ("2", "3+3?", {"answer": "6"}),
    ]


def test_all_formats_hold_the_same_tasks(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": CHAT, "answer": 4}, {"id": "b", "prompt": CHAT[1:], "answer": 6}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    written(tmp_path, "a.json", json.dumps(rows))
    first, second, third = (read_tasks(tmp_path / f"a.{suffix}") for suffix in ("parquet", "jsonl", "json"))
    assert first == second == third
    assert first[0].messages == tuple(CHAT)
    assert [task.fields for task in first] == [{"answer": 4}, {"answer": 6}]


def test_keys_that_parquet_fills_with_null_are_not_part_of_a_message(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    prompt = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    parquet.write_table(pa.Table.from_pylist([{"prompt": prompt}]), tmp_path / "a.parquet")
    (task,) = read_tasks(tmp_path / "a.parquet")
    assert set(task.messages[0]) == {"role", "content"}


def test_a_byte_order_mark_and_line_separators_inside_strings_are_no_trouble(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three"
    line = json.dumps({"prompt": text}, ensure_ascii=False)
    (task,) = read_tasks(written(tmp_path, "a.jsonl", b"\xef\xbb\xbf" + line.encode() + b"\r\n\r\n"))
    assert task.messages[0]["content"] == text
    (task,) = read_tasks(written(tmp_path, "a.csv", b"\xef\xbb\xbfprompt\r\nhi\r\n"))
    assert task.messages[0]["content"] == "hi"


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_any_text_comes_back_from_json_lines(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), "utf-8")
    assert [task.messages[0]["content"] for task in read_tasks(path)] == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b", "an', r"line 2: the last line is incomplete.*remove that line"),
        ("a.jsonl", '{"prompt": "a"\n{"prompt": "b"}\n', r"line 1: not JSON.*one JSON object per line"),
        ("a.jsonl", '\n["a"]\n', r"line 2: \['a'\] is not a JSON object; every row must be one"),
        ("a.jsonl", "{}\n", r"line 1: the row is empty; give it a `prompt`"),
        ("a.jsonl", '{"prompt": "a", "id": 1}\n', r"line 1: id = 1 is not a string; give every task its own string"),
        (
            "a.jsonl",
            '{"prompt": "a", "id": "x"}\n\n{"prompt": "b", "id": "x"}\n',
            r"line 3: id = 'x' is already the id of line 1",
        ),
        (
            "a.jsonl",
            '{"prompt": 7}\n',
            r"line 1, column 'prompt': 7 is not a prompt; give a string, or a list of at least one message",
        ),
        ("a.jsonl", '{"prompt": "  "}\n', r"the prompt is blank; write one, or remove"),
        (
            "a.jsonl",
            '{"prompt": "a"}\n{"prompt": "\\ud800"}\n',
            r"line 2: '\\ud800' is half of a surrogate pair; write the whole",
        ),
        (
            "a.json",
            '[{"prompt": [{"role": "user", "content": "\\udfff"}]}]',
            r"row 1: '\\udfff' is half of a surrogate pair",
        ),
        ("a.jsonl", '{"prompt": []}\n', r"\[\] is not a prompt"),
        (
            "a.jsonl",
            '{"prompt": [{"role": "wizard", "content": "a"}]}\n',
            r"message 1 is .*give an object whose `role` is one of",
        ),
        ("a.jsonl", '{"prompt": [{"role": "user"}]}\n', r"message 1 has no text; give it a string as `content`"),
        ("a.jsonl", "\n\n", r"has no rows.*one task per row"),
        ("a.jsonl", b'{"prompt": "\xff"}\n', r"is not UTF-8 \(byte 12\); save it as UTF-8"),
        ("a.json", '{"prompt": "a"}', r"not an array; give an array with one object per task"),
        ("a.json", '[{"prompt": "a"}', r"is not JSON .*name the file \.jsonl"),
        ("a.jsonl", '{"prompt": "a", "answer": 1, "answer": 2}\n', r"line 1: .* 'answer' more than once; keep one"),
        ("a.json", '[{"prompt": "a", "prompt": "b"}]', r"the key 'prompt' more than once; keep one"),
        ("a.json", '[{"prompt": "a"}, 3]', r"row 2: 3 is not a JSON object"),
        ("a.csv", "prompt,answer\na,1\nb,2,3\n", r"row 2 \(line 3\): .* 2 cells of the header; quote cells"),
        ("a.csv", "prompt,answer\na\n", r"row 1 \(line 2\): .* 2 cells of the header"),
        ("a.csv", "prompt,answer,answer\na,1,2\n", r"contains \['answer'\] more than once"),
        ("a.csv", 'prompt\n"a\n', r"line 2: unexpected end of data; check the quotes from that line on"),
        ("a.csv", "prompt\n", r"has no rows"),
        ("a.parquet", "not parquet", r"cannot be read as parquet .*write the file again"),
        ("a.xlsx", "", r"files with '\.xlsx' cannot be read; give a \.parquet, \.jsonl, \.json or \.csv"),
        ("a", "", r"'no suffix' cannot be read"),
    ],
)
def test_a_bad_file_is_refused_with_the_row_and_what_to_do(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(DataError, match=message) as refused:
        read_tasks(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("x", r"tool_calls is 'x', not a list of calls"),
        ({"a": 1}, r"tool_calls is \{'a': 1\}, not a list"),
        ([1], r"tool_calls\[0\] is 1, not a call of a function"),
        ([{"name": "get", "arguments": {}}], r"tool_calls\[0\] is .*'get'.*, not a call of a function"),
        ([{"function": {"name": 3}}], r"tool_calls\[0\]\.function\.name is 3, not the name of a tool"),
        (
            [CALL, {"function": {"name": "a", "arguments": [1]}}],
            r"tool_calls\[1\]\.function\.arguments is \[1\]; write an",
        ),
    ],
)
def test_calls_that_are_none_are_refused_with_the_row_and_the_field(
    tmp_path: Path, calls: object, message: str
) -> None:
    good = {"prompt": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]}
    bad = {"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": calls}]}
    path = written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in (good, bad)))
    with pytest.raises(DataError, match=rf"line 2, column 'prompt', message 2: {message}"):
        read_tasks(path)


def test_a_small_parquet_file_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.data.files.MOST_UNPACKED", 2**20)
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"prompt": ["a" * 100_000] * 1000}), path)
    assert path.stat().st_size < 2**20 / 2
    monkeypatch.setattr("sparring.data.files.MOST_EXPANSION", 1)
    with pytest.raises(DataError, match=r"a\.parquet has more than .* GiB of values.*split it"):
        read_tasks(path)
    monkeypatch.setattr("sparring.data.files.MOST_EXPANSION", 10**6)
    assert len(read_tasks(path)) == 1000


def test_a_missing_file_and_a_folder_are_different_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; give the path of a dataset file"):
        read_tasks(tmp_path / "none.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        read_tasks(tmp_path / "folder.jsonl")
