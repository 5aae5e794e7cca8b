"""Agents written for SageMaker MTRL, with nothing of Sparring's in them; run in a virtual environment of their own.

`agent.py handler PORT` serves an agent of AgentCore: Strands, its model wrapped, its entrypoint decorated.
`agent.py toolkit PORT` serves one of agentcore-rl-toolkit, which answers at once and plays in the background.
`agent.py feedback` and `agent.py boto3` play the invocation on stdin, and print as JSON what they received.
"""

import json
import os
import sys

from sagemaker.core.token_generator import generate_token
from sagemaker.train.rft import RolloutFeedbackClient, RolloutRequest, make_inference_headers, sagemaker_rft_handler

SHELF = {"Emma": "B3", "Dracula": "C1"}


def handler(port: int) -> None:
    """The endpoint comes from RFT_RUNTIME_ENDPOINT; the SDK finds it there too."""
    from bedrock_agentcore import BedrockAgentCoreApp
    from sagemaker.train.rft.adapters.strands import wrap_model
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    app = BedrockAgentCoreApp()

    def new_model():
        client_args = {"api_key": generate_token(), "base_url": f"{os.environ['RFT_RUNTIME_ENDPOINT']}/v1"}
        return wrap_model(OpenAIModel(client_args=client_args, model_id="default"))

    shared_model = new_model()

    @tool
    def find(title: str) -> str:
        """Where a book stands.

        Args:
            title: The book.
        """
        return SHELF[title]

    @app.entrypoint
    @sagemaker_rft_handler
    async def invoke_agent(payload):
        instance = payload["instance"]
        model = new_model() if instance.get("own_model") else shared_model
        agent = Agent(model=model, tools=[find], callback_handler=None)
        result = await agent.invoke_async(instance["prompt"])
        if instance.get("breaks"):
            raise ValueError("the shelf fell down")
        is_right = instance["truth"] in str(result)
        if instance.get("reports"):
            RolloutFeedbackClient(payload["metadata"]).report_complete(0.5)
        return {
            "reward": [0.25, float(is_right)] if instance.get("per_turn") else float(is_right),
            "metrics": {"num_messages": len(agent.messages), "answer": str(result)},
        }

    app.run(port=port, host="127.0.0.1")


def toolkit(port: int) -> None:
    """Its results go to S3; who trains elsewhere reports them, which is the one line more."""
    import requests
    from agentcore_rl_toolkit import AgentCoreRLApp
    from openai import OpenAI

    app = AgentCoreRLApp()

    @app.rollout_entrypoint
    def invoke_agent(payload, context):
        rollout = payload["_rollout"]
        client = OpenAI(api_key=rollout.get("api_key") or "EMPTY", base_url=rollout["base_url"])
        messages = [{"role": "user", "content": payload["prompt"]}]
        sampling = rollout.get("sampling_params", {})
        answer = client.chat.completions.create(model=rollout["model_id"], messages=messages, **sampling)
        reward = float(payload["truth"] in answer.choices[0].message.content)
        for path, body in {"reward": {"reward": reward}, "complete": {"status": "ready"}}.items():
            requests.post(f"{rollout['base_url']}/episode/{path}", json=body, timeout=10).raise_for_status()
        return {"rewards": [reward]}

    app.run(port=port, host="127.0.0.1")


def feedback(payload: dict) -> dict:
    """The SDK's "custom integration": its headers on a plain OpenAI client, its client for the report."""
    from openai import OpenAI, OpenAIError
    from requests import HTTPError

    request = RolloutRequest(**payload)
    metadata = request.metadata
    client = OpenAI(
        base_url=metadata.endpoint,
        api_key=generate_token(region=metadata.region),
        default_headers=make_inference_headers(metadata),
    )
    messages = [{"role": "user", "content": payload["prompt"]}]
    parameters = {"type": "object", "properties": {"title": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "find", "parameters": parameters}}]

    def turn():
        sampling = request.inference_params.model_dump(exclude_none=True)
        answer = client.chat.completions.create(model="default", messages=messages, tools=tools, **sampling)
        messages.append(answer.choices[0].message)
        return answer.choices[0].message

    (call,) = turn().tool_calls
    found = SHELF[json.loads(call.function.arguments)["title"]]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    answer = turn().content

    reporter = RolloutFeedbackClient(metadata)
    reporter.report_complete([0.25, 1.0])
    seen = {"answer": answer}
    for name, report in {
        "again": lambda: reporter.report_complete([0.25, 1.0]),
        "error": lambda: reporter.report_error("changed my mind"),
        "unknown": lambda: RolloutFeedbackClient({**payload["metadata"], "trajectory_id": "other"}).report_complete(
            1.0
        ),
        "turn": turn,
    }.items():
        try:
            report()
            seen[name] = None
        except (OpenAIError, HTTPError) as error:
            seen[name] = str(error)
    return seen


def boto3(payload: dict) -> dict:
    """The service's own client, which signs its requests and sends client tokens."""
    import boto3
    from botocore.exceptions import ClientError

    metadata = payload["metadata"]
    client = boto3.client("sagemakerjobruntime", endpoint_url=metadata["endpoint"], region_name=metadata["region"])
    rollout = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["trajectoryId"]}
    body = json.dumps({"model": "default", "messages": payload["messages"]})
    sampled = json.loads(client.sample(**rollout, Body=body)["Body"].read())
    streamed = client.sample_with_response_stream(**rollout, Body=body)["Body"].read().decode()
    for _ in range(2):
        client.complete_rollout(**rollout, Status="ready", ClientToken="once")
        client.update_reward(**rollout, Rewards=[0.5, 0.25], ClientToken="once")
    errors = {}
    for name, call in {
        "conflict": lambda: client.complete_rollout(**rollout),
        "late": lambda: client.sample(**rollout, Body=body),
        "unknown": lambda: client.update_reward(**{**rollout, "TrajectoryId": "unknown"}, Rewards=[1.0]),
        "invalid": lambda: client.update_reward(**rollout, Rewards=[]),
    }.items():
        try:
            call()
        except ClientError as error:
            errors[name] = [type(error).__name__, error.response["Error"]["Message"]]
    return {
        "sampled": sampled["choices"][0]["message"]["content"],
        "streamed": streamed.count("data: "),
        "errors": errors,
    }


if __name__ == "__main__":
    if sys.argv[1] in ("handler", "toolkit"):
        {"handler": handler, "toolkit": toolkit}[sys.argv[1]](int(sys.argv[2]))
    else:
        json.dump({"feedback": feedback, "boto3": boto3}[sys.argv[1]](json.load(sys.stdin)), sys.stdout)
