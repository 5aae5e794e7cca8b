"""Hand a trained policy over: an adapter that plain peft loads, or merged weights that plain transformers loads."""

from __future__ import annotations

from pathlib import Path

from sparring.build import load_policy
from sparring.errors import DataError, UsageError
from sparring.evaluation.policies import checkpoint_of, named_checkpoint
from sparring.models.export import save_adapter, save_merged
from sparring.training import checkpoints


def export(run: str | Path, destination: str | Path, *, merge: bool = False) -> Path:
    """Write a checkpoint of a run, the newest unless `run` is RUN@STEP or RUN@best, into a new folder, with its tokenizer; return
    the folder.

    An adapter needs the base model beside it; `merge` writes a model that stands alone. Raises DataError when the
    destination exists or the run has no good checkpoint, UsageError when there is no adapter: all weights were trained, or
    none, since the run is a baseline.
    """
    target = Path(destination)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} exists and is not empty; export writes into a new folder, so name another one.")
    folder, step = named_checkpoint(run)
    config = folder.trained_config()
    if not merge and config.model.trained_weights == "full":
        raise UsageError(f"{run} trained every weight, so there is no adapter; export with merge (`--merge`).")
    policy = load_policy(config, folder.code)
    weights = checkpoints.load_weights(checkpoint_of(folder, step), policy)
    policy.restore(weights.tensors)
    if merge:
        save_merged(policy, target)
    else:
        save_adapter(policy, target, base_model=config.model.name)
    return target
