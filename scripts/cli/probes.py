"""`hopserve ready` and `drain`: what tells others whether to send requests."""

from __future__ import annotations

import click

from gateway.place import Gateway
from gateway.readiness import drain, look
from gateway.upstream.properties import ServerProperties
from scripts.cli.options import say, with_server


@click.command("ready")
@click.option("--alive", is_flag=True, help="Succeed unless it is broken: also while it loads or drains.")
@click.option(
    "--gateway/--no-gateway",
    "with_gateway",
    default=True,
    help="Whether the gateway must listen, too.  [default: yes]",
)
@with_server
def ready_command(alive: bool, with_gateway: bool, properties: ServerProperties) -> int:
    """Say whether the server can be sent requests; the exit status is 0 if so, else 1.

    It prints `ready`, or one of `loading`, `draining` and `broken` with the reason. Every model of the store
    must have a worker for the version that gets most of its requests.
    """
    seen = look(Gateway.of(properties), with_gateway=with_gateway)
    click.echo(str(seen))
    return 0 if seen.kind == "ready" or (alive and seen.kind != "broken") else 1


@click.command("drain")
@click.option(
    "--at-least-s",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="How long those who send requests may take to learn that they should not.",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="How long to wait for requests in flight; then it fails.",
)
@with_server
def drain_command(at_least_s: float, timeout_s: float, properties: ServerProperties) -> None:
    """Before a stop: be not ready from now on, and wait until nothing is in flight.

    Requests that still come are answered. The next `hopserve serve` is ready again.
    """
    say("not ready any more; waiting for requests in flight")
    drain(Gateway.of(properties), at_least_s, timeout_s)
    click.echo("drained")
