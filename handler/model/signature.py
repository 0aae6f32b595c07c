"""`signature.json`: what an exported model takes and gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import xxhash

from handler.errors import ModelError
from handler.graph.sampling import Sampling
from handler.model.files import SIGNATURE_NAME
from handler.settings import Positive

FORMAT_VERSION = 3

Task = Literal["embedding", "classification", "regression", "link"]
Contract = Literal["layered", "plain"]
FileFormat = Literal["torchscript", "pt2", "onnx"]
Output = Literal["embedding", "prediction"]
LinkScore = Literal["dot", "cosine", "head"]
EdgeInput = Literal["edge_weight", "edge_attr"]
LayerFanouts = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1, max_length=16)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
_NotNegative = Annotated[int, msgspec.Meta(ge=0)]

SUFFIXES: dict[FileFormat, str] = {"torchscript": "pt", "pt2": "pt2", "onnx": "onnx"}


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contract of an exported model.

    Args:
        task: what it is asked for. `classification` has `labels`, `regression` has `targets`, `link` has a
            `link_score`.
        contract: what it is called with; see `argument_names`.
        file_format: of its files: `model.pt`, `model.pt2` or `model.onnx`, and `head.*` beside it.
        device: where it runs, if its file is compiled for one kind of device.
        embedding_dim: 0 where it gives no embedding.
        outputs: what its forward gives, in this order: `embedding` float32 [num_rows, embedding_dim],
            `prediction` float32 [num_rows, number of labels or targets]. Rows are the seeds; of a `plain`
            model all nodes that it was given.
        layer_fanouts: f(1) to f(L), for the layer applied first to the one applied last.
        sampling: which neighbours it was trained on.
        edge_inputs: what it takes of each edge, in this order: `edge_weight` float32 [num_edges], `edge_attr`
            float32 [num_edges, edge_dim].
        takes_degree: whether it normalises by the sizes of samples, or by the sums of their weights.
        labels: the name of each class.
        multi_label: whether a node may have several labels, each with a probability of its own (sigmoid),
            or exactly one (softmax).
        thresholds: the least probability with which a label is given; of those not named 0, with
            `multi_label` 0.5.
        targets: the name of each predicted number.
        link_score: how two embeddings become a score; `head` is a file of its own, called as
            `(source, target)`, float32 [num_pairs, embedding_dim] each, which gives float32 [num_pairs].
        checksums: XXH3-128 of each file, in hexadecimal.
        versions: of the software that made it, for people to read.
    """

    format_version: int
    task: Task
    contract: Contract
    file_format: FileFormat
    device: Literal["any", "cpu", "cuda"] = "any"
    feature_dim: Positive
    embedding_dim: _NotNegative
    outputs: Annotated[tuple[Output, ...], msgspec.Meta(min_length=1, max_length=2)]
    layer_fanouts: LayerFanouts
    sampling: Sampling
    edge_inputs: Annotated[tuple[EdgeInput, ...], msgspec.Meta(max_length=2)] = ()
    edge_dim: _NotNegative = 0
    takes_degree: bool = False
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    thresholds: dict[str, Probability] = {}
    targets: tuple[str, ...] = ()
    link_score: LinkScore | None = None
    checksums: dict[str, str]
    versions: dict[str, str]

    @property
    def model_file(self) -> str:
        """Name of the model's file."""
        return f"model.{SUFFIXES[self.file_format]}"

    @property
    def head_file(self) -> str:
        """Name of the link head's file, where `link_score` is `head`."""
        return f"head.{SUFFIXES[self.file_format]}"

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files of the model."""
        return (self.model_file, *([self.head_file] if self.link_score == "head" else []))

    @property
    def prediction_dim(self) -> int:
        """Number of columns of `prediction`; 0 where it gives none."""
        return len(self.labels) or len(self.targets)

    @property
    def output_dim(self) -> int:
        """Number of columns of embedding and prediction side by side."""
        return self.embedding_dim + self.prediction_dim

    def argument_names(self) -> tuple[str, ...]:
        """What the model is called with, in order.

        A plain model takes `x, edge_index` and the edge inputs. A layered one takes `x`, and for each layer
        l its `edge_index_l`, `ptr_l`, the edge inputs, and `degree_l` where it takes degrees.
        """
        if self.contract == "plain":
            return ("x", "edge_index", *self.edge_inputs)
        return layered_argument_names(
            len(self.layer_fanouts), self.edge_inputs, takes_degree=self.takes_degree
        )

    def problems(self) -> Iterator[str]:
        """What contradicts itself in it."""
        yield from self._task_problems()
        outputs = ", ".join(self.outputs)
        if self.task in {"embedding", "link"} and "embedding" not in self.outputs:
            yield f"task is {self.task}, but outputs are {outputs}"
        if ("prediction" in self.outputs) != bool(self.prediction_dim):
            yield f"outputs are {outputs}, but there are {self.prediction_dim} labels or targets"
        if ("embedding" in self.outputs) != bool(self.embedding_dim):
            yield f"outputs are {outputs}, but embedding_dim is {self.embedding_dim}"
        if ("edge_attr" in self.edge_inputs) != bool(self.edge_dim):
            yield f"edge_inputs are {list(self.edge_inputs)}, but edge_dim is {self.edge_dim}"
        if self.takes_degree and self.contract == "plain":
            yield "a plain model takes no degrees"
        for field in ("outputs", "edge_inputs", "labels", "targets"):
            names = getattr(self, field)
            if len(set(names)) < len(names):
                yield f"{field} name something twice"
        for label in self.thresholds:
            if label not in self.labels:
                yield f"there is a threshold for {label!r}, which is no label"

    def _task_problems(self) -> Iterator[str]:
        has = {"classification": self.labels, "regression": self.targets, "link": self.link_score}
        for task, needed in _NEEDED.items():
            if task == self.task and not has[task]:
                yield f"task is {self.task}, but there are no {needed}"
            if task != self.task and has[task]:
                yield f"task is {self.task}, but there are {needed}"


def layered_argument_names(
    num_layers: int, edge_inputs: tuple[EdgeInput, ...], *, takes_degree: bool
) -> tuple[str, ...]:
    """What a layered model is called with, in order; see `Signature.argument_names`."""
    of_layer = ("edge_index", "ptr", *edge_inputs, *(["degree"] if takes_degree else []))
    numbers = range(1, num_layers + 1)
    return ("x", *(f"{name}_{number}" for number in numbers for name in of_layer))


_NEEDED = {"classification": "labels", "regression": "targets", "link": "link_score"}


class _Version(msgspec.Struct):
    """The part that every version has."""

    format_version: int


def read_signature(folder: Path) -> Signature:
    """Read and check the signature of an exported model; a wrong one is a `ModelError`."""
    path = folder / SIGNATURE_NAME
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=_Version).format_version
        if found != FORMAT_VERSION:
            raise ModelError(
                f"{path}: format_version is {found}, this Hopserve reads {FORMAT_VERSION}: export it again"
            )
        signature = msgspec.json.decode(content, type=Signature)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not a valid signature: {error}") from None
    for problem in signature.problems():
        raise ModelError(f"{path}: {problem}")
    return signature


def write_signature(folder: Path, signature: Signature) -> None:
    """Write the signature beside the model."""
    text = msgspec.json.format(msgspec.json.encode(signature), indent=2)
    (folder / SIGNATURE_NAME).write_bytes(text + b"\n")


def check_files(folder: Path, signature: Signature) -> None:
    """Raise a `ModelError` unless the model's files are the ones that the signature describes."""
    for name in signature.files:
        found, wanted = file_checksum(folder / name), signature.checksums.get(name)
        if found != wanted:
            raise ModelError(f"{folder / name}: its checksum is {found}, the signature says {wanted}")


def file_checksum(path: Path) -> str:
    """XXH3-128 of a file of an exported model."""
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
