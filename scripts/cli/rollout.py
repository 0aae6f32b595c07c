"""`hopserve rollout`: register versions, and move traffic between them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gateway.hosts.fleet import Fleet
from gateway.hosts.place import Balancer
from gateway.place import Gateway
from gateway.process import find_controller
from gateway.rollout import transitions
from gateway.rollout.manifest import Manifest, Model, Version
from gateway.rollout.rollouts import now
from gateway.rollout.status import controller_status
from gateway.traffic import WHOLE
from gateway.upstream.properties import ServerProperties
from scripts.cli.options import EXISTING_FILE, Age, say, show_json, with_drain_timeout, with_server

_DEFAULT_STEPS = (5.0, 10.0, 25.0, 50.0, 100.0)


class Percents(click.ParamType[tuple[float, ...]]):
    """Comma-separated percents."""

    name = "P,P,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            percents = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of percents such as 5,25,100", param, ctx)
        if any(not 0 < percent <= 100 for percent in percents) or list(percents) != sorted(set(percents)):
            self.fail("each step must be above the one before, and at most 100", param, ctx)
        return percents


def _with_model(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--model", default=_MODEL, show_default=True)(function)


_MODEL = "graphsage"


class _OnHosts(click.Group):
    """With `--hosts` a command is done on each host instead, by its own `hopserve`."""

    def invoke(self, ctx: click.Context) -> Any:
        file = ctx.params.get("hosts")
        given = [*ctx._protected_args, *ctx.args]
        if file is None or not given or {"-h", "--help"} & set(given):
            return super().invoke(ctx)
        ctx.obj = Fleet(Balancer.of(file), say)
        name, command, rest = self.resolve_command(ctx, list(given))
        if command is None or command in (restart_command, follow_command):
            return super().invoke(ctx)
        parsed = command.make_context(name, list(rest), parent=ctx, resilient_parsing=True)
        return _on_hosts(ctx.obj, command, rest, parsed.params)


@click.group(cls=_OnHosts)
@click.option(
    "--hosts",
    type=EXISTING_FILE,
    help="Do it on all hosts of this file, such as hosts.yaml, one after the other.",
)
def rollout(hosts: Path | None) -> None:
    """Put a version on some of the traffic, watch it, and go on or back.

    The controller, which runs beside the gateway, moves from step to step by itself, and takes back what is
    worse.
    """


@rollout.command("restart")
@with_drain_timeout
@click.pass_obj
def restart_command(fleet: Fleet | None, drain_timeout_s: float) -> None:
    """Stop and start each host of --hosts, one after the other, so that no request is lost."""
    _of_hosts(fleet).restart(drain_timeout_s)
    click.echo("all hosts are ready")


@rollout.command("follow")
@click.option("--model", default=_MODEL, show_default=True)
@click.pass_obj
def follow_command(fleet: Fleet | None, model: str) -> int:
    """Watch the rollouts of all --hosts, and take back everywhere what one of them takes back.

    `start` does so by itself; when that was interrupted, this goes on. The exit status is 0 if all were
    completed.
    """
    return _follow(_of_hosts(fleet), model)


def _on_hosts(fleet: Fleet, command: click.Command, rest: list[str], given: dict[str, Any]) -> int:
    model = given.get("model") or _MODEL
    if command is register_command and given.get("archive"):
        version = fleet.register(given["archive"])
        click.echo(f"version {version} is ready on all hosts")
    elif command is start_command:
        fleet.start(rest, model)
        return _follow(fleet, model)
    else:
        is_urgent = command in (rollback_command, pause_command, status_command)
        for host, printed in fleet.each(["rollout", str(command.name), *rest], regardless=is_urgent):
            for line in printed.splitlines():
                click.echo(f"{host}: {line}")
    return 0


def _of_hosts(fleet: Fleet | None) -> Fleet:
    if fleet is None:
        raise click.UsageError("this is for several hosts: hopserve rollout --hosts hosts.yaml ...")
    return fleet


def _follow(fleet: Fleet, model: str) -> int:
    is_done = fleet.follow(model)
    click.echo("completed on all hosts" if is_done else "taken back on all hosts")
    return 0 if is_done else 1


@rollout.command("register")
@click.argument("archive")
@with_server
def register_command(archive: str, properties: ServerProperties) -> None:
    """Load ARCHIVE, a file name in the model store such as graphsage-2.0.mar; it takes no traffic yet."""
    version = Gateway.of(properties).registry(say).register(archive)
    click.echo(f"version {version} is ready; the header X-Model-Version: {version} reaches it")


@rollout.command("unregister")
@click.argument("version")
@_with_model
@with_drain_timeout
@with_server
def unregister_command(
    version: str, model: str, drain_timeout_s: float, properties: ServerProperties
) -> None:
    """Remove VERSION, which takes no traffic any more, once it has answered what it was asked."""
    Gateway.of(properties).registry(say).unregister(model, version, drain_timeout_s)
    click.echo(f"version {version} is unregistered")


@rollout.command("start")
@click.argument("version")
@_with_model
@click.option("--to", "to_percent", type=click.FloatRange(0, 100), default=100.0, show_default=True)
@click.option(
    "--steps",
    type=Percents(),
    default=",".join(f"{step:g}" for step in _DEFAULT_STEPS),
    show_default=True,
    help="Percents of the traffic, one after the other, up to that of --to.",
)
@click.option(
    "--every", type=Age(), default="10m", show_default=True, help="How long each step lasts at least."
)
@click.option(
    "--shadow",
    type=click.FloatRange(0, 100),
    default=0.0,
    help="First give it copies of so many percent of the requests, whose answers nobody sees.",
)
@with_server
def start_command(
    version: str,
    model: str,
    to_percent: float,
    steps: tuple[float, ...],
    every: float,
    shadow: float,
    properties: ServerProperties,
) -> None:
    """Let VERSION take traffic, step by step up to --to."""
    chosen = [_weight(step) for step in steps if step < to_percent] + (
        [_weight(to_percent)] if to_percent else []
    )
    _change(
        properties,
        model,
        lambda known: transitions.start(known, version, chosen, every, now(), shadow / 100),
    )
    opened = Gateway.of(properties)
    if find_controller(opened) is None:
        say("no controller runs, which would go on by itself: `hopserve gateway start`")


@rollout.command("promote")
@_with_model
@click.option("--reason", default="by hand")
@with_server
def promote_command(model: str, reason: str, properties: ServerProperties) -> None:
    """Give the version that is being rolled out all traffic, now."""
    _change(properties, model, lambda known: transitions.promote(known, now(), reason))


@rollout.command("pause")
@_with_model
@click.option("--reason", default="by hand")
@with_server
def pause_command(model: str, reason: str, properties: ServerProperties) -> None:
    """Stay at this step; a version that is worse is still taken back."""
    _change(properties, model, lambda known: transitions.pause(known, now(), reason))


@rollout.command("resume")
@_with_model
@click.option("--reason", default="by hand")
@with_server
def resume_command(model: str, reason: str, properties: ServerProperties) -> None:
    """Go on after a pause; the step begins anew."""
    _change(properties, model, lambda known: transitions.resume(known, now(), reason))


@rollout.command("rollback")
@_with_model
@click.option("--reason", default="by hand")
@with_server
def rollback_command(model: str, reason: str, properties: ServerProperties) -> None:
    """Give back the weights from before the rollout, now, whether it is on or done."""
    _change(properties, model, lambda known: transitions.roll_back(known, now(), reason))


@rollout.command("status")
@click.option("--json", "as_json", is_flag=True, help="All that is known, as JSON.")
@click.option("--history", "num_events", type=click.IntRange(min=0), default=5, show_default=True)
@with_server
def status_command(as_json: bool, num_events: int, properties: ServerProperties) -> None:
    """Show versions, their weights, and where rollouts are."""
    opened = Gateway.of(properties)
    manifest = opened.rollouts.read()
    running = controller_status(opened.settings.controller_port)
    if as_json:
        import msgspec

        show_json({**msgspec.to_builtins(manifest), "controller": running})
        return
    for line in _described(manifest, running or {}, num_events):
        click.echo(line)
    if running is None:
        click.echo("no controller runs: `hopserve gateway start`")


def _change(properties: ServerProperties, name: str, transition: Callable[[Model], Model]) -> Model:
    changed = Gateway.of(properties).rollouts.change(name, transition)
    click.echo(f"{name}: {_weights_in_words(changed.weights)}")
    return changed


def _described(manifest: Manifest, running: dict[str, Any], num_events: int) -> list[str]:
    lines = []
    for name, model in sorted(manifest.models.items()):
        lines.append(name)
        lines += [f"  {_version_in_words(version)}" for version in model.versions]
        if model.rollout is not None and model.rollout.is_active:
            on = model.rollout
            lines.append(
                f"  rollout of {on.candidate}: {on.phase}, step {on.step + 1} of {len(on.steps)}"
                f" since {_time(on.step_began)}"
            )
            decision = running.get("decisions", {}).get(name)
            if decision:
                lines.append(f"    {decision['action'].replace('_', ' ')}: {decision['reason']}")
        for event in model.history[len(model.history) - num_events :] if num_events else ():
            because = f": {event.reason}" if event.reason else ""
            happened = f"{event.version} {event.what} ({_weights_in_words(event.weights)})"
            lines.append(f"  {_time(event.at)} {happened}{because}")
    return lines or ["no versions are registered"]


def _version_in_words(version: Version) -> str:
    metrics = "".join(f"  {name} {value:.4g}" for name, value in version.metrics.items())
    return f"{version.version:8} {version.weight * 100 / WHOLE:6.2f}%  {version.state}{metrics}"


def _weights_in_words(weights: dict[str, int]) -> str:
    parts = [f"{version} {weight * 100 / WHOLE:g}%" for version, weight in weights.items()]
    return ", ".join(parts) or "no traffic"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _weight(percent: float) -> int:
    return round(percent * WHOLE / 100)
