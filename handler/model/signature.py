"""`signature.json`: what an exported model takes and gives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import xxhash

from handler.errors import ModelError
from handler.graph.sampling import Sampling
from handler.settings import Positive

FORMAT_VERSION = 2
SIGNATURE_NAME = "signature.json"
MODEL_NAME = "model.pt"

EdgeInput = Literal["edge_weight", "edge_attr"]
LayerFanouts = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1, max_length=16)]


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contract of `model.pt`.

    The model is called as `forward(x, edge_index, hop, edge_rank, *edge_inputs)` on the trees of some
    seeds, as `handler.model.batch` lays them out, and gives `(embedding, logits)`: float32
    [num_seeds, embedding_dim] and [num_seeds, len(labels)].

    Args:
        task: `embedding` models have no labels, and logits of width 0.
        sampling: which neighbours it was trained on.
        edge_inputs: what else it takes: `edge_weight` float32 [num_edges], `edge_attr` float32
            [num_edges, edge_dim].
        layer_fanouts: f(1) to f(L), for the layer applied first to the one applied last.
        labels: the name of each class.
        model_checksum: XXH3-128 of `model.pt`, in hexadecimal.
        versions: of the software that made it, for people to read.
    """

    format_version: int
    task: Literal["classification", "embedding"]
    feature_dim: Positive
    embedding_dim: Positive
    layer_fanouts: LayerFanouts
    sampling: Sampling
    edge_inputs: tuple[EdgeInput, ...]
    edge_dim: Annotated[int, msgspec.Meta(ge=0)]
    labels: tuple[str, ...]
    model_checksum: str
    versions: dict[str, str]


def read_signature(folder: Path) -> Signature:
    """Read and check the signature of an exported model; a wrong one is a `ModelError`."""
    path = folder / SIGNATURE_NAME
    try:
        signature = msgspec.json.decode(path.read_bytes(), type=Signature)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not a valid signature: {error}") from None
    if signature.format_version != FORMAT_VERSION:
        raise ModelError(
            f"{path}: format_version is {signature.format_version}, this Hopserve reads {FORMAT_VERSION}"
        )
    if (signature.task == "classification") != bool(signature.labels):
        raise ModelError(f"{path}: task is {signature.task}, but there are {len(signature.labels)} labels")
    return signature


def write_signature(folder: Path, signature: Signature) -> None:
    """Write the signature beside the model."""
    text = msgspec.json.format(msgspec.json.encode(signature), indent=2)
    (folder / SIGNATURE_NAME).write_bytes(text + b"\n")


def model_checksum(folder: Path) -> str:
    """XXH3-128 of the exported model's file."""
    path = folder / MODEL_NAME
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
