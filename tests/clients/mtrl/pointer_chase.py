"""Pointer chase as an agent of SageMaker MTRL on AgentCore: `pointer_chase.py PORT`. Nothing of Sparring's is in it.

The endpoint comes from RFT_RUNTIME_ENDPOINT; the SDK finds it there too.
"""

import json
import os
import sys

from bedrock_agentcore import BedrockAgentCoreApp
from openai import AsyncOpenAI
from sagemaker.core.token_generator import generate_token
from sagemaker.train.rft import make_inference_headers, sagemaker_rft_handler

MAX_TURNS = 5

app = BedrockAgentCoreApp()
client = AsyncOpenAI(base_url=f"{os.environ['RFT_RUNTIME_ENDPOINT']}/v1", api_key=generate_token())


@app.entrypoint
@sagemaker_rft_handler
async def invoke_agent(payload):
    instance, sampling = payload["instance"], payload["inferenceParams"]
    messages = [{"role": "user", "content": instance["prompt"]}]
    for _ in range(MAX_TURNS):
        answer = await client.chat.completions.create(
            model="default",
            messages=messages,
            temperature=sampling["temperature"],
            top_p=sampling["topP"],
            max_tokens=sampling["maxTokens"],
            extra_headers=make_inference_headers(payload["metadata"]),
        )
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            found = instance["links"].get(json.loads(call.function.arguments).get("key"), "none")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return {"reward": float(messages[-1].get("content") == f"ans {instance['answer']}")}


app.run(port=int(sys.argv[1]), host="127.0.0.1")
