"""The entry point of `hopserve`: finds subcommands, and turns errors into one line."""

from __future__ import annotations

import importlib
import sys

import click

import handler
from handler.errors import HopserveError

# Loaded when asked for: a curl that wants a key must not wait for PyTorch.
_COMMANDS = {
    "graph": "scripts.cli.graph:graph",
    "train": "scripts.cli.model:train_command",
    "export": "scripts.cli.export:export_command",
    "pack": "scripts.cli.model:pack_command",
    "metrics-file": "scripts.cli.model:metrics_file_command",
    "serve": "scripts.cli.server:serve_command",
    "stop": "scripts.cli.server:stop_command",
    "ingest": "scripts.cli.ingest:ingest_command",
    "predict": "scripts.cli.client:predict_command",
    "token": "scripts.cli.client:token_command",
    "models": "scripts.cli.client:models",
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
        click.echo("hopserve: interrupted", err=True)
        sys.exit(130)
    except HopserveError as error:
        click.echo(f"hopserve: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(status if isinstance(status, int) else 0)
