"""Each layer works in each format, or is refused with the reason, as the table says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from archive.export.export import export_model
from archive.export.plan import ExportPlan
from handler.errors import ModelError
from tests.archive.export.table import COLUMNS, EDGE_DIM, FEATURE_DIM, ROWS, Column, Row, rendered

DOCS = Path(__file__).parents[3] / "docs" / "layers.md"
ALL_FORMATS = bool(os.environ.get("HOPSERVE_ALL_FORMATS"))
# Of the columns that take seconds for each layer, what is tried in every run.
REPRESENTATIVE: dict[Column, set[str]] = {
    ("layered", "pt2"): {
        "`SAGEConv`, mean", "`GCNConv` with weights", "`GATv2Conv` with edge features",
        "`TAGConv`", "`PairNorm`",
    },
    ("plain", "pt2"): {"`SAGEConv`, LSTM", "`GATConv`"},
    ("plain", "onnx"): {
        "`SAGEConv`, mean", "`SAGEConv`, LSTM", "`GCNConv` with weights",
        "`GATConv`", "`SGConv`", "`PairNorm`",
    },
}  # fmt: skip

CELLS = [
    pytest.param(row, column, id=f"{row.name.replace('`', '')}-{'-'.join(column)}")
    for row in ROWS
    for column in COLUMNS
]


def _is_tried(row: Row, column: Column) -> bool:
    if ALL_FORMATS or column[1] == "torchscript":
        return True
    if column == ("layered", "onnx"):
        return row.common
    return row.name in REPRESENTATIVE[column]


@pytest.mark.parametrize(("row", "column"), CELLS)
def test_a_layer_works_or_is_refused(tmp_path: Path, row: Row, column: Column) -> None:
    if not _is_tried(row, column):
        pytest.skip("takes long: set HOPSERVE_ALL_FORMATS=1 to try every layer in every format")
    contract, file_format = column
    torch.manual_seed(0)
    plan = ExportPlan(
        task="embedding",
        layer_fanouts=(4, 2) if contract == "layered" else (4, 4),
        feature_dim=FEATURE_DIM,
        edge_inputs=row.edge_inputs,
        edge_dim=EDGE_DIM * ("edge_attr" in row.edge_inputs),
        contract=contract,
        file_format=file_format,
        layers=False,
    )
    refusal = row.refused.get(column)
    if refusal is None:
        assert export_model(row.make(), plan, tmp_path / "export").parity.worst_difference <= 1e-5
    else:
        with pytest.raises(ModelError, match=refusal.says):
            export_model(row.make(), plan, tmp_path / "export")
        assert not list(tmp_path.iterdir())


def test_the_table_of_the_documentation_is_the_one_that_is_tested() -> None:
    assert rendered() in DOCS.read_text(encoding="utf-8"), f"{DOCS.name} must hold:\n\n{rendered()}"
