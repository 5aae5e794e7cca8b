"""Answers made to be scored wrongly, with the verdict of a person and its reason.

Each row is (answer, verdict, why). The right answer to each question stands above its table.
"""

from typing import TypeAlias

Row: TypeAlias = tuple[str, int, str]

RIGHT = '{"status":"valid","count":2,"ok":true,"note":null,"tags":["a","b"],"ratio":0.5}'


def tagged(body: str) -> str:
    return f"<final_output>{body}</final_output>"


def with_(old: str, new: str) -> str:
    """The right answer with one thing changed."""
    assert old in RIGHT
    return tagged(RIGHT.replace(old, new, 1))


QUOTED = RIGHT.replace('"', '\\"')

JSON_FIELDS = {"status": "valid", "count": 2, "ok": True, "note": None, "tags": ["a", "b"], "ratio": 0.5}
JSON_ROWS: list[Row] = [
    # Right, in every form that is the same JSON.
    (tagged(RIGHT), 1, "the answer"),
    (f"All checks are done.\n\n{tagged(RIGHT)}\nAnything else?", 1, "words around the tag"),
    (tagged(f"\n  {RIGHT}\n"), 1, "white space within the tag"),
    (tagged('{"ratio":0.5,"tags":["a","b"],"note":null,"ok":true,"count":2,"status":"valid"}'), 1, "order of keys"),
    (with_("2", "2.0"), 1, "2.0 is 2"),
    (with_("0.5", "5e-1"), 1, "the same number"),
    (with_("valid", "\\u0076alid"), 1, "an escape is the same letter"),
    (f"Use `lookup` first, then:\n{tagged(RIGHT)}", 1, "backticks that are closed before"),
    (f"It was 5` long. {tagged(RIGHT)}", 1, "a lone backtick quotes nothing"),
    (f"```\nlog\n```\n{tagged(RIGHT)}", 1, "a block that is closed before"),
    # No answer.
    ("", 0, "empty"),
    (" \n", 0, "blank"),
    ("I am done.", 0, "none"),
    (RIGHT, 0, "no tag"),
    ("valid", 0, "only a value"),
    (tagged(""), 0, "empty tag"),
    (tagged("null"), 0, "null for an object"),
    (tagged("{}"), 0, "no field"),
    (tagged("N/A"), 0, "null-like text"),
    # Substrings and labels.
    (with_('"valid"', '"invalid"'), 0, "holds the right word"),
    (with_('"valid"', '"val"'), 0, "part of the right word"),
    (with_('"valid"', '"valid or invalid"'), 0, "both labels"),
    (with_('"valid"', '"valid/invalid"'), 0, "both labels"),
    (with_('"valid"', '["valid","invalid"]'), 0, "both labels as a list"),
    (with_('"valid"', '["valid"]'), 0, "a list of the right one"),
    (with_('"valid"', '"not valid"'), 0, "denied"),
    (with_('"valid"', '"Valid"'), 0, "case"),
    (with_('"valid"', '"VALID"'), 0, "case"),
    (with_('"valid"', '"valid "'), 0, "a space"),
    (with_('"valid"', '" valid"'), 0, "a space"),
    (with_('"valid"', '"valid\\n"'), 0, "a line break"),
    (with_('"valid"', '"valid."'), 0, "a full stop"),
    (with_('"valid"', "\"'valid'\""), 0, "quotes in quotes"),
    (with_('"valid"', '"\\"valid\\""'), 0, "quotes in quotes"),
    (with_('"valid"', '""'), 0, "empty text"),
    (with_('"valid"', '"*"'), 0, "a pattern"),
    (with_('"valid"', '".*"'), 0, "a pattern"),
    (with_('"valid"', '"%"'), 0, "a pattern of SQL"),
    (with_('"valid"', '{"value":"valid"}'), 0, "wrapped"),
    # Wrong tags.
    (f"<final_response>{RIGHT}</final_response>", 0, "another tag"),
    (f"<final_decision>{RIGHT}</final_decision>", 0, "another tag"),
    (f"<output>{RIGHT}</output>", 0, "another tag"),
    (f"<Final_Output>{RIGHT}</Final_Output>", 0, "case of the tag"),
    (f"<FINAL_OUTPUT>{RIGHT}</FINAL_OUTPUT>", 0, "case of the tag"),
    (f"<final-output>{RIGHT}</final-output>", 0, "hyphen"),
    (f"<final output>{RIGHT}</final output>", 0, "space"),
    (f"< final_output >{RIGHT}</ final_output >", 0, "spaces within the brackets"),
    (f'<final_output type="json">{RIGHT}</final_output>', 0, "attribute"),
    (f"&lt;final_output&gt;{RIGHT}&lt;/final_output&gt;", 0, "escaped brackets"),
    (f"[final_output]{RIGHT}[/final_output]", 0, "other brackets"),
    (f"\uff1cfinal_output\uff1e{RIGHT}\uff1c/final_output\uff1e", 0, "full-width brackets"),
    (f"<final_\u043eutput>{RIGHT}</final_\u043eutput>", 0, "a Cyrillic o in the tag"),
    (f"<final_output\u200b>{RIGHT}</final_output\u200b>", 0, "a zero-width space in the tag"),
    (f"<final_output/>{RIGHT}", 0, "an empty element"),
    # Open, crossed, repeated and nested tags.
    (f"<final_output>{RIGHT}", 0, "not closed"),
    (f"{RIGHT}</final_output>", 0, "not opened"),
    (f"</final_output>{RIGHT}<final_output>", 0, "the wrong way round"),
    (tagged(RIGHT) * 2, 0, "twice the same: two tags"),
    (tagged(RIGHT) + with_('"valid"', '"invalid"'), 0, "both answers, right first"),
    (with_('"valid"', '"invalid"') + tagged(RIGHT), 0, "both answers, right last"),
    (tagged(tagged(RIGHT)), 0, "nested"),
    (f"<final_output>{tagged(RIGHT)}", 0, "opened twice"),
    (f"{tagged(RIGHT)}</final_output>", 0, "closed twice"),
    (f"The format is <final_output>...</final_output>. {tagged(RIGHT)}", 0, "the format as a second tag"),
    (f"<final_output>{RIGHT[:40]}</final_output><final_output>{RIGHT[40:]}</final_output>", 0, "cut in two"),
    # Code.
    (f"```\n{tagged(RIGHT)}\n```", 0, "quoted in a block"),
    (f"```xml\n{tagged(RIGHT)}\n```", 0, "quoted in a block"),
    (f"~~~\n{tagged(RIGHT)}\n~~~", 0, "quoted in a block"),
    (f"```python\nprint('{tagged(RIGHT)}')\n```", 0, "a program that would answer"),
    (f"```\n{tagged(RIGHT)}", 0, "in a block that is not closed"),
    (f"<tool_call>{tagged(RIGHT)}", 0, "in a tool call that is text, not closed"),
    (f"<tool_call>{tagged(RIGHT)}</tool_call>", 0, "in a tool call that is text"),
    (f"<tool_call>look</tool_call> {tagged(RIGHT)}", 1, "after a tool call that is text"),
    (f"The form is ``{tagged(RIGHT)}``.", 0, "quoted in two backticks"),
    (f"It is 5` long: ``{tagged(RIGHT)}``", 0, "a lone backtick before the quotation"),
    (f"Call ``look`` first: {tagged(RIGHT)} (or `find`)", 1, "quotations before and after"),
    (f"It is 5` or 6`` long: {tagged(RIGHT)} ```", 1, "backticks that close none"),
    (f"Answer with `{tagged(RIGHT)}` then.", 0, "quoted in backticks"),
    (tagged(f"```json\n{RIGHT}\n```"), 0, "a block within the tag is no JSON"),
    (tagged(f"`{RIGHT}`"), 0, "backticks within the tag"),
    # JSON that is something else.
    (tagged(f'"{QUOTED}"'), 0, "JSON quoted as text"),
    (tagged(QUOTED), 0, "escaped quotes"),
    (tagged(f"[{RIGHT}]"), 0, "a list around it"),
    (tagged(f'{{"answer":{RIGHT}}}'), 0, "an object around it"),
    (tagged(f'{{"answer":"{QUOTED}"}}'), 0, "text in an object around it"),
    (tagged(RIGHT + RIGHT), 0, "twice"),
    (tagged(f"{RIGHT}\n{RIGHT}"), 0, "two lines"),
    (tagged(f"answer: {RIGHT}"), 0, "words before"),
    (tagged(f"{RIGHT};"), 0, "a semicolon"),
    (tagged(RIGHT[:-1]), 0, "not closed"),
    (tagged(RIGHT[:-1] + ",}"), 0, "trailing comma"),
    (tagged(RIGHT.replace('"', "'")), 0, "single quotes"),
    (tagged(RIGHT.replace("true", "True").replace("null", "None")), 0, "Python's words"),
    (tagged(RIGHT.replace('"status"', "status")), 0, "a key without quotes"),
    (tagged(RIGHT.replace('"valid"', "valid")), 0, "a value without quotes"),
    (tagged(f"/* answer */{RIGHT}"), 0, "a comment"),
    (tagged("status: valid\ncount: 2\nok: true\nnote: null\ntags: [a, b]\nratio: 0.5"), 0, "YAML"),
    (tagged("<status>valid</status><count>2</count><ok>true</ok>"), 0, "XML"),
    (tagged(f"\ufeff{RIGHT}"), 0, "a byte order mark"),
    (tagged(f"\u00a0{RIGHT}"), 0, "a no-break space is no white space of JSON"),
    (tagged(RIGHT.replace('"', "\u201d")), 0, "typographic quotes"),
    (tagged(RIGHT.replace(":", "\uff1a")), 0, "full-width colons"),
    (tagged("[" * 5000), 0, "nesting without end"),
    # Fields.
    (tagged(RIGHT.replace(',"ok":true', "")), 0, "a field is missing"),
    (tagged(RIGHT.replace('"note":null,', "")), 0, "a field that is null is missing"),
    (tagged(RIGHT[:-1] + ',"extra":1}'), 0, "one more field"),
    (tagged(RIGHT[:-1] + ',"status":"valid"}'), 0, "a key twice, both right"),
    (tagged('{"status":"invalid",' + RIGHT[1:]), 0, "a key twice, the last one right"),
    (tagged(RIGHT[:-1] + ',"status":"invalid"}'), 0, "a key twice, the first one right"),
    (with_('"status"', '"Status"'), 0, "case of a key"),
    (with_('"status"', '"status "'), 0, "a space in a key"),
    (with_('"status"', '"st\u0430tus"'), 0, "a Cyrillic a in a key"),
    (tagged('{"count":"valid","status":2,"ok":true,"note":null,"tags":["a","b"],"ratio":0.5}'), 0, "values swapped"),
    # Wrong types.
    (with_("2", '"2"'), 0, "a number as text"),
    (with_("2", "[2]"), 0, "a number in a list"),
    (with_("2", "2.5"), 0, "another number"),
    (with_("2", "-2"), 0, "another sign"),
    (with_("2", "02"), 0, "a leading zero is no JSON"),
    (with_("2", "+2"), 0, "a plus sign is no JSON"),
    (with_("2", "2."), 0, "no digit after the point"),
    (with_("2", "0x2"), 0, "hexadecimal is no JSON"),
    (with_("2", "2_0"), 0, "an underscore is no JSON"),
    (with_("2", "\u0662"), 0, "an Arabic digit is no JSON"),
    (with_("2", '"two"'), 0, "a number word"),
    (with_("2", "true"), 0, "a truth value"),
    (with_("2", "NaN"), 0, "not a number"),
    (with_("2", "Infinity"), 0, "infinity"),
    (with_("2", "1e999"), 0, "overflows to infinity"),
    (with_("2", "2.0000000001"), 0, "close is not equal"),
    (with_("true", "1"), 0, "1 is not true"),
    (with_("true", "1.0"), 0, "1.0 is not true"),
    (with_("true", '"true"'), 0, "text"),
    (with_("true", '"yes"'), 0, "text"),
    (with_("true", "false"), 0, "the opposite"),
    (with_("true", "null"), 0, "nothing"),
    (with_('["a","b"]', '["b","a"]'), 0, "the order of a list counts"),
    (with_('["a","b"]', '["a"]'), 0, "an item is missing"),
    (with_('["a","b"]', '["a","b","c"]'), 0, "one more item"),
    (with_('["a","b"]', '["a","b","b"]'), 0, "an item twice"),
    (with_('["a","b"]', '"a, b"'), 0, "a list as text"),
    (with_('["a","b"]', '{"0":"a","1":"b"}'), 0, "an object for a list"),
    (with_('["a","b"]', "[]"), 0, "an empty list"),
    (with_("0.5", '"50%"'), 0, "a share as text"),
    (with_("0.5", "0.50000001"), 0, "close is not equal"),
    (with_("0.5", "0,5"), 0, "a comma"),
    (with_("0.5", "1/2"), 0, "a fraction"),
    (with_("0.5", ".5"), 0, "no digit before the point"),
    # Null-likes: null is null and nothing else.
    (with_("null", '"null"'), 0, "null-like"),
    (with_("null", '"None"'), 0, "null-like"),
    (with_("null", '""'), 0, "null-like"),
    (with_("null", '"N/A"'), 0, "null-like"),
    (with_("null", '"unknown"'), 0, "null-like"),
    (with_("null", '"nan"'), 0, "null-like"),
    (with_("null", "0"), 0, "null-like"),
    (with_("null", "false"), 0, "null-like"),
    (with_("null", "[]"), 0, "null-like"),
    (with_("null", "{}"), 0, "null-like"),
    (with_("null", "[null]"), 0, "null-like"),
    (with_('"valid"', "null"), 0, "null for a value"),
    # Look-alikes.
    (with_("valid", "v\u0430lid"), 0, "a Cyrillic a"),
    (with_("valid", "va\u200blid"), 0, "a zero-width space"),
    (with_("valid", "\uff56\uff41\uff4c\uff49\uff44"), 0, "full-width letters"),
    (with_("valid", "val\u0131d"), 0, "an i without dot"),
    (with_("valid", "va1id"), 0, "1 for l"),
    (with_("valid", "vali\u0301d"), 0, "an accent"),
    (with_("valid", "\u202evalid"), 0, "a mark of direction"),
    (with_("valid", "va\u00adlid"), 0, "a soft hyphen"),
    (with_("valid", "valid\\u0000"), 0, "a zero byte"),
]
"""Is the item valid? JSON in one tag; task.fields["answer"] is JSON_FIELDS."""

TEXT = "Account Closure"
TEXT_ROWS: list[Row] = [
    (tagged("Account Closure"), 1, "the answer"),
    (f"So: {tagged(' Account Closure ')}", 1, "spaces around"),
    (tagged("Permanent Account Closure"), 0, "holds the right words"),
    (tagged("Account"), 0, "part of them"),
    (tagged("account closure"), 0, "case"),
    (tagged("Account  Closure"), 0, "two spaces"),
    (tagged("Account\u00a0Closure"), 0, "a no-break space"),
    (tagged("Account Closure, No Action"), 0, "both labels"),
    (tagged("Account Closure\nNo Action"), 0, "both labels"),
    (tagged("No Account Closure"), 0, "denied"),
    (tagged('"Account Closure"'), 0, "quotes"),
    (tagged("**Account Closure**"), 0, "markup"),
    (tagged("Account Closure."), 0, "a full stop"),
    (tagged("A\u0441count Closure"), 0, "a Cyrillic c"),
    (tagged("Answer: Account Closure"), 0, "words before"),
    (tagged("Account Closure") * 2, 0, "two tags"),
    ("Account Closure", 0, "no tag"),
    (f"`{tagged('Account Closure')}`", 0, "quoted"),
    (tagged(""), 0, "nothing"),
]
"""Which action? Text in one tag."""

NUMBER = 12.5
NUMBER_ROWS: list[Row] = [
    (tagged("12.5"), 1, "the answer"),
    (tagged("12.50"), 1, "the same number"),
    (tagged("1.25e1"), 1, "the same number"),
    (tagged("12.51"), 1, "at the tolerance of 0.01 exactly"),
    (tagged("12.49"), 1, "at the tolerance of 0.01 exactly"),
    (tagged("12.5100001"), 0, "past the tolerance"),
    (tagged("12"), 0, "rounded"),
    (tagged("12,5"), 0, "a comma"),
    (tagged("12.5 kg"), 0, "a unit"),
    (tagged("$12.5"), 0, "a currency"),
    (tagged("12.5%"), 0, "a per cent sign"),
    (tagged("-12.5"), 0, "the sign"),
    (tagged("12.5 or 13"), 0, "two numbers"),
    (tagged("25/2"), 0, "a fraction"),
    (tagged("[12.5]"), 0, "a list"),
    (tagged('"12.5"'), 0, "text"),
    (tagged("1_2.5"), 0, "an underscore"),
    (tagged("\u0661\u0662.5"), 0, "Arabic digits"),
    (tagged("nan"), 0, "not a number"),
    (tagged("inf"), 0, "infinity"),
    (tagged("1e9999"), 0, "too large to be a number"),
    (tagged("x = 12.5"), 0, "an equation"),
    ("12.5", 0, "no tag"),
]
"""How much? A number in one tag, within 0.01."""

SET = ["red", 1, None]
SET_ROWS: list[Row] = [
    (tagged('["red",1,null]'), 1, "the answer"),
    (tagged('[null,1.0,"red"]'), 1, "any order"),
    (tagged('["red",1]'), 0, "an item is missing"),
    (tagged('["red",1,null,"blue"]'), 0, "one more"),
    (tagged('["red",1,null,1]'), 0, "an item twice"),
    (tagged('["red",true,null]'), 0, "true is not 1"),
    (tagged('["red","1",null]'), 0, "text is no number"),
    (tagged('["red",1,"null"]'), 0, "null-like"),
    (tagged('["red",1,""]'), 0, "null-like"),
    (tagged('[["red",1,null]]'), 0, "nested"),
    (tagged('{"red":1}'), 0, "an object"),
    (tagged("red, 1"), 0, "no JSON"),
    (tagged('"red"'), 0, "one of them"),
    (tagged('["Red",1,null]'), 0, "case"),
    (tagged("[]"), 0, "none"),
    (tagged('["red",1,null]') * 2, 0, "two tags"),
    (tagged('["red",1,NaN]'), 0, "not a number"),
]
"""Which ones? A JSON array in one tag."""

ROWS = "SELECT name FROM parts WHERE stock > 1"
SQL_ROWS: list[Row] = [
    (f"```sql\n{ROWS}\n```", 1, "the reference itself"),
    ("```sql\nSELECT name AS n FROM parts WHERE NOT stock <= 1 ORDER BY name DESC\n```", 1, "the same rows"),
    ("```sql\nSELECT 'B1' UNION ALL SELECT 'B2'\n```", 1, "constants: the same rows, which is all that is scored"),
    ("```sql\nSELECT name FROM parts\n```", 0, "more rows"),
    ("```sql\nSELECT DISTINCT name FROM parts WHERE stock > 2\n```", 0, "fewer rows"),
    ("```sql\nSELECT name, stock FROM parts WHERE stock > 1\n```", 0, "one more column"),
    ("```sql\nSELECT name FROM parts WHERE stock > 1 UNION ALL SELECT 'B1'\n```", 0, "a row twice"),
    ("```sql\nSELECT lower(name) FROM parts WHERE stock > 1\n```", 0, "case"),
    ("```sql\nDELETE FROM parts WHERE stock < 2\n```", 0, "changes the data"),
    (f"```sql\n{ROWS}; SELECT 1\n```", 0, "two statements"),
    (f"```sql\nSELECT 1\n```\n```sql\n{ROWS}\n```", 0, "two blocks"),
    (f"```python\n{ROWS}\n```", 0, "a block of another language"),
    (ROWS, 0, "no block"),
    ("```sql\nSELEC name\n```", 0, "no SQL"),
    ("```sql\n\n```", 0, "empty"),
]
"""Which parts are there more than once? Rows are B1 and B2."""

STATE = {"orders": [{"id": 1, "sent": True}], "refunds": []}
