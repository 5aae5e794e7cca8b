"""A server of OpenEnv's protocol, which counts to a target; it is started with the recipe and ends with its process."""

import json
import random
import socket
import threading
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.sync.server import serve

from sparring.environments.adapters import episode_return
from sparring.environments.adapters.openenv_server import OpenEnvServer
from sparring.types import Task

ACTION = {
    "description": "Add to the count, or take away from it.",
    "type": "object",
    "properties": {
        "operation": {"enum": ["add", "take"]},
        "amount": {"type": "integer", "minimum": 1, "maximum": 5},
        "metadata": {"type": "object"},
    },
    "required": ["operation", "amount"],
    "additionalProperties": False,
}


def session(connection) -> None:
    """One episode's state: a count, and the target that follows from the seed."""
    count = target = 0
    for line in connection:
        message = json.loads(line)
        data = message.get("data", {})
        if message["type"] == "reset":
            count, target = 0, random.Random(data["seed"]).randint(3, 9)
        elif message["type"] == "step":
            count += data["amount"] * (1 if data["operation"] == "add" else -1)
        is_over = count == target
        seen = {"count": count, "target": target}
        answer = {"observation": seen, "reward": float(is_over), "done": is_over}
        connection.send(json.dumps({"type": "observation", "data": answer}))


def schema(connection, request):
    if request.path != "/schema":
        return None
    body = json.dumps({"action": ACTION}).encode()
    headers = Headers([("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return Response(HTTPStatus.OK, "OK", headers, body)


def start() -> str:
    free = socket.create_server(("127.0.0.1", 0))
    server = serve(session, sock=free, process_request=schema)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{free.getsockname()[1]}"


URL = start()


class Counter(OpenEnvServer):
    def __init__(self) -> None:
        super().__init__(URL)


def reward(trajectory) -> float:
    return episode_return(trajectory)


def scorer(trajectory) -> float:
    return float(any(one.get("done") for one in trajectory.transitions))


def tasks(first: int, num: int) -> list[Task]:
    prompt = "Reach the target with the tool step."
    return [
        Task(id=f"seed-{seed}", messages=({"role": "user", "content": prompt},), seed=seed)
        for seed in range(first, first + num)
    ]


def train_tasks() -> list[Task]:
    return tasks(0, 32)


def validation_tasks() -> list[Task]:
    return tasks(100, 8)


def held_out_tasks() -> list[Task]:
    return tasks(200, 8)
