"""`hopserve serve` and `stop`: run TorchServe with the models of the store."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType

import click
import psutil

from gateway.errors import UpstreamError
from gateway.upstream.process import (
    find_server,
    kill_server,
    log_bytes,
    start_server,
    stop_server,
    wait_until_ready,
)
from gateway.upstream.properties import ServerProperties
from gateway.upstream.store import list_archives
from scripts.cli.options import DRAIN_TIMEOUT_S, say, with_drain_timeout, with_server

_POLL_S = 0.5


@click.command("serve")
@click.option("--detach", is_flag=True, help="Return when the server is ready, and leave it running.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    help="How long the workers may take to become ready.",
)
@with_server
def serve_command(detach: bool, timeout_s: float, properties: ServerProperties) -> None:
    """Start TorchServe with every archive of the model store, and the example where there is none.

    Without --detach it runs until it is interrupted, and then stops as `hopserve stop` does.
    """
    server = find_server(properties)
    if server is None:
        server = _start(properties, timeout_s)
    else:
        say(f"already running as process {server.pid}")
        wait_until_ready(server, properties, [], timeout_s, log_bytes(properties))
    if detach:
        click.echo(_how_to_ask(properties))
    else:
        _run_until_interrupted(server, properties)


@click.command("stop")
@with_drain_timeout
@click.option("--force", is_flag=True, help="Stop at once; requests in flight get no answer.")
@with_server
def stop_command(drain_timeout_s: float, force: bool, properties: ServerProperties) -> None:
    """Stop TorchServe, once it has answered what it was asked so far."""
    server = find_server(properties)
    if server is None:
        click.echo("not running")
        return
    if force:
        kill_server(server)
    else:
        stop_server(server, properties, drain_timeout_s, say)
    click.echo("stopped")


def _start(properties: ServerProperties, timeout_s: float) -> psutil.Process:
    archives = list_archives(properties.model_store)
    if not archives:
        from scripts.cli.example import build_example

        build_example(properties.file.parent, properties.model_store)
        archives = list_archives(properties.model_store)
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


def _run_until_interrupted(server: psutil.Process, properties: ServerProperties) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Both: a shell that starts us in the background has SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        click.echo(_how_to_ask(properties))
        say("press Ctrl-C to stop")
        while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        stop_server(server, properties, DRAIN_TIMEOUT_S, say)
        click.echo("stopped")
        return
    raise UpstreamError(f"TorchServe stopped by itself; {properties.file.parent / 'logs'} says why")


def _how_to_ask(properties: ServerProperties) -> str:
    command = Path(".venv/bin/hopserve")
    return f"""
Hopserve is ready. Ask it about a node:

  curl -s {properties.inference_url}/predictions/graphsage \\
    -H "Authorization: Bearer $({command} token inference)" \\
    -H 'Content-Type: application/json' -d '{{"node_id": 42}}'
"""
