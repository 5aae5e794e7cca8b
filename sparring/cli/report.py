"""`sparring report` and `sparring watch`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.access import AllowHost, AuditFile, Host, KeysFile, PlainHTTP, TLSCertificate, TLSKey
from sparring.cli.command import Json, Prices, Run, app, note, print_json, report_failures, resolve_run, say
from sparring.errors import UsageError
from sparring.serving.access import choose_page_access, read_certificate
from sparring.tracking import Console


@app.command()
@report_failures
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or its name in `runs/`; or a family of runs.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the page; by default RUN/report.html.")
    ] = None,
    price: Prices = None,
    as_json: Json = False,
) -> None:
    """Write one page about a run that opens from disk: whether to trust the run, findings, curves, tasks, cost, and
    every episode."""
    from sparring.metering.prices import read_prices
    from sparring.report import write_report
    from sparring.run_folders.family_folder import FamilyFolder

    prices = read_prices(price or ())
    if FamilyFolder.is_family(resolve_run(run)):
        _report_family(run, out, prices, as_json)
        return
    with Console(quiet=as_json).phase("reading the run"):
        written = write_report(resolve_run(run), out, prices=prices)
    if as_json:
        print_json(written.as_json())
        return
    say(written.verdict.headline)
    left = f", {written.num_left_out} left out to limit the size" if written.num_left_out else ""
    say(f"wrote {written.path}: {written.num_episodes} episodes{left}, {written.num_bytes / 2**20:.1f} MiB")


def _report_family(family: Path, out: Path | None, prices: Mapping[str, float], as_json: bool) -> None:
    from sparring.report.family import write_family_report

    if prices:
        raise UsageError(
            f"{family} is a family of runs, and the page of a family shows no cost; give --price with one of its runs."
        )
    with Console(quiet=as_json).phase("reading the runs"):
        written = write_family_report(resolve_run(family), out)
    if as_json:
        print_json(written.as_json())
        return
    say(written.family.claim.headline)
    say(f"wrote {written.path}: {len(written.family.seeds)} seeds, {written.num_bytes / 2**10:.0f} KiB")


@app.command()
@report_failures
def watch(
    run: Run,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 uses a free one.")] = 8080,
    keys: KeysFile = None,
    audit_log: AuditFile = None,
    tls_certificate: TLSCertificate = None,
    tls_key: TLSKey = None,
    plain_http: PlainHTTP = False,
    allow_host: AllowHost = None,
    price: Prices = None,
    as_json: Json = False,
) -> None:
    """Serve the report of a run, and update it while the run continues, until Ctrl-C. By default, only this machine can
    open it. With --keys, readers need a key of the scope read, which a browser asks for as a password."""
    access = choose_page_access(
        host,
        port,
        tls=read_certificate(tls_certificate, tls_key),
        is_plain_allowed=plain_http,
        allowed_hosts=allow_host or (),
        keys=keys,
        audit_log=audit_log,
    )
    from sparring.metering.prices import read_prices
    from sparring.report.live import watch as watch_run

    def ready(address: str) -> None:
        if as_json:
            print_json({"address": address})
        else:
            say(f"the report of {resolve_run(run)} is at {address} and updates as the run writes; Ctrl-C stops it")

    try:
        watch_run(
            resolve_run(run),
            listen=access.listen,
            gate=access.open_gate("watch"),
            prices=read_prices(price or ()),
            on_ready=ready,
            on_problem=lambda problem: note(f"warning: {problem}"),
        )
    except KeyboardInterrupt:
        note("stopped")
