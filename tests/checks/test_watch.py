"""The watch around calls of user code takes any argument for the code's own."""

from sparring.checks.watch import Watch


def test_arguments_of_a_tool_may_be_called_as_ours_are() -> None:
    def look(what: str, function: str, self_: str) -> str:
        return what + function + self_

    assert Watch().call("look", look, what="a", function="b", self_="c") == "abc"
