"""The machine: device, threads, and what a measurement depends on.

Nothing is chosen behind the user's back: every choice is an argument, and `auto` means what is said below.
"""

from __future__ import annotations

import gc
import importlib
import logging
import math
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from forerun.core import cgroup
from forerun.core.errors import ConfigError, check_least
from forerun.core.native import native_problem
from forerun.system import processes

_log = logging.getLogger(__name__)

_MMAP_THRESHOLD = -3
"""An option of glibc's mallopt: larger blocks are mapped and given back one by one. Set, it no longer grows."""
_ARENA_MAX = -8
"""An option of glibc's mallopt: heaps that threads are spread over, each with freed memory of its own."""

NO_TORCH = (
    "torch is not installed: it comes with forerun's extra torch, and with the extra lab for what measures, trains or "
    "quantizes (pip install '.[torch]' in a clone; docs/installing.md)"
)
"""The message where something needs torch and it is missing."""

# CPU features (Linux names) that decide which kernels can run, best first.
_FEATURES = (
    *("amx_int8", "avx512_vnni", "avx512f", "avx_vnni", "avx2", "fma", "f16c"),
    *("i8mm", "asimddp", "asimd"),
)


def choose_device(name: str = "auto") -> str:
    """Return the device of that name; `auto` is the CPU, the only one with kernels. Raises ConfigError."""
    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not index.isdecimal()):
        raise ConfigError(f"unknown device '{name}': write auto, cpu, cuda or cuda:<number>")
    return "cpu" if kind == "auto" else name


def num_threads(wanted: int | None = None) -> int:
    """Return how many threads compute: those that are wanted, by default one a usable core. Raises ConfigError."""
    count = num_cores() if wanted is None else wanted
    check_least("threads", count, 1)
    return count


def let_threads_sleep() -> None:
    """Let torch's threads, once it is imported, wait asleep: spinning takes the cores from other processes."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def num_cores(root: Path = Path("/")) -> int:
    """Return the number of physical cores this process may use, by affinity and a container's share of time.

    A share is rounded up: two threads with the time of 1.5 processors do more than one. `root` is the folder with
    `proc` and `sys`.
    """
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cpus = processes.usable_cpus()
    cores = {_read(root / topology.format(cpu)) or str(cpu) for cpu in cpus}
    quota = cgroup.cpu_quota(root)
    return len(cores) if quota is None else max(1, min(len(cores), math.ceil(quota)))


def socket_cpus(root: Path = Path("/")) -> set[int]:
    """Return the processors of one socket, that of which most may be used: all, where all memory is equally near.

    Processors that share a socket or a memory node belong together. `root` is the folder with `sys`.
    """
    cpus = processes.usable_cpus()
    nodes = [
        _cpu_list(_read(path) or "")
        for path in root.glob("sys/devices/system/node/node[0-9]*/cpulist")
    ]
    if len([node for node in nodes if node & cpus]) < 2:
        return cpus
    sockets: dict[str, set[int]] = {}
    for cpu in cpus:
        package = root / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
        sockets.setdefault(_read(package) or f"of {cpu}", set()).add(cpu)
    groups: list[set[int]] = []
    for part in (*sockets.values(), *(node & cpus for node in nodes)):
        near = [group for group in groups if group & part]
        groups = [group for group in groups if not group & part] + [part.union(*near)]
    return max(groups, key=lambda group: (len(group), -min(group, default=0)))


def stay_on_one_socket() -> str | None:
    """Bind this thread, and those that it starts, to one of several sockets; returns what to tell the user, or None.

    Memory is taken where it is touched first, so weights come to lie beside the threads that read them.
    """
    cpus, all_cpus = socket_cpus(), processes.usable_cpus()
    if cpus == all_cpus or not processes.bind_thread(cpus):
        return None
    return (
        f"on one of several sockets, {len(cpus)} of {len(all_cpus)} processors: --threads takes all of them, "
        "and a process on each answers more requests (docs/installing.md)"
    )


def _cpu_list(text: str) -> set[int]:
    """Read the processors of "0-3,8"."""
    bounds = [part.split("-") for part in text.split(",") if part]
    return {cpu for part in bounds for cpu in range(int(part[0]), int(part[-1]) + 1)}


def available_nbytes() -> int | None:
    """Return the memory a new program can have without swapping, within a container's limit; None if unknown."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")) or "")
    bounds = [int(available[1]) * 1024] if available else []
    left = cgroup.memory_left()
    if left is not None:
        bounds.append(max(0, left))
    return min(bounds, default=None)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Make many objects that stay, without the garbage collector looking through them again and again."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def return_freed() -> None:
    """Give memory that was freed back to the system, where the C library keeps it (glibc)."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Give freed memory back without a search for garbage, which takes long where there are many objects."""
    trim = processes.c_function("malloc_trim")
    if trim is not None:
        trim(0)


def return_at_once() -> None:
    """Make the C library (glibc) return freed blocks of a megabyte or more at once, from now on."""
    _mallopt(_MMAP_THRESHOLD, 1 << 20)


def share_heaps() -> None:
    """Let all threads share two heaps of the C library (glibc), from now on: a server has many idle threads."""
    _mallopt(_ARENA_MAX, 2)


def _mallopt(option: int, value: int) -> None:
    set_option = processes.c_function("mallopt")
    if set_option is not None:
        set_option(option, value)


@cache
def process_nbytes() -> int:
    """Return the bytes that the process held when this was first asked for: before the first model was opened."""
    return resident_nbytes()


def resident_nbytes() -> int:
    """Return the process's memory now; where the system does not tell, the most it has been."""
    return _status_nbytes("VmRSS")


def peak_nbytes() -> int:
    """Return the most memory the process has had. Linux's `ru_maxrss` would begin at what its parent had."""
    return _status_nbytes("VmHWM")


def _status_nbytes(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
    except (OSError, StopIteration):
        return processes.most_resident_nbytes()


def torch_problem() -> str | None:
    """Return why torch cannot be used, and how to get it; None if it can."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        return NO_TORCH
    return None


def report() -> dict[str, str | int | None]:
    """Describe what a measurement depends on: versions, CPU and its features; `native` is "yes" or why not."""
    import forerun

    present = (_cpu_field("flags") or _cpu_field("Features") or "").split()
    return {
        "forerun": forerun.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_field("model name") or platform.machine(),
        "isa": " ".join(feature for feature in _FEATURES if feature in present),
        "cores": num_cores(),
        "native": native_problem() or "yes",
    }


def _cpu_field(name: str) -> str | None:
    """Return the first processor's entry of /proc/cpuinfo; None where there is none."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
