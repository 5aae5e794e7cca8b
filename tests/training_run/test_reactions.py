"""The reactions that a recipe may name are those that there are."""

from typing import get_args

from sparring.config.sections import DetectorsSection
from sparring.training_run.reactions import REACTIONS


def test_each_reaction_of_the_configuration_is_one_function_of_the_table() -> None:
    assert set(REACTIONS) == set(get_args(DetectorsSection.model_fields["reaction"].annotation))
    assert all(name == function.__name__ for name, function in REACTIONS.items())
