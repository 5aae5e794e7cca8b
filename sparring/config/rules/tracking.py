"""Rules of [tracking], [limits] and the copies of a run: addresses, secrets, prices and costs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparring.config.rules.conflict import ConfigRule, Conflict, find_given
from sparring.config.sections import Config
from sparring.errors import UsageError
from sparring.metering.prices import PRICES, has_price
from sparring.runtime.address import read_address

_PROMETHEUS_KEYS = ("prometheus_keys", "prometheus_tls_certificate", "prometheus_tls_key")


def keys_of_services_not_used(config: Config) -> Iterator[Conflict]:
    keys = {
        "mlflow": ("mlflow_uri", "mlflow_experiment_name"),
        "wandb": ("wandb_project", "wandb_entity", "wandb_mode"),
    }
    for service, names in keys.items():
        for key in find_given(config, "tracking", *names) if not getattr(config.tracking, service) else ():
            message = f"is given, but tracking.{service} is false; set it to true, or leave this out."
            yield Conflict(f"tracking.{key}", message, (f"tracking.{service}",))


def password_in_mlflow_uri(config: Config) -> Iterator[Conflict]:
    uri = config.tracking.mlflow_uri
    if uri is not None and re.search(r"://[^/@]*:[^/@]*@", uri):
        yield Conflict(
            "tracking.mlflow_uri",
            "contains a password; put it into the environment variables MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or into those that the database reads.",
        )


def invalid_prometheus_address(config: Config) -> Iterator[Conflict]:
    address = config.tracking.prometheus_address
    if address is not None and not re.fullmatch(r"[\w.\-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", address):
        message = f"is {address!r}; use the host and port to listen on, for example 127.0.0.1:9400."
        yield Conflict("tracking.prometheus_address", message)


def prometheus_keys_not_used(config: Config) -> Iterator[Conflict]:
    section = config.tracking
    if section.prometheus_address is None:
        for key in find_given(config, "tracking", *_PROMETHEUS_KEYS):
            message = "is given, but tracking.prometheus_address is not; leave it out."
            yield Conflict(f"tracking.{key}", message, ("tracking.prometheus_address",))
    if (section.prometheus_tls_certificate is None) != (section.prometheus_tls_key is None):
        is_key = section.prometheus_tls_key is None
        missing, given = _PROMETHEUS_KEYS[2 if is_key else 1], _PROMETHEUS_KEYS[1 if is_key else 2]
        yield Conflict(
            f"tracking.{missing}", f"is missing, but tracking.{given} is given; a certificate needs its key."
        )


def open_prometheus_address(config: Config) -> Iterator[Conflict]:
    section = config.tracking
    if section.prometheus_address is None or (section.prometheus_keys and section.prometheus_tls_certificate):
        return
    try:
        is_open = not read_address(section.prometheus_address).is_loopback
    except UsageError:
        return  # another rule reports it
    if is_open:
        message = (
            f"is {section.prometheus_address!r}, which other machines can reach; give prometheus_keys, a file that `sparring "
            "keys create NAME --scope read` writes, with prometheus_tls_certificate and prometheus_tls_key, or use 127.0.0.1."
        )
        needed = ("tracking.prometheus_keys", "tracking.prometheus_tls_certificate")
        yield Conflict("tracking.prometheus_address", message, needed)


def invalid_webhook_variable(config: Config) -> Iterator[Conflict]:
    variable = config.tracking.webhook_url_env
    if variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        message = (
            "is not a valid name of an environment variable; put the address into a variable and give the variable's name "
            "here."
        )
        yield Conflict("tracking.webhook_url_env", message)


def invalid_copy_address(config: Config) -> Iterator[Conflict]:
    address = config.run.copy_to
    if address is None:
        return
    if re.search(r"://[^/@]*:[^/@]*@", address):
        yield Conflict(
            "run.copy_to",
            "contains a password; put it into the environment variables or the file that the store's library reads.",
        )
    elif refused := sorted({one for one in address if one.isspace() or not one.isprintable()}):
        yield Conflict(
            "run.copy_to",
            f"is {address!r}, with characters that are not allowed: {', '.join(map(_describe, refused))}; use an address without "
            "spaces and control characters.",
        )
    elif re.match(r"memory:", address):
        yield Conflict(
            "run.copy_to",
            f"is {address!r}, which is in the memory of this process and lost with it; use s3://BUCKET/FOLDER, or "
            "file:///FOLDER for another disk.",
        )
    elif not re.fullmatch(r"[a-z][a-z0-9+.\-]*://\S+", address):
        yield Conflict(
            "run.copy_to",
            f"is {address!r}; use an address with a protocol, such as s3://BUCKET/FOLDER, or file:///FOLDER for another disk.",
        )


def _describe(character: str) -> str:
    return "space" if character == " " else repr(character) if character.isascii() else f"U+{ord(character):04X}"


def invalid_prices(config: Config) -> Iterator[Conflict]:
    for name in config.tracking.prices:
        if not has_price(name):
            message = f"is not a valid price; its name must be {', '.join(PRICES)} or MODEL:read."
            yield Conflict(f"tracking.prices.{name}", message)


def prices_of_a_tinker_service(config: Config) -> Iterator[Conflict]:
    if config.learner.type != "tinker":
        return
    for name, kind in (("prefill", "read"), ("sample", "sample"), ("train", "train")):
        if name in config.tracking.prices:
            yield Conflict(
                f"tracking.prices.{name}",
                "is the price of a model on this machine, but learner.type is 'tinker', whose service counts as an endpoint; set "
                f'tracking.prices."{config.learner.model}:{kind}".',
                ("learner.type",),
            )


def cost_of_a_tinker_service_without_prices(config: Config) -> Iterator[Conflict]:
    if config.learner.type != "tinker" or config.limits.max_cost is None or "hour" in config.tracking.prices:
        return
    trained = [name.removesuffix(":train") for name in config.tracking.prices if name.endswith(":train")]
    model = config.learner.model
    if not any(name == model or name.startswith(f"{model}@") for name in trained):
        yield Conflict(
            "limits.max_cost",
            "is given, but tracking.prices has no price for training with learner.model, so training would cost 0; set "
            f'tracking.prices."{model}:train", to 0 if it is free.',
            ("tracking.prices", "learner.model"),
        )


def cost_without_prices(config: Config) -> Iterator[Conflict]:
    if config.limits.max_cost is not None and not any(config.tracking.prices.values()):
        yield Conflict(
            "limits.max_cost",
            "is given, but tracking.prices is not, so every cost would be 0; set, for example, tracking.prices.hour.",
            ("tracking.prices",),
        )


RULES: tuple[ConfigRule, ...] = (
    keys_of_services_not_used,
    password_in_mlflow_uri,
    invalid_prometheus_address,
    open_prometheus_address,
    prometheus_keys_not_used,
    invalid_webhook_variable,
    invalid_copy_address,
    invalid_prices,
    prices_of_a_tinker_service,
    cost_without_prices,
    cost_of_a_tinker_service_without_prices,
)
