"""The tools answer with the results that the log has for their calls. Nothing outside this folder is called."""

from pathlib import Path

from sparring.environments.fixtures import Fixtures
from sparring.environments.logged_tools import LoggedEnvironment

HERE = Path(__file__).parent


class LoggedTools(LoggedEnvironment):
    """Answers a call with the result in the task's own conversation, or else with that of any conversation.

    TODO: a call that is in no conversation gets an error that names the most similar logged call. If the live tool would
    answer such a call, define a method with the tool's name, or record more calls.
    """

    tools_file = HERE / "tools.json"
    shared = Fixtures.load(HERE / "fixtures" / "calls.jsonl")
    describe_tools = "schema"  # "prompt": the tools' schemas are not added to the prompt, which saves tokens
