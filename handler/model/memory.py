"""What memory a forward takes, what is free, and the error of what does not fit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from handler.errors import OutOfMemory

_KIB = 1024
_CONTROL_GROUP = Path("/sys/fs/cgroup")
# How PyTorch on the CPU, NumPy and ONNX Runtime say that memory was refused; CUDA has a class for it.
_REFUSALS = ("can't allocate memory", "not enough memory", "Failed to allocate memory", "out of memory")


@contextmanager
def translated() -> Iterator[None]:
    """Whatever says that memory was refused becomes an `OutOfMemory`."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(str(error)) from None
    except Exception as error:
        if any(words in str(error) for words in _REFUSALS):
            raise OutOfMemory(str(error)) from None
        raise


def free_bytes(device: torch.device) -> int:
    """What could still be allocated on a device by this process and others."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = _fields(Path("/proc/meminfo"))["MemAvailable"] * _KIB
    return min(available, _left_to_container())


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Run `work`, and tell how much more memory than before this process held at its peak."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    status = Path("/proc/self/status")
    _give_back_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is held now
    except OSError:  # where a container forbids it, nothing can be seen
        work()
        return 0
    before = _fields(status)["VmRSS"]
    work()
    return max(0, _fields(status)["VmHWM"] - before) * _KIB


def release(device: torch.device) -> None:
    """Give back what the allocator keeps of a device's memory, after there was not enough."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _give_back_freed_memory() -> None:
    """The C library keeps what was freed for the next time, which would then not be seen as taken."""
    with suppress(AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def _left_to_container() -> int:
    """What a control group of version 2 still allows; a great deal without one."""
    try:
        limit = (_CONTROL_GROUP / "memory.max").read_text().strip()
        used = int((_CONTROL_GROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return 2**62
    return 2**62 if limit == "max" else max(0, int(limit) - used)


def _fields(path: Path) -> dict[str, int]:
    """The first number of each line of a file such as `/proc/meminfo`."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[name] = int(number[0])
    return found
