"""School transport: does a pupil get a bus pass, a taxi, or neither? Applications stand in .jsonl files next to this."""

import json
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
Decide an application for school transport.
1. pupil with the pupil's number: school year, and whether walking is limited by a doctor's note.
2. distance with the village and the school: kilometres.
- With a doctor's note and 2 km or more: taxi.
- Else, years 1 to 4 from 3 km on, and later years from 5 km on: bus.
- Else: none.
Answer: <final_output>{"pass":"taxi, bus or none","km":0}</final_output>"""


class Transport(Environment):
    """The register of pupils and the map, as far as the application needs them."""

    def reset(self, task: Task) -> Sequence[Message]:
        self.pupils, self.roads = task.fields["pupils"], task.fields["roads"]
        return [{"role": "system", "content": PROCEDURE}, *task.messages]

    @tool
    def pupil(self, number: int) -> str:
        """School year and doctor's note of a pupil."""
        return self.pupils.get(str(number), f"pupil {number} is not registered")

    @tool
    def distance(self, village: str, school: str) -> str:
        """Kilometres from a village to a school."""
        return self.roads.get(f"{village}-{school}", f"no road from {village} to {school} is on the map")

    def demonstrate(self, task: Task) -> Sequence[Message]:
        fields = task.fields
        calls = [
            tool_call("pupil", number=fields["number"]),
            tool_call("distance", village=fields["village"], school=fields["school"]),
        ]
        return [*calls, answer(f"<final_output>{json.dumps(fields['answer'])}</final_output>")]


reward = json_fields()
scorer = json_exact()
