"""The cache of model files, and the record of which were checked."""

import hashlib
import json
import shutil
from pathlib import Path

from specd.errors import ChecksumMismatch, NoSpace
from specd.models.folders import cache_folder, write_whole
from specd.models.progress import Progress
from specd.models.registry import Model

_CHUNK = 1 << 20  # bytes
_NOTED = ("path", "bytes", "mtime_ns")


class Store:
    """Files under `<cache>/models`, and for each checked file, wherever it is, a note of its size and date.

    A noted file is trusted until its size or date changes: hashing 1 GB takes seconds.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def path(self, model: Model) -> Path:
        """Where this cache keeps a model, whether or not it is there."""
        return self.folder / "models" / (model.sha256 or "unchecked")[:16] / model.file

    def lock_path(self, model: Model) -> Path:
        """The lock that a process holds while it fetches the model."""
        return self.folder / "locks" / f"{_key(model)}.lock"

    def recall(self, model: Model) -> Path | None:
        """The model's file, if it was checked before and has not changed since."""
        try:
            name, *state = map(json.loads(self._note_path(model).read_text()).__getitem__, _NOTED)
            if state == _state(Path(name)):
                return Path(name)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def note(self, model: Model, path: Path) -> Path:
        """Remember that this file was checked. Gives the path back."""
        note = dict(zip(_NOTED, [str(path), *_state(path)], strict=True))
        write_whole(self._note_path(model), json.dumps(note))
        return path

    def check(self, model: Model, path: Path, sha256: str | None, progress: Progress) -> None:
        """Compare size and sha256 of a file with what is expected.

        sha256:  None where nobody published one; then only the size is compared

        Raises ChecksumMismatch.
        """
        size = path.stat().st_size
        if model.bytes is not None and size != model.bytes:
            raise ChecksumMismatch(
                f"{model.name}: {path} has {size} bytes, {model.bytes} were expected: it is incomplete or another file."
            )
        if sha256 is not None:
            found = _sha256(path, progress)
            if found != sha256:
                raise ChecksumMismatch(
                    f"{model.name}: {path} has sha256 {found[:16]}…, expected was {sha256[:16]}…: not the same bytes."
                )

    def _note_path(self, model: Model) -> Path:
        return self.folder / "checked" / f"{_key(model)}.json"


def require_space(folder: Path, num_bytes: int, what: str) -> None:
    """Raise NoSpace when the disk of `folder` has less than `num_bytes` free."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise NoSpace(
            f"{what} needs {num_bytes / 1e9:.2f} GB, {existing} has {free / 1e9:.2f} GB free. "
            "Make room, or move the cache with SPECD_CACHE (HF_HOME for files from the hub)."
        )


def checksum(model: Model, path: Path, progress: Progress) -> str:
    """The sha256 of a model's file: the known one, by which it was checked, or computed now."""
    return model.sha256 or _sha256(path, progress)


def _key(model: Model) -> str:
    path = str(model.path.resolve()) if model.path else None
    identity = [path, model.hub, model.revision, model.file, model.sha256, model.bytes, model.wheels]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]


def _state(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    progress.start(f"checking {path.name}", path.stat().st_size)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                progress.advance(len(chunk))
    finally:
        progress.finish()
    return digest.hexdigest()
