"""How many of a part can still be sold: the count of its bin less what is reserved."""

from sparring.environments import Environment, tool


class Stockroom(Environment):
    def reset(self, task):
        self.parts = {row["code"]: row for row in task.fields["parts"]}
        self.bins = {row["bin"]: row["count"] for row in task.fields["bins"]}

    @tool
    def part(self, code: int) -> dict[str, int] | str:
        """Bin of a part, and how many of it are reserved.

        Args:
            code: the four-digit code of the part
        """
        row = self.parts.get(str(code))
        return {"bin": row["bin"], "reserved": row["reserved"]} if row else "unknown code"

    @tool
    def count(self, bin: int) -> str:
        """How many pieces lie in a bin."""
        return str(self.bins.get(bin, "no such bin"))

    @tool
    def codes(self) -> list[str]:
        """Codes of all parts, as printed on their labels."""
        return sorted(self.parts)


def reward(trajectory):
    final = trajectory.messages[-1]
    if final["role"] == "assistant" and not final.get("tool_calls"):
        return float((final.get("content") or "").strip() == trajectory.task.fields["answer"])
    return 0.0


def scorer(trajectory):
    said = [
        (message.get("content") or "").split()
        for message in trajectory.messages[-1:]
        if message["role"] == "assistant" and not message.get("tool_calls")
    ]
    return 1.0 if said == [[trajectory.task.fields["answer"]]] else 0.0
