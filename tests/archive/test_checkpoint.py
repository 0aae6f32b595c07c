"""Trained weights are read back as they were, and nothing else is taken for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from archive.checkpoint import load_checkpoint, save_checkpoint
from handler.errors import ModelError
from handler.graph.sampling import Sampling
from tests.models import random_model


def test_weights_are_read_back(tmp_path: Path) -> None:
    config, model = random_model(
        sampling=Sampling(strategy="recent"), edge_inputs=("edge_attr", "edge_weight"), edge_dim=2
    )
    save_checkpoint(tmp_path / "deep" / "weights.pt", config, model)
    again, loaded = load_checkpoint(tmp_path / "deep" / "weights.pt")
    assert again == config
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    with pytest.raises(ModelError, match="no such file"):
        load_checkpoint(path)
    for content in (b"junk", b""):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="not weights that `hopserve train` wrote"):
            load_checkpoint(path)
    torch.save({"config": {"task": "poetry"}, "weights": {}}, path)
    with pytest.raises(ModelError, match="missing required field|Invalid enum value"):
        load_checkpoint(path)
    torch.save(random_model()[1], path)  # a pickled module would run code
    with pytest.raises(ModelError, match="not weights"):
        load_checkpoint(path)
