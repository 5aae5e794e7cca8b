"""Follow a failed request through the logs of two services."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You look into failures. Find the latest line with ERROR in the log of the service that is named, and take its request. Then find that
request in the log of the service that it was sent to. Answer with the status that it has there alone, for example: 503"""

SERVICES = ("cart", "login", "stock", "mail", "search", "billing", "photos")
NUM_LINES = 400


class Logs(Environment):
    def reset(self, task):
        self.logs = task.fields["logs"]

    @tool
    def services(self) -> list[str]:
        """All services."""
        return sorted(self.logs)

    @tool
    def latest(self, service: str) -> str:
        """The latest lines of the log of a service, the newest one last."""
        if service not in self.logs:
            return "no such service"
        return "\n".join(self.logs[service][-NUM_LINES:])


def _line(rng, level, request, text):
    return f"{rng.randint(8, 18):02d}:{rng.randint(0, 59):02d} {level} {request} {text}"


def _log(rng, num_lines, marked):
    """Lines of a log, with one that is marked among the last ten."""
    lines = [
        _line(rng, "INFO", f"r{rng.randint(1000, 4999)}", f"status {rng.choice((200, 201, 204))}")
        for _ in range(num_lines)
    ]
    lines.sort(key=lambda line: line[:5])
    place = num_lines - rng.randint(1, 10)
    lines[place] = f"{lines[place][:5]} {marked}"
    return lines


def _task(split, index, rng):
    first, second, other = rng.sample(SERVICES, 3)
    request, status = f"r{rng.randint(5000, 9999)}", str(rng.choice((404, 409, 429, 500, 502, 503, 504)))
    size = rng.choice((14, 20, 350, 600))
    logs = {
        first: _log(rng, size, f"ERROR {request} sent to {second}"),
        second: _log(rng, size, f"WARN {request} status {status}"),
        other: _log(rng, 12, f"ERROR r{rng.randint(100, 999)} status 500"),
    }
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Why did the latest failed request of {first} fail?"},
        ),
        fields={"logs": logs, "answer": status},
    )


def train_tasks():
    rng = random.Random(99)
    return [_task("train", index, rng) for index in range(32)]


def held_out_tasks():
    rng = random.Random(100)
    return [_task("held-out", index, rng) for index in range(16)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return float((last.get("content") or "").strip() == trajectory.task.fields["answer"])


def scorer(trajectory):
    final = trajectory.messages[-1]
    is_answer = final["role"] == "assistant" and not final.get("tool_calls")
    return 1.0 if is_answer and (final.get("content") or "").split() == [trajectory.task.fields["answer"]] else 0.0
