"""Lists of training runs, in memory or only with checkpoints, as clients read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sparring.serving.tinker.checkpoints import Address, describe
from sparring.serving.tinker.refusal import Refusal
from sparring.serving.tinker.service import TinkerService, describe_time
from sparring.types import Json

Item = TypeVar("Item")

MOST_LISTED = 1000


def list_page(items: Sequence[Item], query: Mapping[str, str]) -> tuple[list[Item], dict[str, Json]]:
    """Return the items that a query selects with `offset` and `limit`, and the cursor. Raises Refusal."""
    try:
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", MOST_LISTED))
    except ValueError:
        raise Refusal("offset and limit: give whole numbers.") from None
    if offset < 0 or not 0 <= limit <= MOST_LISTED:
        raise Refusal(f"offset and limit: give an offset from 0, and a limit up to {MOST_LISTED}.")
    cursor: dict[str, Json] = {"offset": offset, "limit": limit, "total_count": len(items)}
    return list(items[offset : offset + limit]), cursor


def list_runs(service: TinkerService) -> list[dict[str, Json]]:
    """Return all training runs, newest first."""
    stored = {Address.read(content["path"]).run_id for content in service.checkpoints.list_all()}
    runs = [describe_run(service, run_id) for run_id in dict.fromkeys([*service.runs, *stored])]
    return sorted(runs, key=lambda run: str(run["last_request_time"]), reverse=True)


def describe_run(service: TinkerService, run_id: str) -> dict[str, Json]:
    """Return a training run. Raises Refusal 404 if it is neither in memory nor has checkpoints."""
    contents = service.checkpoints.list_all(run_id)
    run = service.runs.get(run_id)
    if run is None and not contents:
        raise Refusal(f"training_run_id: there is no training run {run_id!r} on this server.", 404)
    settings = _stored_settings(contents[-1]) if run is None else _settings(service, run_id)
    listed = {
        kind: [one for one in map(describe, contents) if one["checkpoint_type"] == kind]
        for kind in ("training", "sampler")
    }
    return {
        "training_run_id": run_id,
        "model_owner": "sparring",
        "is_lora": True,
        **settings,
        "last_checkpoint": listed["training"][-1] if listed["training"] else None,
        "last_sampler_checkpoint": listed["sampler"][-1] if listed["sampler"] else None,
    }


def _settings(service: TinkerService, run_id: str) -> dict[str, Json]:
    run = service.runs[run_id]
    metadata = run.settings.user_metadata
    return {
        "base_model": service.base.name,
        "lora_rank": run.settings.lora.rank,
        "last_request_time": describe_time(run.last_request_time),
        "user_metadata": None if metadata is None else dict(metadata),
    }


def _stored_settings(content: Mapping[str, Any]) -> dict[str, Json]:
    return {
        "base_model": content["base_model"],
        "lora_rank": content["lora_config"]["rank"],
        "last_request_time": content["time"],
        "user_metadata": content["run_metadata"],
    }
