"""Options that several subcommands share."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import yaml
from tqdm import tqdm

from gateway.upstream.properties import ServerProperties, read_properties

_PROJECT = Path(__file__).resolve().parents[2]

DRAIN_TIMEOUT_S = 30.0
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
EXISTING_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
ANY_PATH = click.Path(path_type=Path)


class Fanouts(click.ParamType[tuple[int, ...]]):
    """Comma-separated numbers of neighbours, from the seed outwards."""

    name = "N,N,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            fanouts = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 10,10", param, ctx)
        if min(fanouts) < 1:
            self.fail("every hop needs at least 1 neighbor", param, ctx)
        return fanouts


class Names(click.ParamType[tuple[str, ...]]):
    """Comma-separated names."""

    name = "NAME,NAME,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else tuple(str(value).split(","))


class Age(click.ParamType[float]):
    """A number in the unit of the edges' times, or seconds as `90s`, `15m`, `12h`, `30d` or `2w`."""

    name = "AGE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        written = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([smhdw]?)", text)
        try:
            age = float(written[1]) * _SECONDS[written[2]] if written else math.nan
        except ValueError:
            age = math.nan
        if not (age > 0 and math.isfinite(age)):
            self.fail(f"{value!r} is no age, such as 2592000, 12h or 30d", param, ctx)
        return age


class Setting(click.ParamType[tuple[str, Any]]):
    """A setting by name, with a value as YAML writes it."""

    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        try:
            parsed = yaml.safe_load(text)
        except yaml.YAMLError:
            parsed = None
        if not name or not equals or parsed is None:
            self.fail(f"{value!r} is not a name and a value, such as num_threads=4", param, ctx)
        return name, parsed


def with_server(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--ts-config`, which arrives as the `properties` of that server."""
    return click.option(
        "--ts-config",
        "properties",
        type=ANY_PATH,
        envvar="HOPSERVE_TS_CONFIG",
        callback=_read_properties,
        help="TorchServe's configuration.  [default: config.properties here, else that of the project]",
    )(function)


def with_hosts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--hosts`, the file that names several hosts."""
    return click.option(
        "--hosts",
        type=EXISTING_FILE,
        envvar="HOPSERVE_HOSTS",
        default="hosts.yaml",
        show_default=True,
        help="The file that names the hosts.",
    )(function)


def interrupted() -> asyncio.Event:
    """What is set when this process is told to end; within the loop that handles it."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


def with_drain_timeout(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--drain-timeout-s`."""
    return click.option(
        "--drain-timeout-s",
        type=click.FloatRange(min=0),
        default=DRAIN_TIMEOUT_S,
        show_default=True,
        help="How long to wait for requests in flight; then nothing is done.",
    )(function)


def say(step: str) -> None:
    """Tell what is being done, beside the output proper."""
    click.echo(step, err=True)


class Bars:
    """Progress of long work beside the output proper: words, and on a terminal bars."""

    def say(self, step: str) -> None:
        """A step begins."""
        say(step)

    @contextmanager
    def bar(self, step: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
        """A step of `total` units begins; the function given tells how many more are done."""
        with tqdm(total=total, desc=step, unit=unit, unit_scale=True, disable=None, file=sys.stderr) as bar:
            if bar.disable:  # nobody watches a bar in a file
                say(step)
            yield bar.update


def show_json(content: object) -> None:
    """Print JSON for people and for `jq` alike."""
    click.echo(json.dumps(content, indent=2, ensure_ascii=False))


def number_if_any(node_id: str) -> int | str:
    """A node id as it is written, which is a number where it looks like one."""
    try:
        return int(node_id)
    except ValueError:
        return node_id


def _read_properties(
    context: click.Context,
    parameter: click.Parameter,
    value: Path | None,
) -> ServerProperties:
    here = Path("config.properties")
    return read_properties(value or (here if here.exists() else _PROJECT / here))


def column_delimiter(given: str | None) -> str | None:
    """What stands between columns, by how people write what a shell hardly lets them type."""
    return {"\\t": "\t", "tab": "\t", "space": " "}.get(given or "", given)
