"""Starts and stops what runs beside an Envoy, as commands show it."""

from __future__ import annotations

import click

from gateway.process import Place, find_controller, kill_gateway, start_gateway, stop_gateway
from scripts.cli.options import say


def start(place: Place) -> None:
    """Start it in the background, unless it runs already, and print where to ask."""
    running = find_controller(place)
    if running is not None:
        say(f"already running as process {running.pid}")
    else:
        start_gateway(place)
    click.echo(place.url)


def stop(place: Place, drain_timeout_s: float, *, force: bool) -> None:
    """Stop it, once it has answered what it was asked, or at once."""
    if force:
        kill_gateway(place)
        click.echo("stopped")
    else:
        click.echo("stopped" if stop_gateway(place, drain_timeout_s) else "not running")
