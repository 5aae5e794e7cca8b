"""The operations of training sessions, computed in this process. Every request and every answer has a recorded shape."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sparring.tinker.service import AdamStep, Row
from tests.tinker.fake_service import FakeService, FakeTrainer
from tests.tinker.sagemaker.shapes import CONTROL, RUNTIME, check, check_passes

ARN = "arn:aws:sagemaker:us-west-2:111122223333"
MODEL = "arn:aws:sagemaker:us-west-2:aws:hub-content/SageMakerPublicHub/Model/tiny/1.0.0"
ROLE = "arn:aws:iam::111122223333:role/Sessions"
MOST_SAMPLED = 24
"""Answers end here, as if the context were full."""


@dataclass
class Session:
    shape: Mapping[str, int]
    trainer: FakeTrainer | None = None
    num_operations: int = 0
    is_running: bool = True


@dataclass
class Backend:
    """A service with one base model."""

    service: FakeService
    stop_id: int
    """The end of an answer, which the service includes."""
    sessions: dict[str, Session] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    """The operations so far."""
    packages: dict[str, str] = field(default_factory=dict)
    """The paths of model packages in the service that computes, by their ARN."""

    def __post_init__(self) -> None:
        self._results: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request of the control plane or of the runtime."""
        recorded = CONTROL if operation in CONTROL["operations"] else RUNTIME
        check(request, recorded["operations"][operation]["input"], recorded)
        with self._lock:
            answer = getattr(self, f"_{operation}")(request)
        check(answer, recorded["operations"][operation]["output"], recorded)
        return answer

    def _CreateTrainingSession(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert request["ModelConfig"]["BaseModelArn"] == MODEL
        self.log.append("create")
        self.sessions[request["TrainingSessionName"]] = Session(request["LoraConfig"])
        return {"TrainingSessionArn": f"{ARN}:training-session/{request['TrainingSessionName']}"}

    def _DescribeTrainingSession(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = request["TrainingSessionName"]
        detail = {
            "TrainingSessionArn": f"{ARN}:training-session/{name}",
            "TrainingSessionName": name,
            "TrainingSessionStatus": "Running" if self.sessions[name].is_running else "Stopped",
            "CreationTime": datetime(2026, 11, 1, tzinfo=UTC),
        }
        return {"TrainingSessionDetail": detail}

    def _StopTrainingSession(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.log.append("stop")
        self.sessions[request["TrainingSessionName"]].is_running = False
        return {}

    def _DescribeModelPackage(self, request: Mapping[str, Any]) -> dict[str, Any]:
        arn = request["ModelPackageName"]
        source = {"S3Uri": f"s3://bucket/{arn.rpartition('/')[2]}/", "S3DataType": "S3Prefix"}
        container = {"ModelDataSource": {"S3DataSource": source}}
        return {"ModelPackageArn": arn, "InferenceSpecification": {"Containers": [container]}}

    def _ExecuteTrainingOperation(self, request: Mapping[str, Any]) -> dict[str, Any]:
        session = self.sessions[request["trainingSessionName"]]
        assert session.is_running
        assert request["sequenceNumber"] == session.num_operations + 1, "operations are numbered without gaps"
        session.num_operations += 1
        if session.trainer is None:
            session.trainer = self.service.create(rank=session.shape["Rank"], seed=0)
        ((kind, config),) = request["operationConfig"].items()
        self.log.append(kind)
        return self._finished(kind, self._train(session.trainer, kind, config))

    def _train(self, trainer: FakeTrainer, kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "forwardBackward":
            check_passes(config)
            rows = [_row(datum) for datum in config["datumList"]]
            trainer.forward_backward(rows, config["lossFnName"], config.get("lossFnConfig")).result()
            return {
                "metrics": {"actor/pg_loss": 0.0},
                "tokenUsage": {"trainingTokens": sum(row.num_targets for row in rows)},
            }
        if kind == "optimizerStep":
            adam = config["adamParamsConfig"]
            step = AdamStep(
                learning_rate=adam["learningRate"],
                beta1=adam["beta1"],
                beta2=adam["beta2"],
                eps=adam["eps"],
                weight_decay=adam["weightDecay"],
                grad_clip_norm=adam.get("gradClipNorm", 0.0),
            )
            return {"metrics": trainer.optim_step(step).result()}
        if kind == "loadState":
            _, tensors, moments = self.service.stored[self.packages[config["modelPackageArn"]]]
            trainer.policy.restore(tensors)
            if config["loadOptimizer"]:
                trainer.optimizer.load_state_dict(moments)
            return {}
        number = next(self._numbers)
        save = trainer.save_state if kind == "saveState" else trainer.save_sampler
        arn = f"{ARN}:model-package/group/{number}"
        self.packages[arn] = save(str(number))
        return {"modelPackageArn": arn}

    def _ExecuteSamplingOperation(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.sessions[request["trainingSessionName"]].is_running
        ((kind, config),) = request["operationConfig"].items()
        self.log.append(kind)
        arn = config.get("modelPackageArn")
        sampler = self.service.create_sampler(None if arn is None else self.packages[arn])
        ids = [token for chunk in config["prompt"]["chunks"] for token in chunk["tokens"]]
        if kind == "computeLogprobs":
            # The first id has no log-probability. The shape is a list of numbers.
            return self._finished(kind, {"logprobs": [0.0, *asyncio.run(sampler.logprobs(ids))]})
        params = config["samplingParams"]
        found = asyncio.run(
            sampler.sample(
                ids,
                max_tokens=min(params["maxTokens"], MOST_SAMPLED),
                temperature=params.get("temperature", 1.0),
                top_p=params.get("topP", 1.0),
                stop_ids=[self.stop_id],
                seed=params.get("seed", 0),
            )
        )
        sequence = {
            "stopReason": "stop" if found.has_stopped else "length",
            "tokens": list(found.token_ids),
            "logprobs": list(found.logprobs),
            "tokenUsage": {"prefill": len(ids), "decode": len(found.token_ids)},
        }
        return self._finished(kind, {"sequences": [sequence]})

    def _finished(self, kind: str, result: dict[str, Any]) -> dict[str, Any]:
        operation = f"operation-{next(self._numbers)}"
        self._results[operation] = {"status": "Completed", "operationResult": {kind: result}}
        return {"operationId": operation}

    def _GetTrainingOperationResult(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._results[request["operationId"]]

    def _GetSamplingOperationResult(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._results[request["operationId"]]


def _row(datum: Mapping[str, Any]) -> Row:
    ids: Sequence[int] = [token for chunk in datum["modelInput"]["chunks"] for token in chunk["tokens"]]
    inputs = {name: tuple(tensor["data"]) for name, tensor in datum["lossFnInputs"].items()}
    targets = inputs.pop("target_tokens")
    assert list(targets[:-1]) == list(ids[1:]), "each target is the next input"
    if "advantages" in inputs:
        assert set(inputs.pop("weights")) == {1.0}
    return Row(token_ids=(*ids, int(targets[-1])), **inputs)
