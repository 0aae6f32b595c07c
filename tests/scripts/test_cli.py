"""The command line: help for strangers, one line for errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner, Result

from scripts.cli.main import hopserve, main

COMMANDS = [
    ["graph"], ["graph", "build"], ["graph", "info"], ["graph", "verify"], ["graph", "sample"],
    ["graph", "add-ordering"], ["train"], ["export"], ["pack"], ["metrics-file"],
    ["serve"], ["stop"], ["ingest"], ["predict"], ["token"], ["models"], ["models", "list"],
    ["models", "register"], ["models", "scale"], ["models", "set-default"], ["models", "unregister"],
]  # fmt: skip


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(hopserve, [str(argument) for argument in arguments], catch_exceptions=False)


def _fail(*arguments: object) -> str:
    """The last line of a command that fails as it should."""
    with (
        redirect_stderr(StringIO()) as stderr,
        patch("sys.argv", ["hopserve", *map(str, arguments)]),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert end.value.code in {1, 2}, stderr.getvalue()
    return stderr.getvalue().strip().splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command: list[str]) -> None:
    result = _run(*command, "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage:")
    assert len(result.output.splitlines()) > 5


def test_help_lists_every_command() -> None:
    output = _run("--help").output
    for command in COMMANDS:
        assert command[0] in output


def test_a_key_costs_no_pytorch() -> None:
    """The quickstart's curl asks for one, and should not wait seconds for it."""
    code = (
        "import sys; sys.argv = ['hopserve', 'token', '--help']\n"
        "from scripts.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numba', 'numpy'} & set(sys.modules), 'too much'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_from_data_to_an_archive(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "mine.npz",
        edge_index=generator.integers(0, 60, (2, 300)),
        x=generator.standard_normal((60, 4)).astype(np.float16),
        y=np.arange(60) % 3,
        class_names=np.array(["red", "green", "blue"]),
        node_id=np.array([f"n{node}" for node in range(60)]),
    )
    graph, weights, export = tmp_path / "graph", tmp_path / "weights.pt", tmp_path / "export"
    built = _run("graph", "build", "--npz", tmp_path / "mine.npz", "--out", graph, "--undirected")
    assert built.exit_code == 0
    assert "60 nodes" in built.stdout
    info = json.loads(_run("graph", "info", graph).stdout)
    assert (info["num_nodes"], info["ids"]) == (60, {"kind": "str", "first": ["n0", "n1", "n2"]})
    assert info["features"] == {"kind": "dense", "dimension": 4}
    assert info["classes"] == {"red": 20, "green": 20, "blue": 20}

    trained = _run(
        "train",
        "--graph",
        graph,
        "--out",
        weights,
        "--num-neighbors",
        "4,3,2",
        "--epochs",
        "3",
        "--seed",
        "1",
    )
    assert "accuracy: train" in trained.stdout
    assert (
        "equal to the eager model on 10 shapes"
        in _run("export", "--weights", weights, "--out", export).stdout
    )
    signature = json.loads((export / "signature.json").read_text())
    assert signature["layer_fanouts"] == [2, 3, 4], "from the layer applied first, as the last hop is"
    assert signature["labels"] == ["red", "green", "blue"]
    packed = _run(
        "pack", "--name", "mine", "--version", "0.1", "--model", export, "--graph", graph, "--store", tmp_path
    )
    assert packed.stdout.strip() == str(tmp_path / "mine-0.1.mar")


def test_mistakes_end_in_one_line(tmp_path: Path, dataset: Callable[[str], Path]) -> None:
    out = tmp_path / "graph"
    assert _fail("graph", "build", "--out", out) == (
        "Error: give exactly one of --edges, --npz, --pyg, --network, --dataset"
    )
    assert "no such file" in _fail("graph", "build", "--npz", tmp_path / "no.npz", "--out", out)
    assert "'mnist' is not one of" in _fail("graph", "build", "--dataset", "mnist", "--out", out)
    assert not out.exists()
    assert "Missing option" in _fail("train")
    assert "x,10" in _fail("train", "--graph", tmp_path, "--out", out, "--num-neighbors", "x,10")
    assert "no graph snapshot" in _fail("graph", "info", tmp_path)
    assert "not weights" in _fail("export", "--weights", __file__, "--out", out)
    assert "Invalid value for '{inference|management}'" in _fail("token", "poetry")
    assert "cannot be read" in _fail("models", "list", "--ts-config", tmp_path / "no.properties")
    assert "No such command 'fly'" in _fail("fly")


def test_a_snapshot_is_replaced_only_by_force(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", edge_index=np.array([[0], [1]]))
    build = ("graph", "build", "--npz", tmp_path / "mine.npz", "--out", tmp_path / "graph")
    assert _run(*build).exit_code == 0
    assert "a snapshot is there already" in _fail(*build)
    assert _run(*build, "--force").exit_code == 0


def test_repeated_edges_are_counted_once_and_reported(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", edge_index=np.array([[0, 0, 1], [1, 1, 0]]))
    result = _run("graph", "build", "--npz", tmp_path / "mine.npz", "--out", tmp_path / "graph")
    assert "2 nodes, 2 edges (without 1 repeats)" in result.stdout
