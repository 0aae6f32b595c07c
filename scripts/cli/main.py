"""The entry point of `hopserve`: finds subcommands, and turns errors into one line."""

from __future__ import annotations

import signal
import sys

import click

import handler
from handler.errors import HopserveError
from scripts.cli.lazy import LazyGroup

_COMMANDS = {
    "graph": "scripts.cli.graph:graph",
    "train": "scripts.cli.model:train_command",
    "export": "scripts.cli.export:export_command",
    "pack": "scripts.cli.model:pack_command",
    "cache": "scripts.cli.stored:cache",
    "policy": "scripts.cli.stored:policy",
    "metrics-file": "scripts.cli.model:metrics_file_command",
    "precompute": "scripts.cli.precompute:precompute_command",
    "serve": "scripts.cli.server:serve_command",
    "stop": "scripts.cli.server:stop_command",
    "ready": "scripts.cli.probes:ready_command",
    "drain": "scripts.cli.probes:drain_command",
    "ingest": "scripts.cli.ingest:ingest_command",
    "predict": "scripts.cli.client:predict_command",
    "explain": "scripts.cli.explain:explain_command",
    "token": "scripts.cli.client:token_command",
    "models": "scripts.cli.client:models",
    "gateway": "scripts.cli.gateway:gateway",
    "balancer": "scripts.cli.balancer:balancer",
    "rollout": "scripts.cli.rollout:rollout",
    "autoscale": "scripts.cli.autoscale:autoscale_command",
    "tune": "scripts.cli.tune:tune_command",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(handler.__version__, prog_name="hopserve")
def hopserve() -> None:
    """Serve graph neural networks online, on TorchServe.

    From data to answers: `graph build`, `train`, `export`, `pack`, `serve`, `predict`.
    """


def main() -> None:
    """Run the command line; errors that we know end it with one line and status 1."""
    try:
        status = hopserve(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        # A further one would find Python without its handler, and end us with another status.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        click.echo("hopserve: interrupted", err=True)
        sys.exit(130)
    except HopserveError as error:
        click.echo(f"hopserve: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(status if isinstance(status, int) else 0)
