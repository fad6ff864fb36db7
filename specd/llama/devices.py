"""What the machine gives this process."""

import ctypes
import math
import os
import platform
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd.errors import EngineError

_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}  # GGML_BACKEND_DEVICE_TYPE_…
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """How many cores this process may use: its affinity, cut to the container's CPU quota, at least 1.

    Both models may use all of them: they take turns.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    quota = cgroup_quota(cgroup)
    return max(1, min(cores, math.floor(quota)) if quota is not None else cores)


def cgroup_quota(cgroup: Path = _CGROUP) -> float | None:
    """The CPU quota of the cgroup in cores, the tightest of its parents included; None when there is none."""
    quotas = [quota for folder in _own_folders(cgroup) if (quota := _quota_in(folder)) is not None]
    return min(quotas, default=None)


def _own_folders(cgroup: Path) -> list[Path]:
    """The folders that limit this process: inside a container its cgroup is mounted at the top."""
    folders = [cgroup, cgroup / "cpu"]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            own = cgroup / ("cpu" if controllers else "") / path.lstrip("/")
            folders += [own, *(parent for parent in own.parents if parent.is_relative_to(cgroup))]
    return folders


def _quota_in(folder: Path) -> float | None:
    try:
        if (file := folder / "cpu.max").exists():  # version 2: "max 100000" or "150000 100000"
            quota, period = file.read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())  # version 1: -1 is none
        return quota_us / int((folder / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def available_memory(cgroup: Path = _CGROUP) -> int:
    """How many bytes this process may still take: what the system has left, swap included, within the limits of the
    process (ulimit -v) and of its cgroup."""
    return max(0, min([*_of_the_system(), *_within_limit(), *_in_cgroups(cgroup)], default=2**62))


def _of_the_system() -> list[int]:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return [1024 * sum(int(fields[name].split()[0]) for name in ("MemAvailable", "SwapFree"))]
    except (OSError, ValueError, KeyError):  # macOS gives memory to who asks, and swaps
        return []


def _within_limit() -> list[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    try:
        return [limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()]
    except (OSError, ValueError):
        return [limit]


def _in_cgroups(cgroup: Path) -> list[int]:
    """Memory that only caches files is given back when it is needed, so it counts as free."""
    free = []
    for folder in _own_folders(cgroup):
        try:
            limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            free.append(limit - used + int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0)))
        except (OSError, ValueError):  # no limit is "max"
            continue
    return free


def describe() -> dict[str, str | int]:
    """The machine in words, for reports: system, processor, and bytes of memory."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _processor() -> str:
    try:
        if platform.system() == "Darwin":
            return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except (OSError, subprocess.SubprocessError):
        return platform.machine()


@dataclass(frozen=True, slots=True)
class Device:
    """What llama.cpp can compute on. kind: cpu, gpu, igpu or accelerator."""

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int

    @property
    def is_remote(self) -> bool:
        """Whether it is an RPC server's."""
        return self.name.startswith("RPC")


def devices() -> list[Device]:
    """All devices that this build of llama.cpp sees, in its own order."""
    library = _library()
    found = []
    for device in _pointers():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        library.ggml_backend_dev_memory(device, free, total)
        name, description = (
            (getattr(library, f"ggml_backend_dev_{which}")(device) or b"").decode("utf-8", "replace")
            for which in ("name", "description")
        )
        kind = _KINDS.get(library.ggml_backend_dev_type(device), "other")
        found.append(Device(name, description, kind, free.value, total.value))
    return found


def device_list(names: Sequence[str]) -> Any:
    """What llama.cpp takes for the devices of these names: their pointers, and a null behind them.

    Raises EngineError, with the names there are, for another.
    """
    known = {device.name: pointer for device, pointer in zip(devices(), _pointers(), strict=True)}
    for name in names:
        if name not in known:
            raise EngineError(f"There is no device {name} for llama.cpp here; there are {', '.join(known)}.")
    return (ctypes.c_void_p * (len(names) + 1))(*(known[name] for name in names), None)


def _pointers() -> list[int]:
    library = _library()
    return [library.ggml_backend_dev_get(i) for i in range(library.ggml_backend_dev_count())]


def _library() -> Any:
    """llama.cpp, with ggml's device functions, which the bindings do not wrap."""
    from specd.llama.library import C

    library = C._lib
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    library.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    for name in ("name", "description"):
        getattr(library, f"ggml_backend_dev_{name}").restype = ctypes.c_char_p
        getattr(library, f"ggml_backend_dev_{name}").argtypes = [ctypes.c_void_p]
    return library


def has_gpu() -> bool:
    """Whether this build of llama.cpp sees a device that has memory of its own, or shares it as a GPU."""
    return any(device.kind not in ("cpu", "accelerator") for device in devices())
