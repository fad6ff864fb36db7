"""Whether llama.cpp survives a file: tried once in a process of its own.

Some damaged files, and builds that do not suit the processor, make llama.cpp abort or crash, which no Python can catch.
So a file is loaded and decoded with in another process the first time; what passed is remembered by file and build.

As a program: python -m specd.llama.trial REQUEST
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specd.errors import EngineError, SpecdError
from specd.llama import library
from specd.llama.engine import Engine, file_identity
from specd.llama.runtime import Placement, Runtime

TRIALS = "trials"  # name of the folder that remembers what passed, in the cache
_PROMPT = 48  # tokens
_EVERY_BYTE = "".join(map(chr, range(0x800))) + "\u2028\U0001f643"
_CHECK = re.compile(r"GGML_ASSERT\((.*)\) failed")
_MOST_SECONDS = 120.0  # for a small file; more for larger ones
_BYTES_PER_SECOND = 2e7  # of a slow disk


@dataclass(frozen=True, slots=True)
class Request:
    """How a file is to be loaded; the fields are Engine's."""

    path: str
    threads: int
    max_rows: int
    exact: bool = False
    runtime: Runtime = field(default_factory=Runtime)
    placement: Placement = field(default_factory=Placement)

    def run(self) -> None:
        """Load, use the vocabulary, and decode: a prompt, one token, all rows at once.

        Raises SpecdError where llama.cpp refuses.
        """
        with Engine(
            Path(self.path),
            threads=self.threads,
            max_rows=self.max_rows,
            exact=self.exact,
            runtime=self.runtime,
            placement=self.placement,
        ) as engine:
            for special in (False, True):
                engine.vocabulary.tokenize(_EVERY_BYTE, add_special=special, parse_special=special)
            engine.vocabulary.pieces()
            engine.allocate(_PROMPT + 1 + self.max_rows)
            tokens = np.full(
                _PROMPT + 1 + self.max_rows, min(max(0, engine.vocabulary.bos), engine.n_vocab - 1), np.int32
            )
            engine.sync(tokens[:_PROMPT])
            for number in (1, self.max_rows):
                engine.advance(tokens[:number])


def ensure_survival(request: Request, folder: Path) -> None:
    """Try a file unless it passed before. Raises EngineError when llama.cpp crashes or hangs; a file that it refuses
    in order is left to whoever loads it, as that error says more.

    folder:  remembers what passed
    """
    kept = folder / _key(request)
    if kept.exists():
        return
    size = Path(request.path).stat().st_size
    command = [sys.executable, "-m", __spec__.name, json.dumps(asdict(request))]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_MOST_SECONDS + size / _BYTES_PER_SECOND,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"llama.cpp did not get {request.path} to work within {error.timeout:.0f} s: the file is damaged, or the "
            "machine has too little memory for it."
        ) from error
    if result.returncode == 0:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            kept.touch()
        except OSError:
            pass  # it is tried again the next time
    elif result.returncode < 0:
        raise EngineError(_crash(request.path, -result.returncode, result.stderr.decode("utf-8", "replace")))


def _key(request: Request) -> str:
    how = {name: value for name, value in asdict(request).items() if name not in ("path", "threads")}
    what = [*file_identity(Path(request.path)), library.build(), how]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def _crash(path: str, number: int, stderr: str) -> str:
    if number == signal.SIGKILL:
        return f"The system ended the loading of {path}, most likely for want of memory. Take a smaller model."
    check = _CHECK.search(stderr)
    said = f" (it checks that {check[1]})" if check else ""
    return (
        f"llama.cpp crashes with {path}, by {signal.Signals(number).name}{said}: the file is damaged, or this build of "
        "llama.cpp does not suit the processor. Fetch the file again, or build again: make clean && make setup."
    )


def _read(text: str) -> Request:
    content = json.loads(text)
    where: dict[str, Any] = content["placement"]
    for name in ("devices", "tensor_split", "servers"):
        where[name] = tuple(where[name]) if where[name] is not None else None
    return Request(**{**content, "runtime": Runtime(**content["runtime"]), "placement": Placement(**where)})


if __name__ == "__main__":
    try:
        _read(sys.argv[1]).run()
    except SpecdError:
        sys.exit(1)
