"""`hopserve serve` and `stop`: run TorchServe with the models of the store, and the gateway."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType

import click
import psutil

from gateway.errors import GatewayError, UpstreamError
from gateway.place import Gateway
from gateway.process import find_controller, kill_gateway, start_gateway, stop_gateway
from gateway.readiness import is_ready_again
from gateway.upstream.process import (
    find_server,
    kill_server,
    log_bytes,
    start_server,
    stop_server,
    wait_until_ready,
)
from gateway.upstream.properties import ServerProperties
from gateway.upstream.store import StoredArchive, list_archives
from scripts.cli.options import DRAIN_TIMEOUT_S, say, with_drain_timeout, with_server

_POLL_S = 0.5
_RESTART_PAUSE_S = 5.0


@click.command("serve")
@click.option("--detach", is_flag=True, help="Return when the server is ready, and leave it running.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=1),
    default=330.0,
    show_default=True,
    help="How long the workers may take to become ready.",
)
@click.option(
    "--gateway/--no-gateway",
    "with_gateway",
    default=True,
    help="Whether the gateway is started too.  [default: yes]",
)
@with_server
def serve_command(detach: bool, timeout_s: float, with_gateway: bool, properties: ServerProperties) -> None:
    """Start TorchServe with every archive of the model store, and the example where there is none.

    Then start the gateway in front of it. Without --detach both run until they are interrupted, and then stop
    as `hopserve stop` does.
    """
    gateway = Gateway.of(properties)
    if not detach:
        _interrupt_on_signals()
    is_ready_again(gateway)
    server = find_server(properties)
    if server is None:
        server = _start(gateway, timeout_s)
    else:
        say(f"already running as process {server.pid}")
        wait_until_ready(server, properties, [], timeout_s, log_bytes(properties))
    if with_gateway:
        _start_gateway(gateway)
    if detach:
        click.echo(_how_to_ask(gateway, with_gateway=with_gateway))
    else:
        _run_until_interrupted(server, gateway, with_gateway=with_gateway)


@click.command("stop")
@with_drain_timeout
@click.option("--force", is_flag=True, help="Stop at once; requests in flight get no answer.")
@with_server
def stop_command(drain_timeout_s: float, force: bool, properties: ServerProperties) -> None:
    """Stop the gateway and TorchServe, once they have answered what they were asked so far."""
    gateway = Gateway.of(properties)
    server = find_server(properties)
    if force:
        kill_gateway(gateway)
        if server is not None:
            kill_server(server)
        click.echo("stopped")
        return
    had_gateway = _stop_gateway(gateway, drain_timeout_s)
    if server is not None:
        stop_server(server, properties, drain_timeout_s, say)
    click.echo("stopped" if had_gateway or server is not None else "not running")


def _start_gateway(gateway: Gateway) -> None:
    running = find_controller(gateway)
    if running is not None:
        say(f"the gateway is already running as process {running.pid}")
        return
    say("starting the gateway")
    start_gateway(gateway)


def _stop_gateway(gateway: Gateway, drain_timeout_s: float) -> bool:
    if find_controller(gateway) is not None:
        say("stopping the gateway")
    return stop_gateway(gateway, drain_timeout_s)


def _start(gateway: Gateway, timeout_s: float) -> psutil.Process:
    properties = gateway.properties
    archives = list_archives(properties.model_store)
    if not archives:
        from scripts.cli.example import build_example

        build_example(properties.file.parent, properties.model_store)
        archives = list_archives(properties.model_store)
    archives = [archive for archive in archives if not _is_retired(gateway, archive)]
    names = [archive.file_name for archive in archives]
    say("starting TorchServe with " + ", ".join(names))
    server = start_server(properties, names, properties.file.parent / "var" / "tmp")
    try:
        expected = [(archive.model, archive.version) for archive in archives]
        wait_until_ready(server, properties, expected, timeout_s)
    except (UpstreamError, KeyboardInterrupt):
        kill_server(server)
        raise
    return server


def _is_retired(gateway: Gateway, archive: StoredArchive) -> bool:
    """Whether a version was unregistered by a rollout, which is not to be undone by a start."""
    model = gateway.rollouts.read().models.get(archive.model)
    known = model.find(archive.version) if model is not None else None
    return known is not None and known.state == "retired"


def _interrupt_on_signals() -> None:
    """Also while models load: as the first process of a container we would not even notice SIGTERM."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Both: a shell that starts us in the background has SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def _run_until_interrupted(server: psutil.Process, gateway: Gateway, *, with_gateway: bool) -> None:
    properties = gateway.properties
    try:
        click.echo(_how_to_ask(gateway, with_gateway=with_gateway))
        say("press Ctrl-C to stop")
        while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_POLL_S)
            if with_gateway and find_controller(gateway) is None:
                _restart_gateway(gateway)
    except KeyboardInterrupt:
        _stop_gateway(gateway, DRAIN_TIMEOUT_S)
        stop_server(server, properties, DRAIN_TIMEOUT_S, say)
        click.echo("stopped")
        return
    raise UpstreamError(f"TorchServe stopped by itself; {properties.file.parent / 'logs'} says why")


def _restart_gateway(gateway: Gateway) -> None:
    say("the gateway's controller has ended, and is started again")
    try:
        start_gateway(gateway)
    except GatewayError as error:
        say(str(error))
        time.sleep(_RESTART_PAUSE_S)


def _how_to_ask(gateway: Gateway, *, with_gateway: bool) -> str:
    properties = gateway.properties
    models = [archive.model for archive in list_archives(properties.model_store) if archive.is_model]
    model = "graphsage" if "graphsage" in models else (models or ["MODEL"])[0]
    as_json = "-H 'Content-Type: application/json' -d '{\"node_id\": 42}'"
    if not with_gateway:
        command = Path(".venv/bin/hopserve")
        return f"""
Hopserve is ready. Ask it about a node:

  curl -s {properties.inference_url}/predictions/{model} \\
    -H "Authorization: Bearer $({command} token inference)" \\
    {as_json}
"""
    key = " -H 'X-Api-Key: KEY'" if gateway.settings.api_keys.required else ""
    return f"""
Hopserve is ready. Ask it about a node:

  curl -s {gateway.url}/v1/{model}/predict{key} \\
    {as_json}
"""
