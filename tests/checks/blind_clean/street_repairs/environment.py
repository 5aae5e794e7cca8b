"""Holes in streets: how urgent is a report? Reports in reports.jsonl all come from one form of the city's page."""

import json
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
Classify a report about a hole in a street. Use street (by name) for the speed limit and the traffic, and weather (by month) for
whether frost is to come.
urgency is one of "today", "week", "month", "season":
- deeper than 8 cm, or deeper than 5 cm where the limit is 50 or more: "today";
- else deeper than 4 cm with heavy traffic: "week";
- else with frost to come: "month";
- else: "season".
Example, for a shallow hole before winter: <final_output>{"urgency":"month","limit":30}</final_output>
The field limit is the speed limit of the street."""

FROST = {"October": True, "November": True, "January": True, "March": False, "May": False, "July": False}


class Streets(Environment):
    """Street names and months occur in many reports; numbers of reports and depths differ."""

    def reset(self, task: Task) -> Sequence[Message]:
        self.streets = task.fields["streets"]
        return [{"role": "system", "content": PROCEDURE}, *task.messages]

    @tool
    def street(self, name: str) -> dict[str, int | str]:
        """Speed limit and traffic of a street."""
        if name not in self.streets:
            return {"error": f"no street is called {name}"}
        return {"limit": self.streets[name]["limit"], "traffic": self.streets[name]["traffic"]}

    @tool
    def weather(self, month: str) -> str:
        """Outlook of a month."""
        if month not in FROST:
            raise LookupError(f"no outlook for {month}")
        return "frost is to come" if FROST[month] else "no frost is to come"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        calls = [tool_call("street", name=task.fields["name"]), tool_call("weather", month=task.fields["month"])]
        return [*calls, answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>")]


reward, scorer = json_fields(), json_exact()
