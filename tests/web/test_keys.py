"""Keys by name: a file of hashes, quotas, wrong keys, and the audit log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.errors import UsageError
from sparring.web.audit import AuditLog, describe_path
from sparring.web.gate import Gate, Refused
from sparring.web.keys import Keys, NamedKey, hash_key, read_keys, write_keys
from sparring.web.quotas import MOST_FAILURES

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC).timestamp()


class Time:
    now = NOON

    def __call__(self) -> float:
        return self.now


def named(name: str = "alice", key: str = "right", **limits: object) -> NamedKey:
    return NamedKey(**{"name": name, "hash": hash_key(key), "scope": ("complete",), **limits})  # type: ignore[arg-type]


def ask(gate: Gate, key: str = "right", *, address: str = "10.0.0.1", num_tokens: int = 0) -> tuple[int, int | None]:
    """Send a request through a gate, and return its status and when to try again."""
    try:
        with gate.visit(address, "POST", "/v1/chat/completions") as visit:
            gate.admit(visit, key, "complete")
            visit.status, visit.num_tokens = 200, num_tokens
    except Refused as refused:
        return refused.status, refused.retry_after
    return 200, None


def keys(*arguments: str, path: Path) -> str:
    """Run `sparring keys` and return its output."""
    result = CliRunner().invoke(app, ["keys", *arguments, "--keys", str(path)])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_new_key_is_printed_once_and_the_file_has_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    options = ("--scope", "complete", "--scope", "read", "--expires", "30d", "--requests-per-minute", "60")
    key = json.loads(keys("create", "alice", *options, "--tokens-per-day", "1000", "--json", path=path))["api_key"]
    other = keys("create", "bob", "--expires", "2027-01-31", "--connections", "2", path=path).splitlines()[-1]
    assert (path.stat().st_mode & 0o777, key in path.read_text(), other in path.read_text()) == (0o600, False, False)
    alice, bob = read_keys(path).values()
    assert (alice.hash, alice.scope, alice.requests_per_minute, alice.tokens_per_day) == (
        hash_key(key),
        ("complete", "read"),
        60,
        1000,
    )
    assert alice.expires is not None
    assert timedelta(days=29) < alice.expires - datetime.now(UTC) < timedelta(days=31)
    assert (bob.scope, bob.expires, bob.connections) == (("complete",), datetime(2027, 1, 31, tzinfo=UTC), 2)
    listed = keys("list", path=path)
    assert "alice" in listed
    assert key not in listed
    assert alice.hash not in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "alice"], "has a key 'alice'"),
        (["create", "a b"], "is not a name"),
        (["create", "bob", "--scope", "all"], "is not a scope"),
        (["create", "bob", "--expires", "soon"], "write 30m, 12h or 7d"),
        (["rotate", "bob"], "has no key 'bob'"),
        (["revoke", "bob"], "has no key 'bob'"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    tmp_path: Path, arguments: Sequence[str], message: str
) -> None:
    path = tmp_path / "keys.toml"
    keys("create", "alice", path=path)
    before = path.read_bytes()
    refused = CliRunner().invoke(app, ["keys", *arguments, "--keys", str(path)])
    assert (refused.exit_code, message in refused.output, path.read_bytes()) == (2, True, before)


def test_rotation_and_revocation_reach_a_running_server(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    first = keys("create", "alice", path=path).splitlines()[-1]
    found = Keys.of_file(path)
    second = keys("rotate", "alice", "--overlap", "1h", path=path).splitlines()[-1]
    now = datetime.now(UTC).timestamp()
    assert [found.find(key, now) is not None for key in (first, second)] == [True, True]
    assert [found.find(key, now + 3700) is not None for key in (first, second)] == [False, True]
    third = keys("rotate", "alice", path=path).splitlines()[-1]
    assert [found.find(key, now) is not None for key in (first, second, third)] == [False, False, True]
    keys("revoke", "alice", path=path)
    assert found.find(third, now) is None


def test_a_broken_file_leaves_the_keys_of_a_running_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.toml"
    write_keys(path, [named()])
    found = Keys.of_file(path)
    path.write_text("[alice\n")
    assert found.find("right", NOON) is not None
    assert found.find("right", NOON) is not None
    assert caplog.text.count("The keys stay as they were") == 1
    write_keys(path, [named(key="new")])
    assert (found.find("right", NOON), found.find("new", NOON) is not None) == (None, True)


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("", 0o640, "has mode 0640"),
        ("", 0o604, "chmod 600"),
        ("alice = 1", 0o600, "are not valid"),
        ("[alice]\nhash = 'short'\nscope = ['complete']", 0o600, r"hash: String should match"),
        ("[alice]\nhash = 'short'\nkey = 'sk-secret'\nscope = ['complete']", 0o600, "are not valid"),
        (f"[alice]\nhash = '{'a' * 64}'\nscope = []", 0o600, "scope"),
        (f"[alice]\nhash = '{'a' * 64}'\nscope = ['all']", 0o600, "scope"),
        (f"[alice]\nhash = '{'a' * 64}'\nscope = ['read']\nrequests_per_minute = 0", 0o600, "requests_per_minute"),
    ],
)
def test_a_file_that_others_can_read_or_with_mistakes_is_refused(
    tmp_path: Path, content: str, mode: int, message: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(UsageError, match=message) as refused:
        read_keys(path)
    assert "sk-secret" not in str(refused.value)


def test_dates_without_a_time_or_a_zone_are_in_utc(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    write_keys(path, [named()])
    with path.open("a") as file:
        file.write("expires = 2027-01-01\n")
    assert read_keys(path)["alice"].expires == datetime(2027, 1, 1, tzinfo=UTC)


def test_quotas_of_a_key_are_enforced_and_pass(tmp_path: Path) -> None:
    time = Time()
    gate = Gate("serve", Keys([named(requests_per_minute=2), named("bob", "other")]), clock=time)
    assert [ask(gate) for _ in range(3)] == [(200, None), (200, None), (429, 61)]
    assert [ask(gate, "other")[0] for _ in range(9)] == [200] * 9
    time.now += 61
    assert ask(gate) == (200, None)

    gate = Gate("serve", Keys([named(tokens_per_day=100)]), clock=time)
    assert [ask(gate, num_tokens=60)[0] for _ in range(3)] == [200, 200, 429]
    assert ask(gate) == (429, 12 * 3600 - 60)
    time.now += 12 * 3600
    assert ask(gate) == (200, None)

    gate = Gate("serve", Keys([named(connections=1)]), clock=time)
    with gate.visit("a", "POST", "/") as visit:
        gate.admit(visit, "right", "complete")
        assert ask(gate) == (429, 1)
    assert ask(gate) == (200, None)


def test_wrong_keys_of_an_address_are_limited_and_a_right_key_still_works(tmp_path: Path) -> None:
    time, path = Time(), tmp_path / "audit.jsonl"
    gate = Gate("serve", Keys([named()]), clock=time, audit=AuditLog(path))
    assert [ask(gate, f"wrong-{number}")[0] for number in range(MOST_FAILURES)] == [401] * MOST_FAILURES
    assert ask(gate, "wrong") == (429, 61)
    assert ask(gate, "") == (401, None)  # a browser without a key is asked for one
    assert ask(gate) == (200, None)
    assert ask(gate, "wrong", address="10.0.0.2") == (401, None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["reason"] for line in lines] == ["unknown key"] * MOST_FAILURES + [None, "unknown key"]
    time.now += 61
    assert ask(gate, "wrong") == (401, None)


def test_the_audit_log_has_who_what_and_when_and_follows_a_file_that_is_moved(tmp_path: Path) -> None:
    path, time = tmp_path / "audit.jsonl", Time()
    gate = Gate("serve", Keys([named()]), clock=time, audit=AuditLog(path))
    ask(gate, num_tokens=7)
    path.rename(tmp_path / "audit.1")
    ask(gate, "wrong-key")
    assert json.loads((tmp_path / "audit.1").read_text()) == {
        "time": NOON,
        "server": "serve",
        "name": "alice",
        "address": "10.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "tokens": 7,
        "reason": None,
    }
    refused = json.loads(path.read_text())
    assert (refused["name"], refused["reason"]) == (None, "unknown key")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="cannot be written"):
        AuditLog(tmp_path / "missing" / "audit.jsonl")


def test_a_server_without_keys_logs_too(tmp_path: Path) -> None:
    gate = Gate("watch", free=("complete",), audit=AuditLog(tmp_path / "audit.jsonl"))
    assert ask(gate, "") == (200, None)
    logged = json.loads((tmp_path / "audit.jsonl").read_text())
    assert (logged["name"], logged["status"]) == (None, 200)


def test_paths_are_logged_without_keys() -> None:
    assert describe_path("/s/my-own-key/v1/chat/completions") == "/s/KEY/v1/chat/completions"
    assert describe_path("/v1/queue/sTz31k-9_fLw2mmmmm/renew") == "/v1/queue/ID/renew"
    assert describe_path("/v1/chat/completions") == "/v1/chat/completions"
