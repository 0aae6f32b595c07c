"""`hopserve explain`: why a running server answers a node, or scores a link, as it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from archive.explanation_pictures import draw_explanation
from archive.picture_files import check_picture_path
from gateway.upstream.client import Client
from gateway.upstream.properties import ServerProperties
from scripts.cli.options import ANY_PATH, number_if_any, say, show_json, with_server

_ALL = 10_000
_SHOWN = ("nodes", "edges", "features")


@click.command("explain")
@click.argument("node_ids", nargs=-1, required=True, metavar="NODE_ID [NODE_ID]")
@click.option("--model", default="graphsage", show_default=True)
@click.option("--version", help="Version to ask.  [default: the server's default version]")
@click.option("--label", help="The class to explain.  [default: the one that is given]")
@click.option("--target", help="The predicted number to explain, of a model with several.")
@click.option(
    "--method",
    type=click.Choice(["integrated_gradients", "occlusion"]),
    help="How.  [default: by gradients where the model's file allows it]",
)
@click.option(
    "--top",
    type=click.IntRange(1, _ALL),
    default=20,
    show_default=True,
    help="So many nodes, edges and features are printed, the most important first.",
)
@click.option("--num-hops", type=click.IntRange(min=1), help="Fewer hops than the model has layers.")
@click.option("--num-neighbors", type=click.IntRange(min=1), help="Fewer neighbors than the model samples.")
@click.option("--as-of", type=float, help="No edge later than this time.")
@click.option("--min-seq", type=click.IntRange(min=0), help="A mutation that must count, such as a last_seq.")
@click.option("--plot", type=ANY_PATH, help="Also draw it, to this .png or .html file.")
@click.option("--string-ids", is_flag=True, help="Send ids as strings even if they look like numbers.")
@with_server
def explain_command(
    node_ids: tuple[str, ...],
    model: str,
    version: str | None,
    top: int,
    plot: Path | None,
    string_ids: bool,
    properties: ServerProperties,
    **options: Any,
) -> None:
    """Show which neighbors, edges and features made NODE_ID be answered as it is, as JSON.

    Of two ids the score of the link from the first to the second is explained.
    """
    if len(node_ids) > 2:
        raise click.UsageError("one node, or the two ends of a link")
    if plot is not None:
        check_picture_path(plot)
    ids = [node_id if string_ids else number_if_any(node_id) for node_id in node_ids]
    request: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    request |= {"node_id": ids[0]} if len(ids) == 1 else {"pair": ids}
    request["top"] = top if plot is None else _ALL
    with Client(properties) as client:
        answer = client.explain(model, version, request)
    if plot is not None:
        draw_explanation(answer, plot)
        say(f"drew {plot}")
    show_json(answer | {name: answer[name][:top] for name in _SHOWN})
