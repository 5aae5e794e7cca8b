"""Train and sample through the real SDK against a server that answers in the recorded shapes, and print what was found as JSON.

python -m tests.tinker.sagemaker.real_session SITE_PACKAGES

The folder has the package `sagemaker-train`. Packages that both it and this environment have are those of this environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import threading
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sparring.tinker.engine import TinkerEngine
from sparring.tinker.learner import TinkerLearner, base_weights
from sparring.tinker.sagemaker import SageMakerService
from sparring.training.learner import AdamWSettings, TorchLearner
from tests.contracts.cases import ADAPTER, CONTEXT, LETTERS, make_policy
from tests.contracts.scenarios import asked
from tests.tinker.fake_service import FakeService
from tests.tinker.sagemaker.backend import ARN, MODEL, ROLE, Backend
from tests.tinker.sagemaker.shapes import RUNTIME
from tests.tinker.test_learner import near_policy, with_fields
from tests.tinker.test_rows import FORK

ADAM = AdamWSettings(grad_clip_norm=0.0)


def serve(backend: Backend) -> str:
    """Answer the requests of the control plane and of the runtime over HTTP, and return the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            target = self.headers.get("X-Amz-Target")
            self.respond(body, None if target is None else target.split(".")[1])

        def do_GET(self) -> None:
            self.respond({}, None)

        def respond(self, body: dict[str, Any], operation: str | None) -> None:
            if operation is None:
                operation, named = find_operation(self.command, self.path)
                body |= named
            if operation == "CreateModelPackageGroup":
                answer: dict[str, Any] = {"ModelPackageGroupArn": f"{ARN}:model-package-group/sagemaker-default"}
            else:
                answer = backend.call(operation, body)
            content = json.dumps(answer, default=datetime.timestamp).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def find_operation(method: str, path: str) -> tuple[str, dict[str, str]]:
    for name, operation in RUNTIME["operations"].items():
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", operation["path"])
        if operation["method"] == method and (found := re.fullmatch(pattern, path)):
            return name, found.groupdict()
    raise AssertionError(f"{method} {path} is not a recorded operation")


def main() -> dict[str, Any]:
    backend = Backend(FakeService(partial(make_policy, lora=True), ADAPTER), stop_id=7)
    address = serve(backend)
    os.environ |= {
        "AWS_REGION": "us-west-2",
        "AWS_DEFAULT_REGION": "us-west-2",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_TRAINING_SESSION_ENDPOINT": address,
        "SAGEMAKER_TRAINING_SESSION_RUNTIME_ENDPOINT": address,
    }
    use_no_bucket()
    service = SageMakerService(model=MODEL, role_arn=ROLE, shape=ADAPTER)
    service.download = partial(copy, backend)  # type: ignore[method-assign]
    local, batch = TorchLearner(make_policy(lora=True), adam=ADAM), near_policy(with_fields(FORK))
    served = TinkerLearner(service, shape=ADAPTER, adam=ADAM)
    for loss_fn in ("ppo", "importance_sampling"):
        for one in (local, served):
            one.forward_backward(batch, loss_fn, {})
            one.optim_step(0.01)
    found: dict[str, Any] = {"difference": distance(local.logprobs(batch), served.logprobs(batch))}
    with tempfile.TemporaryDirectory() as folder:
        served.export_state().write(Path(folder))
        other = TinkerLearner(service.share(), shape=ADAPTER, adam=ADAM)
        other.load_state(Path(folder))
        for one in (served, other):
            one.forward_backward(batch, "ppo", {})
            one.optim_step(0.01)
        found["restored_difference"] = distance(served.logprobs(batch), other.logprobs(batch))
        found |= asyncio.run(sample(service.share(), Path(folder)))
    served.close()
    other.close()
    running = [session for session in backend.sessions.values() if session.is_running]
    return found | {"running": len(running), "log": backend.log}


def use_no_bucket() -> None:
    """Name a bucket, because finding the account's own one needs the account."""
    from sagemaker.core.helper.session_helper import Session  # pyright: ignore[reportMissingImports]

    Session.default_bucket = lambda self: "bucket"


def copy(backend: Backend, path: str, folder: Path) -> None:
    """Download from the service that computes instead of from S3."""
    backend.service.download(backend.packages[path], folder)


async def sample(service: SageMakerService, folder: Path) -> dict[str, Any]:
    engine = TinkerEngine(
        service, weights=base_weights(folder, "base"), max_context_tokens=CONTEXT, decode=LETTERS.decode
    )
    short = await engine.sample(asked(max_tokens=4, stop_ids=frozenset({7})))
    whole = await engine.sample(asked(max_tokens=40, stop_ids=frozenset({7})))
    scored = await engine.logprobs([*asked().prompt_ids, *short.token_ids])
    await engine.close()
    return {
        "short": short.token_ids,
        "whole": whole.token_ids,
        "sampler_difference": distance(scored[-len(short.token_ids) :], short.sampled_logprobs),
    }


def distance(one: Any, other: Any) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    print(json.dumps(main()))  # noqa: T201
