"""A group of commands that are imported when they are used: who wants a key must not wait for PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import click


class LazyGroup(click.Group):
    """A group with subcommands that are named by `module:attribute`, beside those that were added.

    Args:
        lazy: where each command is, by its name, in the order in which help shows them.
    """

    def __init__(self, *args: Any, lazy: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command
