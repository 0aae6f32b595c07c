"""`hopserve gateway`: run, check and stop the front door."""

from __future__ import annotations

import asyncio
import logging

import click

from gateway.place import Gateway
from gateway.process import READY
from gateway.upstream.properties import ServerProperties
from scripts.cli import standing
from scripts.cli.options import interrupted, with_drain_timeout, with_server


@click.group()
def gateway() -> None:
    """Run the front door: Envoy, and the controller that moves traffic between versions.

    Both are configured by gateway.yaml beside TorchServe's configuration; without that file all is as usual.
    """


@gateway.command("run")
@with_server
def run_command(properties: ServerProperties) -> None:
    """Run the gateway until it is interrupted; then stop it, once it has answered everything."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    asyncio.run(_run(Gateway.of(properties)))


@gateway.command("start")
@with_server
def start_command(properties: ServerProperties) -> None:
    """Start the gateway in the background; returns when it can be asked."""
    standing.start(Gateway.of(properties))


@gateway.command("stop")
@with_drain_timeout
@click.option("--force", is_flag=True, help="Stop at once; requests in flight get no answer.")
@with_server
def stop_command(drain_timeout_s: float, force: bool, properties: ServerProperties) -> None:
    """Stop the gateway, once it has answered what it was asked; TorchServe goes on."""
    standing.stop(Gateway.of(properties), drain_timeout_s, force=force)


@gateway.command("check")
@with_server
def check_command(properties: ServerProperties) -> None:
    """Check gateway.yaml, the keys of clients, and all that Envoy would be told."""
    opened = Gateway.of(properties)
    opened.control.check(opened.rollouts.traffic(), opened.api_keys())
    click.echo("valid")


async def _run(opened: Gateway) -> None:
    from gateway.running import run_gateway

    await run_gateway(opened, interrupted(), lambda: click.echo(READY))
