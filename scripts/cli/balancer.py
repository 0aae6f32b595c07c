"""`hopserve balancer`: run, check and stop what stands in front of several hosts."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click

from gateway.envoy.admin import Admin
from gateway.envoy.hosts import HOSTS
from gateway.hosts.place import Balancer
from gateway.process import READY
from scripts.cli import standing
from scripts.cli.options import interrupted, with_drain_timeout, with_hosts


@click.group()
def balancer() -> None:
    """Run the entrance to several hosts, each with a TorchServe and its gateway.

    Requests about a node go to the same host while it is ready; what a host cannot answer, another is asked.
    Hosts are in hosts.yaml, which is read again when it changes.
    """


@balancer.command("run")
@with_hosts
def run_command(hosts: Path) -> None:
    """Run the balancer until it is interrupted; then stop it, once it has answered everything."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    asyncio.run(_run(Balancer.of(hosts)))


@balancer.command("start")
@with_hosts
def start_command(hosts: Path) -> None:
    """Start the balancer in the background; returns when it can be asked."""
    standing.start(Balancer.of(hosts))


@balancer.command("stop")
@with_drain_timeout
@click.option("--force", is_flag=True, help="Stop at once; requests in flight get no answer.")
@with_hosts
def stop_command(drain_timeout_s: float, force: bool, hosts: Path) -> None:
    """Stop the balancer, once it has answered what it was asked; hosts go on."""
    standing.stop(Balancer.of(hosts), drain_timeout_s, force=force)


@balancer.command("check")
@with_hosts
def check_command(hosts: Path) -> None:
    """Check hosts.yaml, the keys, and all that Envoy would be told."""
    opened = Balancer.of(hosts)
    opened.control.check(opened.api_keys(), opened.host_key())
    click.echo("valid")


@balancer.command("status")
@with_hosts
def status_command(hosts: Path) -> int:
    """Show each host, and how much it was asked; the exit status is 0 if all are ready."""
    opened = Balancer.of(hosts)
    names = {host.address: host.name for host in opened.settings.hosts}
    with Admin(opened.settings.admin_port) as admin:
        found = admin.endpoints(HOSTS)
    for each in found:
        name = names.get(each.address, each.name)
        click.echo(
            f"{name:16} {each.address:24} {each.state:10} {each.num_requests} requests, {each.num_active} now"
        )
    return 0 if found and all(each.state == READY for each in found) else 1


async def _run(opened: Balancer) -> None:
    from gateway.hosts.running import run_balancer

    await run_balancer(opened, interrupted(), lambda: click.echo(READY))
