"""The contract of engines, with a real vLLM server."""

from tests.contracts.test_capabilities import *  # noqa: F403
from tests.contracts.test_engines import *  # noqa: F403
