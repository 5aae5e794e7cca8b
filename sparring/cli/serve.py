"""`sparring serve`, `engine`, `learner` and `record`: commands that answer requests until Ctrl-C."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sparring.cli.access import AllowHost, AuditFile, Host, KeysFile, NoKey, PlainHTTP, TLSCertificate, TLSKey
from sparring.cli.command import Json, Overrides, app, note, print_json, report_failures, say
from sparring.config import Config, endpoint_problems, has_repeated, key_from, load_config
from sparring.errors import UsageError
from sparring.serving.access import KEY_VARIABLE, Access, choose_access, find_part_key, read_certificate


class _Precision(StrEnum):
    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


Canary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RUN@STEP=SHARE", help="The share of the conversations that another version answers. May be repeated."
    ),
]
NumServers = Annotated[
    int | None, typer.Option(min=1, max=64, help="The number of vLLM servers to start on this machine; by default 1.")
]
Addresses = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="A running vLLM server, instead of starting one. May be repeated."),
]
KeyVariable = Annotated[
    str | None, typer.Option(metavar="VAR", help="Environment variable that contains the key of these servers.")
]
AdaptersFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder for adapters that the vLLM servers can read; by default temporary."),
]


MostTokens = Annotated[
    int | None, typer.Option(min=1, help="Most tokens of an answer; by default the run's sampling_max_tokens.")
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0, max=2, help="For requests that give none; by default that of the run's evaluations."),
]
Tinker = Annotated[
    bool, typer.Option("--tinker", help="Answer Tinker's clients instead, which train adapters of the model.")
]
CheckpointsFolder = Annotated[
    Path | None,
    typer.Option(
        "--checkpoints", metavar="FOLDER", help="With --tinker: folder for checkpoints; by default tinker-runs."
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With --tinker: the name by which clients call the model; by default MODEL."),
]
SequenceLength = Annotated[
    int | None, typer.Option(min=2, help="With --tinker: most tokens of a prompt and its answer; by default 4096.")
]


Precision = Annotated[
    _Precision | None, typer.Option(help="With --tinker: format of the model's numbers; by default for the device.")
]


class _Engine(StrEnum):
    TORCH = "torch"
    VLLM = "vllm"


@app.command()
@report_failures
def serve(
    model: Annotated[
        str, typer.Argument(help="A run (RUN@STEP, RUN@best), the name of a model, or a folder with model files.")
    ],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    no_key: NoKey = False,
    keys: KeysFile = None,
    audit_log: AuditFile = None,
    tls_certificate: TLSCertificate = None,
    tls_key: TLSKey = None,
    plain_http: PlainHTTP = False,
    allow_host: AllowHost = None,
    canary: Canary = None,
    max_tokens: MostTokens = None,
    temperature: Temperature = None,
    engine: Annotated[
        _Engine, typer.Option(help="What samples: torch, the model in this process, or vllm, vLLM servers.")
    ] = _Engine.TORCH,
    num_servers: NumServers = None,
    vllm_url: Addresses = None,
    vllm_key_env: KeyVariable = None,
    adapters_dir: AdaptersFolder = None,
    tinker: Tinker = False,
    checkpoints: CheckpointsFolder = None,
    model_name: ModelName = None,
    max_sequence_length: SequenceLength = None,
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """Answer OpenAI chat requests with a base or tuned model, until Ctrl-C. With --tinker, train it for Tinker's clients.

    Clients send a key of --keys, or else the key in SPARRING_API_KEY, or else one that is made and printed at the start.
    With a key of the scope admin, or that in SPARRING_ADMIN_KEY, an operator can change the versions that answer.
    """
    of_tinker: dict[str, Any] = {"--checkpoints": checkpoints, "--model-name": model_name, "--precision": precision}
    of_tinker |= {"--max-sequence-length": max_sequence_length}
    is_vllm = engine is _Engine.VLLM
    others = {"--canary": canary, "--max-tokens": max_tokens, "--temperature": temperature, "--engine": is_vllm}
    _check_tinker_options(of_tinker, others, is_tinker=tinker)
    options = {"--num-servers": num_servers, "--vllm-url": vllm_url, "--vllm-key-env": vllm_key_env}
    _check_vllm_options(engine, options | {"--adapters-dir": adapters_dir})
    access = choose_access(
        host,
        port,
        has_key=not no_key,
        tls=read_certificate(tls_certificate, tls_key),
        is_plain_allowed=plain_http,
        allowed_hosts=allow_host or (),
        keys=keys,
        audit_log=audit_log,
    )
    if tinker:
        _serve_tinker(model, of_tinker, access=access, as_json=as_json)
        return
    shares, served = _read_shares(canary or []), _find_served(model)
    from sparring.serving import serve as serving

    servers = serving.VLLMServers(
        urls=tuple(vllm_url or ()), num_servers=num_servers or 1, key_env=vllm_key_env, adapters_dir=adapters_dir
    )
    try:
        serving.serve(
            served,
            access=access,
            canary=shares,
            vllm=servers if is_vllm else None,
            max_tokens=max_tokens,
            temperature=temperature,
            on_ready=partial(_report_ready, access, as_json),
        )
    except KeyboardInterrupt:
        note("stopped")


def _serve_tinker(model: str, given: Mapping[str, Any], *, access: Access, as_json: bool) -> None:
    """Serve Tinker's clients until Ctrl-C. `given` are the options of the command for them."""
    from sparring.serving.tinker.server import TinkerOptions, serve_tinker

    options = {name.removeprefix("--").replace("-", "_"): value for name, value in given.items() if value is not None}

    def ready(base_url: str, name: str) -> None:
        key = access.api_key or "any"
        if as_json:
            print_json({"base_url": base_url, "model": name, **_new_key(access)})
            return
        say(f"{name} is trained at {base_url}; Ctrl-C stops it")
        say(_describe_key(access))
        say("clients of the tinker package read the address and the key, with tml- before it, from the environment:")
        shown = key if access.is_new_key or access.api_key is None else "KEY"
        say(f"  export TINKER_BASE_URL={base_url} TINKER_API_KEY=tml-{shown}")

    try:
        serve_tinker(model, TinkerOptions(**options), access=access, on_ready=ready)
    except KeyboardInterrupt:
        note("stopped")


def _check_tinker_options(own: Mapping[str, Any], others: Mapping[str, Any], *, is_tinker: bool) -> None:
    """Raise UsageError if options of one kind of server are given to the other."""
    given = [name for name, value in (others if is_tinker else own).items() if value not in (None, False)]
    if given and is_tinker:
        raise UsageError(f"{', '.join(given)} is for OpenAI clients; remove it, or remove --tinker.")
    if given:
        raise UsageError(f"{', '.join(given)} is for Tinker's clients; add --tinker, or remove it.")


def _report_ready(access: Access, as_json: bool, base_url: str, served_name: str) -> None:
    if as_json:
        print_json({"base_url": base_url, "model": served_name, **_new_key(access)})
    else:
        say(f"{served_name} answers at {base_url}; Ctrl-C stops it")
        say(_describe_key(access))


def _new_key(access: Access) -> dict[str, str | None]:
    return {"api_key": access.api_key} if access.is_new_key else {}


def _describe_key(access: Access) -> str:
    if access.keys is not None:
        return f"clients send a key of {access.keys.path}"
    if access.api_key is None:
        return "clients need no key, so every program on this machine can use it"
    if access.is_new_key:
        return f"clients send the API key {access.api_key} (set {KEY_VARIABLE} to choose another one)"
    return f"clients send the API key in {KEY_VARIABLE}"


def _check_vllm_options(engine: _Engine, options: Mapping[str, Any]) -> None:
    """Raise UsageError if options of vLLM servers do not apply, or if an address or the key's variable is invalid."""
    given = [name for name, value in options.items() if value]
    if given and engine is not _Engine.VLLM:
        raise UsageError(f"{', '.join(given)} is only for vLLM servers; add --engine vllm, or remove it.")
    if "--num-servers" in given and "--vllm-url" in given:
        raise UsageError("--num-servers starts servers, but --vllm-url names running ones; give one of them.")
    urls = options["--vllm-url"] or ()
    problems = endpoint_problems(base_url=None, api_key_env=options["--vllm-key-env"])
    problems += [problem for url in urls for problem in endpoint_problems(base_url=url, api_key_env=None)]
    if problems:
        names = {"base_url": "--vllm-url", "api_key_env": "--vllm-key-env"}
        raise UsageError(" ".join(f"{names[key]} {message}" for key, message in problems))
    if has_repeated(urls):
        raise UsageError("--vllm-url names a server twice; name each one once.")


def _read_shares(canary: Sequence[str]) -> dict[str, float]:
    """Return the shares of the canaries by version. Raises UsageError."""
    shares: dict[str, float] = {}
    for text in canary:
        version, _, share = text.rpartition("=")
        try:
            shares[version] = float(share)
        except ValueError:
            shares[version] = math.nan
        if not version or not 0 <= shares[version] <= 1:
            raise UsageError(f"--canary {text!r} cannot be read; write RUN@STEP=SHARE with a share from 0 to 1.")
    return shares


def _find_served(model: str) -> str:
    """Return the run and step to serve if `model` names a checkpoint, otherwise `model` itself."""
    from sparring.evaluation.policies import find_checkpoint, named_checkpoint

    # A missing path in the folder of runs is never the name of a model on a hub, so no hub is contacted.
    is_run = Path(model).parts[:1] == ("runs",) and not Path(model).exists()
    named = named_checkpoint(model) if is_run else find_checkpoint(model)
    if named is None:
        return model
    folder, step = named
    folder.trained_config()
    return str(folder.path) if step is None else f"{folder.path}@{step}"


@app.command()
@report_failures
def engine(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe of the run, with its model.")],
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8100,
    as_json: Json = False,
) -> None:
    """Serve the engine of a recipe's model for a run with engine.type=remote, until Ctrl-C. The run must send the key in
    SPARRING_API_KEY, if it is set."""
    _serve_part("engine", recipe, overrides, serve=_serve_engine, host=host, port=port, as_json=as_json)


@app.command()
@report_failures
def learner(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe of the run, with its model.")],
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8200,
    shard_weights: Annotated[
        bool,
        typer.Option(
            "--shard-weights", help="Divide the weights among the ranks of a group (FSDP2), instead of a copy in each."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve the learner of a recipe's model for a run with learner.type=remote or group, until Ctrl-C. The run must send
    the key in SPARRING_API_KEY, if it is set."""
    serve = partial(_serve_learner, shards_weights=shard_weights)
    _serve_part("learner", recipe, overrides, serve=serve, host=host, port=port, as_json=as_json)


def _refuse_elsewhere(part: Literal["engine", "learner"], config: Config) -> None:
    kind, here = (config.engine.type, "torch") if part == "engine" else (config.learner.type, "here")
    if kind != here:
        raise UsageError(
            f"{part}.type = {kind!r} has no model here to serve; use a recipe with {part}.type = {here!r}."
        )


def _serve_part(
    part: Literal["engine", "learner"],
    recipe: Path,
    overrides: list[str] | None,
    *,
    serve: Callable[..., None],
    host: str,
    port: int,
    as_json: bool,
) -> None:
    """Serve a recipe's engine or learner until Ctrl-C. Raises UsageError if the recipe's own part runs elsewhere."""
    api_key = find_part_key(host)
    path = recipe / "recipe.toml" if recipe.is_dir() else recipe
    config = load_config(path, overrides or [])
    _refuse_elsewhere(part, config)

    def ready(base_url: str) -> None:
        if as_json:
            print_json({"base_url": base_url})
        else:
            say(f"the {part} of {path} answers at {base_url}; Ctrl-C stops it")

    try:
        serve(path, config, host=host, port=port, api_key=api_key, on_ready=ready)
    except KeyboardInterrupt:
        note("stopped")


# These import torch, so the recipe is read first, and its errors are reported at once.
def _serve_engine(recipe: Path, config: Config, **options: Any) -> None:
    from sparring.serving.parts import serve_engine

    serve_engine(recipe, config, **options)


def _serve_learner(recipe: Path, config: Config, **options: Any) -> None:
    from sparring.serving.parts import serve_learner

    serve_learner(recipe, config, **options)


@app.command()
@report_failures
def record(
    upstream: Annotated[str, typer.Option(metavar="URL", help="The endpoint to record, with its /v1.")],
    model: Annotated[str, typer.Option(help="Name of the model at the endpoint; clients may send any name.")],
    key_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Environment variable that contains the endpoint's key.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; by default runs/recorded-001 and so on.")] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    no_key: NoKey = False,
    keys: KeysFile = None,
    audit_log: AuditFile = None,
    tls_certificate: TLSCertificate = None,
    tls_key: TLSKey = None,
    plain_http: PlainHTTP = False,
    allow_host: AllowHost = None,
    as_json: Json = False,
) -> None:
    """Forward requests to an OpenAI-compatible endpoint, and record the requests and answers as trajectories, until
    Ctrl-C.

    Clients send a key of --keys, or else the key in SPARRING_API_KEY, or else one that is made and printed at the start.
    """
    access = choose_access(
        host,
        port,
        has_key=not no_key,
        tls=read_certificate(tls_certificate, tls_key),
        is_plain_allowed=plain_http,
        allowed_hosts=allow_host or (),
        keys=keys,
        audit_log=audit_log,
    )
    options = {"base_url": "--upstream", "api_key_env": "--key-env"}
    problems = endpoint_problems(base_url=upstream, api_key_env=key_env)
    if problems:
        raise UsageError(" ".join(f"{options[key]} {message}" for key, message in problems))
    from sparring.serving.record import record as record_endpoint
    from sparring.serving.record import recording_path

    folder = out or recording_path(Path("runs"))
    counts = (0, 0)

    def ready(base_url: str) -> None:
        if as_json:
            print_json({"base_url": base_url, "model": model, "path": str(folder), **_new_key(access)})
            return
        say(f"{model} at {upstream} is recorded into {folder}; Ctrl-C stops it")
        say(_describe_key(access))
        say(f"point the client to {base_url}: each conversation is an episode")
        say(f"or to {base_url.removesuffix('/v1')}/s/NAME/v1: all messages there are one episode")

    def counted(turns: int, episodes: int) -> None:
        nonlocal counts
        counts = (turns, episodes)
        # On a terminal, one line is overwritten. Elsewhere, a line per turn would only fill a log.
        if sys.stderr.isatty():
            typer.echo(f"\r{turns} turns in {episodes} episodes", err=True, nl=False)

    try:
        record_endpoint(
            upstream,
            model,
            folder,
            access=access,
            upstream_key=key_from(key_env),
            on_ready=ready,
            on_turn=counted,
        )
    except KeyboardInterrupt:
        note("\nstopped" if sys.stderr.isatty() else "stopped")
        if not as_json:
            say(f"{counts[0]} turns in {counts[1]} episodes: {folder / 'trajectories'}")
