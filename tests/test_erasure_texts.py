"""`sparring runs erase` finds a text however it is written, and nothing else; an interrupted erasure goes on."""

from __future__ import annotations

import json
import shutil
import sqlite3
from array import array
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sparring.erasure import Selection, erase, find, finish, list_remaining
from sparring.ledger import Ledger
from tests.run_folders.test_formats import READERS
from tests.test_erasure import episodes, erased, holding, plant, run, sparring

__all__ = ["run"]  # the fixture

NAME = 'Zoë "Z" Müller\n😀/x'


@pytest.mark.parametrize(
    "options", [("",), (" ", "--containing", "Ada"), ("Ada", "--containing", "\t"), ("", "--task", "t1")]
)
def test_an_empty_text_is_refused_because_every_episode_contains_it(run: Path, options: tuple[str, ...]) -> None:
    """A shell passes one for a variable that is not set."""
    before = episodes(run)
    refused = sparring("runs", "erase", "stored", "--yes", "--containing", *options)
    assert refused.exit_code == 2
    assert "names nothing to erase" in " ".join(refused.output.split())
    assert sparring("runs", "erase", "stored", "--yes", "--task", "").exit_code == 2
    assert episodes(run) == before


def test_a_text_that_is_not_utf_8_is_refused(run: Path) -> None:
    refused = sparring("runs", "erase", "stored", "--yes", "--containing", "Jos\udce9")
    assert refused.exit_code == 2
    assert "UTF-8" in refused.output


@pytest.mark.parametrize("text", ["fingerpri", "outcom", "MAX_TOKEN", "sampled_log", "tool_error", "true", "message"])
def test_words_of_the_format_are_in_no_episode(run: Path, text: str) -> None:
    assert erased("--containing", text)["episodes"] == []


@pytest.mark.parametrize("levels", range(4))
@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("wanted", [NAME, NAME.upper(), "Zoe\u0308", "😀"])
def test_a_text_is_found_escaped_as_json_within_json_in_either_case(levels: int, is_ascii: bool, wanted: str) -> None:
    text = f"I am {NAME}."
    for _ in range(levels):
        text = json.dumps({"note": text}, ensure_ascii=is_ascii)
    selection = Selection(texts=(wanted,))
    assert selection.matches(text)
    assert selection.matches(text.replace("/", r"\/")) or not levels
    assert selection.contains({"a": [{text: 1}]})
    assert not Selection(texts=("Zoe M",)).matches(text)


def test_the_escaped_arguments_of_calls_are_erased_also_if_the_episodes_were_pruned(run: Path) -> None:
    ids = [id for id, row in episodes(run).items() if row["task"]["id"] == "t1"]
    for name in ("trajectories", "environment", "digests"):
        shutil.rmtree(run / name, ignore_errors=True)
    call = {"function": {"name": "find", "arguments": json.dumps({"who": NAME.upper()})}}
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        message = json.dumps({"role": "assistant", "content": "", "tool_calls": [call]})
        db.execute("UPDATE turns SET message = ?, digest = NULL WHERE rollout_id = ?", (message, ids[0]))
    assert erased("--containing", NAME, "--yes")["episodes"] == [ids[0]]
    assert holding(run, "LLER") == set()


def test_a_name_is_found_in_tokens_of_which_several_are_one_character(run: Path) -> None:
    shutil.rmtree(run / "trajectories")
    vocabulary = json.loads((run / "vocabulary.json").read_text())
    part = vocabulary.index("\ufffd")  # the vocabulary has no text for a part of a character
    tokens = [vocabulary.index(one) for one in "iamM"] + [part, part] + [vocabulary.index(one) for one in "ller"]
    id = "train/0/t1/0.0"
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        blob = array("i", tokens).tobytes()
        db.execute("UPDATE turns SET new_prompt_ids = ?, digest = NULL WHERE rollout_id = ?", (blob, id))
    assert erased("--containing", "MÜLLER")["episodes"] == [id]
    assert erased("--containing", "Miller")["episodes"] == []
    # Almost every text of this policy has parts of characters.
    assert erased("--containing", "ü")["episodes"] == []


def test_what_only_the_ledger_has_is_found_and_erased(run: Path) -> None:
    """Episodes that wait for training, and the reason why one was discarded."""
    first, second, *_ = [id for id, row in episodes(run).items() if row["task"]["id"] == "t1"]
    kept = json.dumps({"task": {"fields": {"who": "Ada L."}}}).encode()
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        db.execute("INSERT INTO kept VALUES (?, ?, NULL)", (first, kept))
        db.execute("UPDATE rollouts SET detail = 'no row for Ada L.', digest = NULL WHERE id = ?", (second,))
    (run / "status.json").write_text(
        json.dumps({"status": "failed", "step": 2, "reason": "KeyError: Ada L.", "time": 0})
    )
    assert set(erased("--containing", "ada l.", "--yes")["episodes"]) == {first, second}
    assert holding(run, "Ada L.") == set()
    assert json.loads((run / "status.json").read_text())["status"] == "failed"


def test_files_that_a_killed_process_left_are_deleted(run: Path) -> None:
    plant(run, "Ada")
    left = [
        "trajectories/.train-3.jsonl.part",
        "digests/.train-3.jsonl.1-2.part",
        "trajectories/recorded-1.tmp",
        ".copy/1",
    ]
    for name in left:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("Ada")
    erased("--task", "t1", "--yes")
    assert not any((run / name).exists() for name in left)


def test_names_of_files_and_compressed_files_are_listed(run: Path) -> None:
    plant(run, "Ada L.")
    (run / "recipe" / "of-ada l..txt").write_text("x")
    (run / "recipe" / "rows.jsonl.gz").write_bytes(b"\x1f\x8b")
    found = erased("--containing", "Ada L.", "--yes")
    assert found["remaining"] == ["runs/stored/recipe/of-ada l..txt"]
    assert "runs/stored/recipe/rows.jsonl.gz, which is compressed and was not searched" in found["elsewhere"]
    # Another erasure finds no episodes, but what is left is still shown.
    again = sparring("runs", "erase", "stored", "--containing", "Ada L.", "--yes")
    assert "still has it: runs/stored/recipe/of-ada l..txt" in " ".join(again.output.split())


@pytest.mark.parametrize("offset", [0, 2**20 - 3, 2**20 - 40, 3 * 2**20 - 1])
def test_a_text_is_found_wherever_it_is_in_a_large_file(tmp_path: Path, offset: int) -> None:
    (tmp_path / "log").write_bytes(b"x" * offset + json.dumps(NAME).encode() + b"y" * 2**21)
    assert list_remaining(tmp_path, Selection(texts=(NAME,)), ()) == [tmp_path / "log"]


def test_names_of_the_format_stay_in_logs_and_evaluations(run: Path) -> None:
    """A name may be a part of such a word: "validation" has "Ali", and "warning" has "Arn"."""
    evaluations = {path: path.read_bytes() for path in (run / "evaluations").iterdir()}
    for text in ("Ali", "Arn", "held", "omplete"):
        plant_once(run, text)
        assert len(erased("--containing", text, "--yes")["episodes"]) == 1
    assert {path: path.read_bytes() for path in (run / "evaluations").iterdir()} == evaluations
    finding = json.loads((run / "findings.jsonl").read_text().splitlines()[0])
    assert (finding["rule"], finding["severity"]) == ("budgets.turns_cut", "warning")
    assert json.loads((run / "status.json").read_text())["status"] == "completed"
    for arguments in READERS:
        done = sparring(*arguments)
        assert done.exit_code == 0, (arguments, done.output)


def test_an_id_is_not_taken_for_one_that_begins_like_it(run: Path) -> None:
    ids = [id for id, row in episodes(run).items() if row["task"]["id"] == "t1"]
    log = [{"logger": "x", "message": f"{id}{digit} is slow"} for id in ids for digit in ("", "0")]
    (run / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in log))
    erased("--task", "t1", "--yes")
    left = [json.loads(line)["message"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert [message.endswith("0 is slow") for message in left] == [False, True] * len(ids)


def plant_once(run: Path, text: str) -> None:
    file = run / "trajectories" / "train-1.jsonl"
    first, *others = file.read_text().splitlines()
    row = json.loads(first)
    row["messages"][0]["content"] = text
    file.write_text("\n".join([json.dumps(row), *others]) + "\n")


class Killed(BaseException):
    pass


def test_an_erasure_that_was_killed_anywhere_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of a file, and each statement in the ledger, is the last one of one erasure."""
    plant(run, "Ada Lovelace")
    (run / "digests").mkdir(exist_ok=True)
    for file in (run / "trajectories").glob("train-1.*"):
        (run / "digests" / file.name).write_text("Ada Lovelace")
    # The only evidence of one episode is in the environment's log.
    other = next(id for id, row in episodes(run).items() if row["task"]["id"] != "t1")
    log = {"trajectory_id": other, "task_id": "t2", "index": 0, "transition": {"state": "Ada Lovelace"}}
    (run / "environment" / "train-1.jsonl").write_text(json.dumps(log) + "\n")
    selection, last = Selection(texts=("ada lovelace",)), 0
    for last in range(200):
        copy = tmp_path / f"copy-{last}"
        shutil.copytree(run, copy)
        with monkeypatch.context() as patches:
            _kill_after(last, patches)
            try:
                erase(copy, find(copy, selection), selection)
                finish(copy)
            except Killed:
                pass
            else:
                break
        found = find(copy, selection)
        erase(copy, found, selection)
        finish(copy)
        assert holding(copy, "Ada Lovelace") == set(), last
        assert len(episodes(copy)) == len(episodes(run)) - 4
        with Ledger(copy / "ledger.sqlite") as ledger:
            assert sum(one.detail == "[erased]" for one in ledger.rollouts()) == 4
        assert not find(copy, selection).ids
        shutil.rmtree(copy)
    assert last > 15


def _kill_after(most: int, patches: pytest.MonkeyPatch) -> None:
    """Let the change after this number of changes end the process."""
    num = 0

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal num
            if num == most:
                raise Killed
            num += 1
            return original(*arguments, **options)

        patches.setattr(owner, name, change)

    for owner, name in ((Path, "replace"), (Path, "unlink"), (shutil, "rmtree")):
        wrap(owner, name)

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *arguments: Any) -> Any:
            nonlocal num
            if statement.split()[0] in ("UPDATE", "DELETE", "COMMIT", "VACUUM") or "checkpoint" in statement:
                if num == most:
                    raise Killed
                num += 1
            return super().execute(statement, *arguments)

    connect = sqlite3.connect
    patches.setattr(
        "sparring.ledger.rows.sqlite3.connect", lambda *args, **options: connect(*args, factory=Connection, **options)
    )
