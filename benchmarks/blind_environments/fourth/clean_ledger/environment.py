"""Balances from a ledger in SQLite. Who is not sure may say so, and a wrong balance costs something."""

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure


class Ledger(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        database = self.state.database
        database.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, account TEXT, cents INTEGER, reverses INTEGER)")
        database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", task.fields["entries"])

    @tool
    def entries(self, account: str) -> list[dict[str, int]]:
        """Entries of an account: number and cents, negative when they were paid out.

        Args:
            account: in capitals, for example TRAVEL
        """
        rows = self.state.database.execute(
            "SELECT id, cents FROM entries WHERE account = ? AND reverses IS NULL ORDER BY id", (account,)
        ).fetchall()
        if not rows:
            raise ToolFailure(f"the ledger has no account {account}")
        return [{"entry": number, "cents": cents} for number, cents in rows]

    @tool
    def reversed_entries(self) -> list[int]:
        """Numbers of the entries, of all accounts, that were reversed and do not count."""
        rows = self.state.database.execute("SELECT reverses FROM entries WHERE reverses IS NOT NULL ORDER BY id")
        return [number for (number,) in rows]

    @tool
    def accounts(self) -> list[str]:
        """Names of all accounts."""
        return [
            name for (name,) in self.state.database.execute("SELECT DISTINCT account FROM entries ORDER BY account")
        ]


def reward(trajectory):
    """1 for the right balance, 0 for unsure, -0.5 for anything else."""
    last = trajectory.messages[-1]
    is_answer = last["role"] == "assistant" and not last.get("tool_calls")
    said = (last.get("content") or "").strip() if is_answer else ""
    if said == trajectory.task.fields["answer"]:
        return 1.0
    return 0.0 if said == "unsure" else -0.5


def scorer(trajectory):
    message = trajectory.messages[-1]
    if message["role"] != "assistant" or message.get("tool_calls"):
        return 0.0
    words = (message.get("content") or "").split()
    return float(len(words) == 1 and words[0] == trajectory.task.fields["answer"])
