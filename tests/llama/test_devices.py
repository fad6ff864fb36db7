import os
import subprocess
import sys
from pathlib import Path

import pytest

from specd.llama.devices import available_memory, cgroup_quota, usable_cores


def own_cgroup(name: str) -> object:
    real = Path.read_text

    def read_text(self: Path, *arguments: object, **options: object) -> str:
        return name if str(self) == "/proc/self/cgroup" else real(self, *arguments, **options)  # type: ignore[arg-type]

    return read_text


@pytest.mark.parametrize(
    ("content", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5), ("broken", None)]
)
def test_the_quota_of_version_2(tmp_path: Path, content: str, cores: float | None) -> None:
    """User case 16: containers limit by quota, not by visible cores."""
    (tmp_path / "cpu.max").write_text(content)
    assert cgroup_quota(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("200000", 2.0)])
def test_the_quota_of_version_1(tmp_path: Path, quota: str, cores: float | None) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cgroup_quota(tmp_path) == cores


def test_the_tightest_of_the_parents_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", own_cgroup("0::/a/b\n"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("100000 100000")
    (tmp_path / "a" / "b" / "cpu.max").write_text("300000 100000")
    assert cgroup_quota(tmp_path) == 1.0


def test_cores_are_those_of_the_affinity_within_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores(tmp_path) == 8
    (tmp_path / "cpu.max").write_text("250000 100000")
    assert usable_cores(tmp_path) == 2
    (tmp_path / "cpu.max").write_text("20000 100000")
    assert usable_cores(tmp_path) == 1


def test_a_system_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(tmp_path) == 6


def test_memory_is_what_is_left_within_all_limits(tmp_path: Path) -> None:
    free = available_memory(tmp_path)
    assert 10**8 < free < 2**62
    (tmp_path / "memory.max").write_text("50000000\n")
    (tmp_path / "memory.current").write_text("30000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 4000000\nactive_file 1000000\n")
    assert available_memory(tmp_path) == 25_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 10**8


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit is not kept")
def test_the_limit_of_the_process_counts() -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, resource.RLIM_INFINITY))\n"
        "from specd.llama.devices import available_memory; print(available_memory())"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 500_000_000 < int(result.stdout) < 2_000_000_000
