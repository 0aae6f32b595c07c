"""`hopserve autoscale`: workers by what waits for them, on a server without a gateway."""

from __future__ import annotations

import time

import click
import msgspec

from gateway.autoscale.autoscaler import Autoscaler, Look
from gateway.autoscale.policy import ScalePolicy
from gateway.errors import UpstreamError
from gateway.upstream.properties import ServerProperties
from scripts.cli.options import Age, say, with_server

_DEFAULT = ScalePolicy()


@click.command("autoscale")
@click.argument("model")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and why.")
@click.option("--every", type=Age(), default="1s", show_default=True, help="How often to look.")
@click.option("--for", "duration_s", type=Age(), help="How long.  [default: until interrupted]")
@click.option("--min-workers", type=int, default=_DEFAULT.min_workers, show_default=True)
@click.option("--max-workers", type=int, default=_DEFAULT.max_workers, show_default=True)
@click.option(
    "--target-queue-ms",
    type=float,
    default=_DEFAULT.target_queue_ms,
    show_default=True,
    help="How long requests may wait in the queue.",
)
@click.option(
    "--target-pending",
    type=float,
    default=_DEFAULT.target_pending,
    show_default=True,
    help="How many may wait there for each worker.",
)
@click.option("--idle-ratio", type=float, default=_DEFAULT.idle_ratio, show_default=True)
@click.option("--up-after-s", type=float, default=_DEFAULT.up_after_s, show_default=True)
@click.option("--down-after-s", type=float, default=_DEFAULT.down_after_s, show_default=True)
@click.option("--cool-down-s", type=float, default=_DEFAULT.cool_down_s, show_default=True)
@with_server
def autoscale_command(
    model: str,
    dry_run: bool,
    every: float,
    duration_s: float | None,
    properties: ServerProperties,
    **policy: float,
) -> None:
    """Scale the workers of each version of MODEL with what waits for them.

    The gateway does this by itself for the models that gateway.yaml names in its section autoscale.
    """
    try:
        checked = msgspec.convert(policy, ScalePolicy)
    except msgspec.ValidationError as error:
        raise click.UsageError(str(error)) from None
    scaler = Autoscaler(properties, {model: checked}, dry_run=dry_run)
    ends_s = time.monotonic() + duration_s if duration_s is not None else None
    _show(scaler.tick())  # where there is no server, that ends it
    while ends_s is None or time.monotonic() < ends_s:
        time.sleep(every)
        try:
            _show(scaler.tick())
        except UpstreamError as error:
            say(f"{error}; looking again in {every:g} s")
    scaler.finish()


def _show(looks: list[Look]) -> None:
    for look in looks:
        click.echo(str(look))
