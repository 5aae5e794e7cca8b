"""Which code counts as the user's own."""

from pathlib import Path

import pytest

import sparring.checks.evidence.subject
import sparring.environments.base
import sparring.environments.suites.sop.customer_service
import sparring.environments.tools
from sparring import Environment
from sparring.checks.evidence.user_source import OwnCode


class Desk(Environment):
    """An environment of a user."""


MODULES = [one.__module__ for one in Desk.__mro__ if one is not object]


@pytest.mark.parametrize(
    ("module", "is_own"),
    [
        (sparring.environments.base, False),
        (sparring.environments.tools, False),
        (sparring.checks.evidence.subject, False),
        (sparring.environments.suites.sop.customer_service, True),
    ],
)
def test_sparrings_code_is_not_the_users_but_that_of_its_suites(module: object, is_own: bool, tmp_path: Path) -> None:
    assert OwnCode(tmp_path, MODULES).owns(str(module.__file__)) is is_own  # type: ignore[attr-defined]


def test_the_users_module_is_own_and_no_module_of_sparring(tmp_path: Path) -> None:
    names = {module.__name__ for module in OwnCode(tmp_path, MODULES).modules()}
    assert __name__ in names
    assert {name for name in names if name.startswith("sparring")} == set()
