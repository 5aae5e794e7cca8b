"""`sparring export`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.command import Json, Run, app, print_json, report_failures, say
from sparring.errors import UsageError


class _Precision(StrEnum):
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"


@app.command()
@report_failures
def export(
    run: Run,
    destination: Annotated[Path, typer.Argument(help="A new folder.")],
    merge: Annotated[bool, typer.Option("--merge", help="Write a complete model instead of an adapter.")] = False,
    gguf: Annotated[
        _Precision | None,
        typer.Option(help="Write a complete model as a GGUF file in this precision, for llama.cpp and Ollama."),
    ] = None,
    license_id: Annotated[
        str | None,
        typer.Option("--license", metavar="ID", help="The license in the model card, such as apache-2.0."),
    ] = None,
    repository: Annotated[
        str | None,
        typer.Option("--push", metavar="OWNER/NAME", help="Upload the folder to the Hugging Face hub, as private."),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Publish what is pushed.")] = False,
    as_json: Json = False,
) -> None:
    """Write the newest policy of a run, or the policy of RUN@STEP or RUN@best, with a model card: an adapter for peft and vLLM,
    a model for transformers and vLLM (`--merge`), or a file for llama.cpp and Ollama (`--gguf`)."""
    from sparring.evaluation.policies import named_checkpoint
    from sparring.serving.hub import check_push, push

    # Before torch is imported, so that a mistake is reported at once.
    named_checkpoint(run)[0].trained_config()
    if public and repository is None:
        raise UsageError("--public is only for a push; add --push OWNER/NAME, or remove it.")
    if repository is not None:
        check_push(repository)
    from sparring.models.export_files import MANIFEST
    from sparring.serving.export import export as export_run

    precision = None if gguf is None else gguf.value
    written = export_run(run, destination, merge=merge, gguf=precision, license_id=license_id)
    manifest = json.loads((written / MANIFEST).read_text("utf-8"))
    shown = {key: manifest[key] for key in ("kind", "run", "step", "fingerprint")}
    if not as_json:
        say(f"wrote the {shown['kind']} from step {shown['step']}, policy {shown['fingerprint']}, to {written}")
    pushed = None if repository is None else push(written, repository, public=public)
    if as_json:
        print_json({"path": str(written), **shown, **({} if pushed is None else {"pushed": pushed})})
    elif pushed is not None:
        say(f"pushed it to {pushed}, {'public' if public else 'private'}")
