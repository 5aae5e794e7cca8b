"""What a recipe is wired to."""

import asyncio
from pathlib import Path

from sparring.build import build, build_scheduler
from sparring.config import load_config
from sparring.ledger import Ledger

RECIPE = Path(__file__).parents[1] / "recipes" / "pointer_chase" / "recipe.toml"


def test_the_bound_on_staleness_counts_from_the_step_that_a_run_is_resumed_at() -> None:
    config = load_config(RECIPE, ["schedule.max_epochs=1", "batch.global_batch_size=1", "batch.group_size=2"])

    async def main() -> tuple[int, int]:
        with Ledger() as ledger:
            parts = build(config, RECIPE.parent, ledger)
            # The engine still has version 0, which a synchronous run at step 1 must not learn from; one group is left.
            scheduler = build_scheduler(parts, start_position=len(parts.tasks.train) - 1, version=1)
            async with scheduler:
                batch = await scheduler.next_batch()
            await parts.engine.close()
            return len(batch), scheduler.num_stale

    assert asyncio.run(main()) == (0, 1)
