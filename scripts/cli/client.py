"""`hopserve predict`, `token` and `models`: asks and manages a running TorchServe."""

from __future__ import annotations

import sys
from typing import Any

import click

from gateway.place import Gateway
from gateway.rollout import transitions
from gateway.rollout.manifest import Model
from gateway.rollout.rollouts import now
from gateway.upstream.client import Client, ModelVersion
from gateway.upstream.loading import find_archive, load
from gateway.upstream.properties import ServerProperties
from gateway.upstream.store import put_archive, remember_default
from gateway.upstream.tokens import Tokens
from scripts.cli.options import number_if_any, say, show_json, with_drain_timeout, with_server


@click.command("predict")
@click.argument("node_ids", nargs=-1, required=True, metavar="NODE_ID...")
@click.option("--model", default="graphsage", show_default=True)
@click.option("--version", help="Version to ask.  [default: the server's default version]")
@click.option(
    "--return",
    "returned",
    multiple=True,
    type=click.Choice(["embedding", "label", "probabilities", "values", "neighbors", "score", "probability"]),
    help="What the answer holds; may be given several times.",
)
@click.option("--num-hops", type=click.IntRange(min=1), help="Fewer hops than the model has layers.")
@click.option("--num-neighbors", type=click.IntRange(min=1), help="Fewer neighbors than the model samples.")
@click.option("--as-of", type=float, help="No edge later than this time.")
@click.option("--min-seq", type=click.IntRange(min=0), help="A mutation that must count, such as a last_seq.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), help="Least probability with which a label is given."
)
@click.option("--top-k", type=click.IntRange(1, 1000), help="So many of the nodes that are most similar.")
@click.option(
    "--metric", type=click.Choice(["cosine", "dot"]), help="By what they are similar.  [default: cosine]"
)
@click.option("--pairs", is_flag=True, help="Score links: the ids are taken two by two, each from and to.")
@click.option("--string-ids", is_flag=True, help="Send ids as strings even if they look like numbers.")
@with_server
def predict_command(
    node_ids: tuple[str, ...],
    model: str,
    version: str | None,
    returned: tuple[str, ...],
    num_hops: int | None,
    num_neighbors: int | None,
    as_of: float | None,
    min_seq: int | None,
    threshold: float | None,
    top_k: int | None,
    metric: str | None,
    pairs: bool,
    string_ids: bool,
    properties: ServerProperties,
) -> None:
    """Ask the server about nodes or pairs of nodes, and print its answer."""
    if pairs and len(node_ids) % 2:
        raise click.UsageError(f"--pairs takes ids two by two, and there are {len(node_ids)}")
    options = {
        "num_hops": num_hops,
        "num_neighbors": num_neighbors,
        "return": list(returned) or None,
        "as_of": as_of,
        "min_seq": min_seq,
        "threshold": threshold,
        "top_k": top_k,
        "metric": metric,
    }
    request: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    ids = [node_id if string_ids else number_if_any(node_id) for node_id in node_ids]
    if pairs:
        request["pairs"] = [ids[place : place + 2] for place in range(0, len(ids), 2)]
    else:
        request |= {"node_id": ids[0]} if len(ids) == 1 else {"node_ids": ids}
    with Client(properties) as client:
        show_json(client.predict(model, version, request))


@click.command("token")
@click.argument("purpose", type=click.Choice(["inference", "management"]))
@click.option("--renew", is_flag=True, help="Get a new key; the old one stops working for everyone.")
@with_server
def token_command(purpose: Any, renew: bool, properties: ServerProperties) -> None:
    """Print a valid key for requests: `Authorization: Bearer KEY`.

    A key that has run out is renewed first.
    """
    click.echo(Tokens(properties).get(purpose, renew=renew))


@click.group()
def models() -> None:
    """List and change the models that are being served."""


@models.command("list")
@with_server
def list_command(properties: ServerProperties) -> None:
    """Show every version of every model, as JSON."""
    with Client(properties) as client:
        defaults = {name: client.version(name).model_version for name in client.model_names()}
        listed = [_described(version, defaults[version.model_name]) for version in client.all_versions()]
    show_json(listed)


@models.command("register")
@click.argument("archive")
@with_server
def register_command(archive: str, properties: ServerProperties) -> None:
    """Serve ARCHIVE, a file name in the model store, such as graphsage-2.0.mar."""
    find_archive(properties, archive)
    say(f"loading {archive}")
    with Client(properties) as client:
        click.echo(load(client, properties, archive))


@models.command("put")
@click.argument("archive")
@with_server
def put_command(archive: str, properties: ServerProperties) -> None:
    """Write what comes from standard input into the model store, as ARCHIVE, such as graphsage-2.0.mar.

    So an archive comes to another machine: ssh HOST hopserve models put graphsage-2.0.mar < graphsage-2.0.mar
    """
    put_archive(properties.model_store, archive, sys.stdin.buffer)
    click.echo(f"{archive} is in the model store")


@models.command("scale")
@click.argument("model")
@click.argument("version")
@click.argument("workers", type=click.IntRange(min=1))
@with_drain_timeout
@with_server
def scale_command(
    model: str, version: str, workers: int, drain_timeout_s: float, properties: ServerProperties
) -> None:
    """Run a version with so many WORKERS.

    To have fewer, move the traffic away first: requests in flight are waited for, but one that comes while
    a worker is removed may get no answer.
    """
    say(f"scaling {model} {version} to {workers} workers")
    with Client(properties) as client:
        click.echo(client.scale(model, version, workers, drain_timeout_s))


@models.command("set-default")
@click.argument("model")
@click.argument("version")
@with_server
def set_default_command(model: str, version: str, properties: ServerProperties) -> None:
    """Let a version answer the requests that name none, now and after the next start.

    Where a gateway knows the version, it gets all traffic there.
    """
    gateway = Gateway.of(properties)
    if gateway.rollouts.read().models.get(model, Model()).find(version) is not None:
        gateway.rollouts.change(model, lambda known: transitions.prefer(known, version, now()))
    with Client(properties) as client:
        click.echo(client.set_default(model, version))
    remember_default(properties.model_store, model, version)


@models.command("unregister")
@click.argument("model")
@click.argument("version")
@with_drain_timeout
@with_server
def unregister_command(
    model: str, version: str, drain_timeout_s: float, properties: ServerProperties
) -> None:
    """Stop serving a version, once it has answered what it was asked.

    Where a gateway knows the version, it must not have traffic there. Else move the traffic away first: a
    request that comes while it is removed may get no answer.
    """
    gateway = Gateway.of(properties)
    known = gateway.rollouts.read().models.get(model, Model()).find(version)
    if known is not None and known.state != "retired":
        gateway.registry(say).unregister(model, version, drain_timeout_s)
        return
    with Client(properties) as client:
        say(f"waiting for requests in flight at {model} {version}")
        client.drain(model, version, drain_timeout_s)
        click.echo(client.unregister(model, version))


def _described(version: ModelVersion, default: str) -> dict[str, Any]:
    return {
        "model": version.model_name,
        "version": version.model_version,
        "default": version.model_version == default,
        "archive": version.model_url,
        "workers": {"ready": version.num_ready, "min": version.min_workers, "max": version.max_workers},
        "batch_size": version.batch_size,
        "max_batch_delay_ms": version.max_batch_delay,
        "pending_requests": version.job_queue_status.pending_requests,
    }
