"""What is refused in the folder of a model, and what its errors mean. A folder with a model is data, and may be a stranger's."""

from __future__ import annotations

from pathlib import Path

from sparring.errors import ServiceError

_PICKLES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"})


def refuse_pickles(folder: Path) -> None:
    """Raise ServiceError if the weights in a folder are in pickle files only."""
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLES) if folder.is_dir() else []
    what = "adapter" if (folder / "adapter_config.json").is_file() else "model"
    if not pickles or any(folder.glob("adapter_model.safetensors" if what == "adapter" else "*.safetensors")):
        return
    raise ServiceError(
        f"the weights in {folder} are in a pickle file ({pickles[0]}), which can run any program when it is loaded, so Sparring "
        f"never reads one. If you trust the file, load the {what} with transformers and write it again with "
        "save_pretrained(FOLDER), which writes safetensors files. Then give that folder."
    )


def describe_load_error(error: Exception) -> str:
    """Return an error of transformers as text, with what to do."""
    first_line = (str(error).strip().splitlines() or ["no reason given"])[0]
    what = f"{type(error).__name__}: {first_line}"
    if "trust_remote_code" in str(error):
        return (
            f"{what} Its files ask for Python code of their own (auto_map), which Sparring never runs. Give a model whose type "
            "transformers knows (docs/models.md)."
        )
    return f"{what} Give a folder that contains config.json, safetensors and tokenizer files, or check the network."
