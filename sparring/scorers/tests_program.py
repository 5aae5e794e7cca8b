"""Runs in the grader's sandbox and executes tests against a candidate in another sandbox. Standard library only.

`import solution` gives a module whose functions run in the candidate's sandbox; only values come back. The program
writes the line {"tests": [names]}. Then it writes, for each test, {"begin": name}, any number of {"call": ...}, and
{"passed": bool, "text": ...}.
"""

import ast
import builtins
import json
import os
import sys
import types


class CandidateError(Exception):
    """Raised when the candidate fails in a way for which there is no built-in exception."""


class Channel:
    def __init__(self):
        self.source, self.sink = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        self.is_open = False

    def say(self, **message):
        self.sink.write(json.dumps(message) + "\n")
        self.sink.flush()

    def hear(self):
        line = self.source.readline()
        if not line:
            os._exit(1)
        return json.loads(line)

    def call(self, name, arguments, options):
        if not self.is_open:
            raise CandidateError("the candidate was called while the tests were being loaded; call it inside a test")
        self.say(call=name, arguments=repr((arguments, options)))
        reply = self.hear()
        if "value" in reply:
            return ast.literal_eval(reply["value"])
        known = getattr(builtins, str(reply.get("raised")), CandidateError)
        if not (isinstance(known, type) and issubclass(known, Exception)):
            known = CandidateError
        raise known(str(reply.get("text")))


def stand_in(channel):
    module = types.ModuleType("solution")

    def attribute(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def function(*arguments, **options):
            return channel.call(name, arguments, options)

        return function

    vars(module)["__getattr__"] = attribute
    return module


def main():
    channel = Channel()
    sys.modules["solution"] = stand_in(channel)
    space = {"__name__": "tests"}
    exec(compile(channel.hear(), "tests.py", "exec"), space)
    tests = {name: test for name, test in space.items() if name.startswith("test_") and callable(test)}
    channel.say(tests=list(tests))
    channel.is_open = True
    for name, test in tests.items():
        channel.say(begin=name)
        channel.hear()
        try:
            test()
            reply = {"passed": True, "text": ""}
        except BaseException as error:  # noqa: BLE001 (any exception is a failure of the test)
            reply = {"passed": False, "text": (f"{type(error).__name__}: {error}")[:500]}
        channel.say(**reply)
    channel.sink.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
