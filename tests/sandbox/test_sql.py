"""SQL in memory: rows for right queries, a line that helps for wrong ones, and nothing but reading."""

import sqlite3
import time

import pytest

from sparring.errors import DataError
from sparring.sandbox import SqlDatabase, SqlError, SqlLimits

PARTS = [{"id": 1, "name": "bolt", "grams": 2.5}, {"id": 2, "name": "nut", "grams": None}]


def test_rows_come_back_by_column() -> None:
    database = SqlDatabase({"parts": PARTS})
    assert database.query("SELECT * FROM parts ORDER BY id") == PARTS
    assert database.query("SELECT name FROM parts WHERE id = ?", [2]) == [{"name": "nut"}]
    assert database.query("SELECT count(*) AS n, sum(grams) AS g FROM parts") == [{"n": 2, "g": 2.5}]
    assert database.query("SELECT printf('%.1f', grams) AS g FROM parts WHERE id = :id", {"id": 1}) == [{"g": "2.5"}]
    assert database.query("SELECT x'00ff' AS b, 9e999 AS i") == [{"b": "00ff", "i": "inf"}]
    database.close()


def test_a_schema_may_be_sql() -> None:
    database = SqlDatabase("CREATE TABLE a (x); INSERT INTO a VALUES (7);")
    assert database.query("SELECT x FROM a") == [{"x": 7}]
    database.close()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nam FROM parts", "no such column: nam"),
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT 1; SELECT 2", "one statement"),
        ("DELETE FROM parts", "can be queried but not changed"),
        ("SELECT 1 AS a, 2 AS a", "two columns of the answer are called 'a'"),
        ("SELECT random()", "not authorized to use function: random"),
        ("SELECT zeroblob(100000)", "a value may have 16 KiB"),
        (f"SELECT '{'x' * 20000}'", "a query 16 KiB"),
        ("SELECT printf('%*d', 5, 1)", "widths below 1000"),
    ],
)
def test_the_error_of_a_wrong_query_names_what_to_change(query: str, message: str) -> None:
    database = SqlDatabase({"parts": PARTS})
    with pytest.raises(SqlError, match=message.replace("(", "\\(").replace("*", "\\*")):
        database.query(query)
    database.close()


def test_a_query_ends_at_its_deadline_and_the_next_one_works() -> None:
    database = SqlDatabase({"parts": PARTS}, SqlLimits(seconds=0.1))
    began = time.monotonic()
    with pytest.raises(SqlError, match=r"did not end within 0\.1 s"):
        database.query("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c")
    assert time.monotonic() - began < 5
    assert database.query("SELECT 1 AS a") == [{"a": 1}]
    database.close()


def test_a_long_answer_is_cut_and_marked_so() -> None:
    database = SqlDatabase({"numbers": [{"n": number} for number in range(10)]}, SqlLimits(rows=3))
    assert database.query("SELECT n FROM numbers LIMIT 3") == [{"n": 0}, {"n": 1}, {"n": 2}]
    *first, last = database.query("SELECT n FROM numbers")
    assert first == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert list(last) == ["truncated"]
    assert database.rows("SELECT n FROM numbers") == (first, False)
    # Four rows of 300 letters are more than 1 KiB, three are not.
    wide = SqlDatabase({"texts": [{"t": "x" * 300}] * 9}, SqlLimits(output_kib=1))
    assert len(wide.query("SELECT t FROM texts")) == 3 + 1
    database.close()
    wide.close()


def test_a_writable_database_takes_rows_up_to_its_size() -> None:
    database = SqlDatabase("CREATE TABLE a (x)", SqlLimits(database_mib=1), writable=True)
    assert database.query("INSERT INTO a VALUES (1)") == []
    assert database.query("SELECT x FROM a") == [{"x": 1}]
    many = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 200) SELECT zeroblob(10000) FROM c"
    with pytest.raises(SqlError, match="full"):
        database.query(f"INSERT INTO a {many}")
    with pytest.raises(SqlError, match="not authorized"):
        database.query("CREATE TABLE b (x)")
    with pytest.raises(SqlError):
        database.query("DELETE FROM sqlite_master")
    database.close()


def test_tables_that_cannot_be_made_are_refused_with_the_row() -> None:
    with pytest.raises(DataError, match="row 1"):
        SqlDatabase({"a": [{"x": 1}, {"y": 1}]})
    with pytest.raises(DataError, match="no row"):
        SqlDatabase({"a": []})
    with pytest.raises(DataError, match="cannot be created"):
        SqlDatabase("CREATE TABLE")


def test_names_of_tables_are_quoted() -> None:
    database = SqlDatabase({'a"; DROP': [{"select": 1}]})
    assert database.query('SELECT "select" FROM "a""; DROP"') == [{"select": 1}]
    database.close()
    with pytest.raises(sqlite3.ProgrammingError):
        database._connection.execute("SELECT 1")
