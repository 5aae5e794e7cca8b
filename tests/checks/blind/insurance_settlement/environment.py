"""Water damage at home: what the insurer pays, and in which way. Cases stand in cases.jsonl."""

import json
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
Settle a case of water damage.
1. policy: cover (basic or full), deductible, and how many years without a case.
2. estimate: cost of the repair and its cause (pipe, rain or flood).
3. Flood is only covered by full. What is not covered is settled as "rejected" with amount 0.
4. The amount is cost minus deductible, but at least 0.
5. Amounts up to 2000 after 3 years or more without a case are settled as "instant", all others as "reviewed".
Example of the last message, for a case of which you know nothing:
<final_output>{"payout_class":"reviewed","amount":150}</final_output>"""


class Settlements(Environment):
    """Tools over the papers of one case."""

    def reset(self, task: Task) -> Sequence[Message]:
        self.case = task.fields
        return [{"role": "system", "content": PROCEDURE}, *task.messages]

    @tool
    def policy(self, number: str) -> dict[str, str | int]:
        """An insurance policy."""
        if number != self.case["number"]:
            raise LookupError(f"policy {number} is not of this customer")
        return dict(self.case["policy"])

    @tool
    def estimate(self, number: str) -> dict[str, str | int]:
        """The builder's estimate for the customer with this policy."""
        if number != self.case["number"]:
            raise LookupError(f"no estimate for {number}")
        return dict(self.case["estimate"])

    def demonstrate(self, task: Task) -> Sequence[Message]:
        number = task.fields["number"]
        return [
            tool_call("policy", number=number),
            tool_call("estimate", number=number),
            answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>"),
        ]


reward, scorer = json_fields(), json_exact()
