"""What the machine gives this process."""

import ctypes
import math
import os
import platform
import subprocess
from pathlib import Path

_CPU_TYPES = (0, 3)  # GGML_BACKEND_DEVICE_TYPE_CPU, and accelerators that work in the CPU's memory
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


def has_gpu() -> bool:
    """Whether this build of llama.cpp sees a device that is not the CPU."""
    from specd.llama.library import C

    library = C._lib  # the bindings do not wrap ggml's device functions
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    devices = map(library.ggml_backend_dev_get, range(library.ggml_backend_dev_count()))
    return any(library.ggml_backend_dev_type(device) not in _CPU_TYPES for device in devices)
