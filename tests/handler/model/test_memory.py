"""Memory is measured where it is taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from handler.model import memory
from handler.model.memory import free_bytes, peak_bytes

CPU = torch.device("cpu")
MIB = 1 << 20


@pytest.mark.parametrize("count", [1, 1024])
def test_a_peak_is_seen_though_it_is_gone(count: int) -> None:
    size = 64 * MIB

    def work() -> None:
        assert [np.ones(size // count, dtype=np.uint8) for _ in range(count)]

    work()  # what the allocator keeps of it must not hide the next
    assert size * 0.5 < peak_bytes(CPU, work) < size * 1.5


def test_nothing_taken_is_no_peak() -> None:
    assert peak_bytes(CPU, lambda: None) < MIB


def test_free_memory_is_what_the_machine_and_the_container_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < free_bytes(CPU) < 2**45
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path)
    assert free_bytes(CPU) == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(CPU) > 600_000
    (tmp_path / "memory.max").unlink()
    assert free_bytes(CPU) > 600_000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_a_peak_on_a_gpu_is_seen() -> None:
    cuda = torch.device("cuda", 0)
    peak = peak_bytes(cuda, lambda: torch.ones(64 * MIB, dtype=torch.uint8, device=cuda))
    assert 64 * MIB <= peak < 70 * MIB
    assert free_bytes(cuda) > 0
