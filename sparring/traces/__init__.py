"""From logged conversations to a recipe: reading logs, and writing the files of a recipe from them."""

from sparring.traces.conversation import Conversation
from sparring.traces.description import describe
from sparring.traces.marks import Marking
from sparring.traces.reading import Traces, read_traces
from sparring.traces.writing import SCRATCH, Decisions, Written, write_recipe

__all__ = [
    "SCRATCH",
    "Conversation",
    "Decisions",
    "Marking",
    "Traces",
    "Written",
    "describe",
    "read_traces",
    "write_recipe",
]
