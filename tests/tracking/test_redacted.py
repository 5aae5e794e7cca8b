"""With `tracking.redact`, nothing that matches leaves a run for a service, and the run's own files stay as they are."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sparring.config.sections.runs import TrackingSection
from sparring.run_folders.stored import read_trajectories
from sparring.runtime.text_rules import build_redactor
from sparring.tracking.exporter import Exporter
from sparring.tracking.local import LocalTracker
from sparring.tracking.redacted import redact_trajectory
from sparring.tracking.services import requested_services
from sparring.tracking.spans import build_trace
from sparring.tracking.webhook import Webhook
from sparring.types import Reward, TrajectoryGroup
from tests.tracking.stored import started_run
from tests.tracking.test_spans import PLAYED

PERSON, ORDER = "alice@example.org", "ACME-4711"
RULES = ("email", r"ACME-\d+")
OWN = ("trajectories", "environment", "digests", "evaluations", "findings.jsonl", "report.html")
TEXT = f"{PERSON} ordered {ORDER}"


def about_a_person() -> TrajectoryGroup:
    """An episode whose every text names a person and an order."""
    messages = tuple({**one, "content": f"{one.get('content') or ''} {TEXT}"} for one in PLAYED.messages)
    task = replace(PLAYED.task, id=f"task of {PERSON}", messages=messages[:1], fields={"user": PERSON})
    turns = tuple(
        replace(turn, message={**turn.message, "content": f"{turn.message.get('content') or ''} {TEXT}"})
        for turn in PLAYED.turns
    )
    reward = replace(PLAYED.reward or Reward(total=1.0), record={"prompt": TEXT})
    changed = {"messages": messages, "turns": turns, "reward": reward, "error": TEXT, "final_state": {PERSON: [ORDER]}}
    played = replace(PLAYED, id=f"train/1/{PERSON}/0.0", task=task, artifacts={"log": TEXT}, **changed)
    return TrajectoryGroup(task=task, trajectories=(played,))


def sent(tmp_path: Path, services: Sequence[str], rules: Sequence[str]) -> tuple[Path, bytes]:
    """Export a run to real services that write files, and return its folder and all that they wrote."""
    run = started_run(tmp_path / "run")
    tracker = LocalTracker(run)
    tracker.log_groups(1, [about_a_person()], split="train")
    tracker.log_finding({"rule": "a", "severity": "note", "symptom": TEXT, "change": "", "step": 1})
    tracker.log_artifact("evaluations/held_out-001.json", {"worst": TEXT})
    tracker.close()
    (run / "report.html").write_text(f"<p>{TEXT}</p>")
    section = TrackingSection.model_validate(
        {**dict.fromkeys(services, True), "wandb_mode": "offline" if "wandb" in services else None, "redact": rules}
    )
    for service in requested_services(section, run):
        assert Exporter(run, service).finish(200), service.title
    files = [path for path in run.rglob("*") if path.is_file() and path.relative_to(run).parts[0] not in OWN]
    return run, b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize("service", ["mlflow", "tensorboard", "wandb"])
def test_nothing_that_matches_is_sent_to_a_service(tmp_path: Path, service: str) -> None:
    if importlib.util.find_spec(service) is None:
        pytest.skip(f"{service} is not installed")
    run, content = sent(tmp_path, [service], RULES)
    assert PERSON.encode() not in content
    assert ORDER.encode() not in content
    assert b"[email] ordered [redacted]" in content
    stored = (run / "trajectories" / "train-1.jsonl").read_text("utf-8")
    assert TEXT in stored


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_without_rules_texts_are_sent_as_they_are(tmp_path: Path) -> None:
    _, content = sent(tmp_path, ["mlflow"], ())
    assert TEXT.encode() in content


def test_a_redacted_episode_has_the_same_tokens_and_the_same_tree_of_spans(tmp_path: Path) -> None:
    (played,) = about_a_person().trajectories
    redacted = redact_trajectory(played, build_redactor(RULES))
    assert [turn.token_ids for turn in redacted.turns] == [turn.token_ids for turn in played.turns]
    before, after = (build_trace(one, run="r", stored=0.0) for one in (played, redacted))
    assert [(one.kind, one.began_ns, one.inputs is None) for one in before.spans] == [
        (one.kind, one.began_ns, one.inputs is None) for one in after.spans
    ]
    tracker = LocalTracker(tmp_path)
    tracker.log_groups(1, [TrajectoryGroup(task=redacted.task, trajectories=(redacted,))], split="train")
    tracker.close()
    (back,) = read_trajectories(tmp_path / "trajectories" / "train-1.jsonl")
    assert PERSON not in str(back)
    assert ORDER not in str(back)


def test_two_episodes_keep_different_ids() -> None:
    (played,) = about_a_person().trajectories
    other = replace(played, id=played.id.replace("alice", "bob"))
    ids = {redact_trajectory(one, build_redactor(RULES)).id for one in (played, other)}
    assert len(ids) == 2
    assert not any("@" in id for id in ids)


def test_a_webhook_gets_redacted_texts() -> None:
    bodies: list[str] = []

    def take(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content.decode())
        return httpx.Response(200)

    webhook = Webhook("http://hook.example", run="shop", redact=RULES, transport=httpx.MockTransport(take))
    webhook.log_finding({"rule": "a", "severity": "error", "symptom": TEXT, "change": TEXT})
    webhook.log_status("failed", reason=TEXT)
    webhook.close()
    assert len(bodies) == 2
    assert [PERSON in body or ORDER in body for body in bodies] == [False, False]
    assert json.loads(bodies[0])["finding"]["symptom"] == "[email] ordered [redacted]"
