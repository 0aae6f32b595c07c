"""`hopserve graph`: makes graph snapshots, and shows them."""

from __future__ import annotations

import click

from scripts.cli.build import build_command
from scripts.cli.look import add_ordering_command, info_command, sample_command, verify_command


@click.group()
def graph() -> None:
    """Make and look at graph snapshots."""


for command in (build_command, info_command, verify_command, sample_command, add_ordering_command):
    graph.add_command(command)
