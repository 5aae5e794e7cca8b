"""The routes of SageMaker's Job Runtime Service, and the same reports in simpler formats.

The service is described at
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Operations_Amazon_SageMaker_Job_Runtime.html. An agent
samples turns, completes its rollout, and sends rewards. Its requests contain a job ARN, whose format is the only thing
checked, and a trajectory id, which is the key of the episode. Errors are AWS's REST-JSON. The fields `Components` and
`Metrics` of a reward are Sparring's own additions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias, final

import pydantic
from pydantic.alias_generators import to_pascal

from sparring.errors import RewardError
from sparring.gateway.dialects import ChatCompletions
from sparring.gateway.dialects.validation import body_schema, refusal
from sparring.gateway.report import EpisodeReport, Status
from sparring.gateway.request import ApiError, Asked, Dialect, Head, Part
from sparring.rewards.reports import read_report
from sparring.types import AgentReport, Json, Turn

TRAJECTORY_ID = "x-amzn-sagemaker-trajectory-id"
_JOB_ARN = "x-amzn-sagemaker-job-arn"
MAX_LENGTH = 256
"""The maximum length of a trajectory id or job ARN, in characters."""

_KINDS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    405: "ValidationException",
    409: "ConflictException",
    413: "ValidationException",
    415: "ValidationException",
    429: "ThrottlingException",
}


def trajectory_id(headers: Mapping[str, str]) -> str:
    """Return the trajectory id of a request, or an empty string if there is none. Raises ApiError 400 for a header that
    is too long."""
    for name in (TRAJECTORY_ID, _JOB_ARN):
        if len(headers.get(name, "")) > MAX_LENGTH:
            raise ApiError(
                400,
                f"{name} has {len(headers[name])} characters, but the maximum is {MAX_LENGTH}; "
                "send the value that the episode received.",
                code="invalid_value",
                param=name,
            )
    return headers.get(TRAJECTORY_ID, "")


@final
class AwsError(ApiError):
    """An error in AWS's format. The kind of error is sent in a header. An unknown key is reported as a trajectory that
    was not found."""

    def __init__(self, error: ApiError) -> None:
        status = 404 if error.status == 401 else error.status
        super().__init__(status, str(error), code=error.code, param=error.param, retry_after=error.retry_after)

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "x-amzn-errortype": _kind(self)}


def _kind(error: ApiError) -> str:
    return _KINDS.get(error.status, "InternalServiceError")


def _aws_body(error: ApiError) -> Mapping[str, Json]:
    # The service's model names the field Message, and generic parsers of the protocol expect message.
    return {"__type": _kind(error), "message": str(error), "Message": str(error)}


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """Chat completions with errors in AWS's format. The model is always the policy, so a request need not name it."""

    streams: bool
    """Whether the route always responds with a stream."""

    @property
    def id_prefix(self) -> str:
        return ChatCompletions.id_prefix

    def read(self, body: Json) -> Asked:
        asked = ChatCompletions().read({"model": "default", **body} if isinstance(body, dict) else body)
        return replace(asked, stream=asked.stream or self.streams)

    def request_schema(self, prefix: str) -> dict[str, Json]:
        schema = ChatCompletions().request_schema(prefix)
        return {**schema, "required": [field for field in schema["required"] if field != "model"]}

    def whole(self, asked: Asked, turns: Sequence[Turn], head: Head) -> Mapping[str, Json]:
        return ChatCompletions().whole(asked, turns, head)

    def stream(self, asked: Asked, parts: AsyncIterator[Part], head: Head) -> AsyncIterator[bytes]:
        return ChatCompletions().stream(asked, parts, head)

    def error(self, error: ApiError) -> Mapping[str, Json]:
        return _aws_body(error)

    def error_event(self, error: ApiError, num_sent: int) -> bytes:
        """Return an error event in the format of chat completions, which readers of such a stream expect."""
        return ChatCompletions().error_event(error, num_sent)


SAMPLES: Mapping[str, Dialect] = {
    "/sample": Sample(streams=False),
    "/sample-with-response-stream": Sample(streams=True),
}

_Name: TypeAlias = Annotated[str, pydantic.Field(min_length=1, max_length=MAX_LENGTH)]
_Rewards: TypeAlias = Annotated[
    list[pydantic.FiniteFloat],
    pydantic.Field(min_length=1, description="One number for the episode, or one for each turn."),
]
_Numbers: TypeAlias = dict[_Name, pydantic.FiniteFloat]
_Text: TypeAlias = Annotated[str, pydantic.Field(max_length=10_000)]
"""A string of limited length. It must not contain lone surrogates, because the ledger cannot store them."""


class _Body(pydantic.BaseModel):
    """A body in which unknown fields are rejected, so that no value is lost silently."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    client_token: _Name | None = None
    final_state: Json = None
    transitions: Json = None
    artifacts: Json = None

    @property
    def handed_over(self) -> AgentReport | None:
        """The parts of the report that are not about the reward or the status, or None if there are none."""
        parts = {"final_state": self.final_state, "transitions": self.transitions, "artifacts": self.artifacts}
        is_empty = all(part is None for part in parts.values())
        return None if is_empty else read_report(parts, source="The report of the agent")


class Completion(_Body):
    """A report that the agent has ended, or that it failed for a given reason."""

    status: Status
    error: _Text = ""

    def tell(self, report: EpisodeReport) -> None:
        """Apply the completion to the report. Raises ApiError 409."""
        report.complete(self.status, error=self.error, handed_over=self.handed_over, client_token=self.client_token)


class RewardUpdate(_Body):
    """A report of the episode's reward, in total or per turn."""

    reward: pydantic.FiniteFloat | _Rewards
    components: _Numbers | None = None
    metrics: _Numbers | None = None

    def tell(self, report: EpisodeReport) -> None:
        """Apply the reward to the report. Raises ApiError 400 if the list does not have exactly one reward for each
        turn, and 409 if the episode accepts no reward at this time."""
        try:
            report.update_reward(
                self.reward,
                components=self.components,
                metrics=self.metrics,
                handed_over=self.handed_over,
                client_token=self.client_token,
            )
        except RewardError as error:
            where = type(self).model_fields["reward"].alias or "reward"
            raise ApiError(400, f"{where}: {error}", code="invalid_value", param=where) from error


class _OfTrajectory(_Body):
    """A body that identifies the episode, with field names in Pascal case, as in AWS's APIs."""

    model_config = pydantic.ConfigDict(alias_generator=to_pascal)

    trajectory_id: _Name
    job_arn: _Name


@final
class CompleteRollout(_OfTrajectory, Completion):
    """A report in AWS's format that the agent is done. The job ARN may be in its header instead."""

    status: Status = "ready"


@final
class UpdateReward(_OfTrajectory, RewardUpdate):
    """A report of the episode's reward in AWS's format: one number in total, or one for each turn. The job ARN may be
    in its header instead."""

    reward: _Rewards = pydantic.Field(alias="Rewards")


@final
@dataclass(frozen=True, slots=True)
class ReportRoute:
    """The format of one route for a report and its errors."""

    body: type[Completion | RewardUpdate]

    @property
    def is_aws(self) -> bool:
        """Whether this is an AWS route: its body identifies the episode, and its errors are in AWS's format."""
        return issubclass(self.body, _OfTrajectory)

    def request_schema(self, prefix: str) -> dict[str, Json]:
        """Return the JSON schema of the bodies that `read` accepts, in the form of `validation.body_schema`."""
        return body_schema(self.body, prefix)

    def read(self, body: Json, headers: Mapping[str, str]) -> Completion | RewardUpdate:
        """Check a decoded body. Raises ApiError 400, which names the invalid field."""
        if not isinstance(body, dict):
            raise ApiError(400, f"The body is JSON of type {type(body).__name__}; send an object.")
        if self.is_aws and _JOB_ARN in headers:
            # The service's model has the job ARN in the header, but its own SDK writes it into the body.
            body = {"JobArn": headers[_JOB_ARN], **body}
        try:
            return self.body.model_validate(body)
        except pydantic.ValidationError as error:
            raise refusal(body, error) from error

    def key(self, report: Completion | RewardUpdate) -> str | None:
        """Return the id of the episode in a body, or None for a body without one."""
        return report.trajectory_id if isinstance(report, _OfTrajectory) else None

    def error(self, error: ApiError) -> Mapping[str, Json]:
        return _aws_body(error) if isinstance(error, AwsError) else ChatCompletions().error(error)

    def convert(self, error: ApiError) -> ApiError:
        return AwsError(error) if self.is_aws else error


REPORTS: Mapping[str, ReportRoute] = {
    "/complete-rollout": ReportRoute(CompleteRollout),
    "/update-reward": ReportRoute(UpdateReward),
    "/v1/episode/complete": ReportRoute(Completion),
    "/v1/episode/reward": ReportRoute(RewardUpdate),
}
