"""Find the shape of a recipe's model without loading its weights."""

from __future__ import annotations

from pathlib import Path

from sparring.config import Config
from sparring.errors import UsageError
from sparring.planning.published import PUBLISHED, short_name
from sparring.planning.shapes import ModelShape, shape_from_config
from sparring.runtime.json_values import parse_json


def find_shape(name: str) -> ModelShape | None:
    """Return the shape of `model.name`, from the config.json of a folder or from the table of published models.

    Return None if the sizes are unknown: for `module:function`, and for a hub id that is not in the table. Raises
    UsageError for a folder whose config cannot be read.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _shape_in(folder)
    return PUBLISHED.get(short_name(name))


def require_shape(config: Config) -> ModelShape:
    """Return the shape of the recipe's model. Raises UsageError if the shape is not known without loading weights."""
    shape = find_shape(config.model.name)
    if shape is None:
        raise UsageError(
            f"the sizes of model.name = {config.model.name!r} are not known without loading the model; specify a folder with a "
            f"config.json, or one of {', '.join(PUBLISHED)}."
        )
    return shape


def _shape_in(folder: Path) -> ModelShape | None:
    """Return the shape of the model in a folder. For an adapter, return the shape of its base model."""
    adapter = folder / "adapter_config.json"
    try:
        if adapter.is_file() and not (folder / "config.json").is_file():
            base = folder / "base_model"
            named = str(parse_json(adapter.read_text("utf-8"))["base_model_name_or_path"])
            return _shape_in(base) if base.is_dir() else find_shape(named)
        config = parse_json((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"the sizes of the model in {folder} cannot be read: {error}; the folder needs a valid config.json."
        ) from error
    return shape_from_config(str(folder), config)
