"""The llama.cpp library: loading it, its log, and stopping its work.

Importing this module loads the library (0.4 s), so commands import it only when they need it.
"""

import ctypes
import importlib.metadata
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from specd.errors import EngineError

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort must not start a debugger

try:
    import llama_cpp.llama_cpp as _bindings
except (ImportError, OSError, RuntimeError) as error:
    raise EngineError(
        f"The llama.cpp bindings do not load ({error}). Install them again: make clean && make setup, "
        "or pip install --force-reinstall --no-cache-dir llama-cpp-python."
    ) from error

C: Any = _bindings
_Result = TypeVar("_Result")
_MADV_DONTNEED = 4
_WARN, _ERROR, _CONTINUED = 3, 4, 5  # ggml_log_level
_SAYS_NOTHING = "failed to load model"
_complaints: deque[str] = deque(maxlen=8)
_last_level = 0
_abort_reason: str | None = None


def _on_log(level: int, text: bytes | None, _: object) -> None:
    global _last_level
    level = _last_level if level == _CONTINUED else level
    _last_level = level
    line = (text or b"").decode("utf-8", "replace").strip()
    if level in (_WARN, _ERROR) and line:
        _complaints.append(line)


_log_callback = C.llama_log_callback(_on_log)  # referenced here, or it would be collected while in use
C.llama_log_set(_log_callback, None)
C.llama_backend_init()


def build() -> str:
    """The version of the bindings, and what their llama.cpp was built for and found on this machine."""
    return f"{importlib.metadata.version('llama-cpp-python')} {C.llama_print_system_info().decode()}"


def forget_complaints() -> None:
    """Start anew: what llama.cpp warned of before does not explain what comes next."""
    _complaints.clear()


def last_complaint() -> str:
    """The last warning or error that llama.cpp logged since `forget_complaints`, or a remark that none was.

    Without the names of its functions; and where it says only that it failed, what it said before.
    """
    reasons = [line for line in _complaints if not line.endswith(_SAYS_NOTHING)] or list(_complaints)
    return reasons[-1].rpartition("error loading model: ")[2] if reasons else "llama.cpp gave no reason"


def release_file_pages(path: Path) -> None:
    """Let the system take back the memory of a mapped file; what is still needed is read again on first use.

    llama.cpp repacks most weights of a CPU model into its own memory, and the pages of the file that it copied
    from would stay counted to this process: 0.6 GB for a 1.6 GB pair. Linux only; elsewhere nothing happens.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in lines:
        if line.endswith(f" {path.resolve()}"):
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            libc.madvise(start, end - start, _MADV_DONTNEED)  # the mapping is of a file and read-only: safe


def survive_aborts() -> None:
    """From now on, where llama.cpp would end the process, whoever called it gets an EngineError with its reason.

    The thread that found the fault never goes back into llama.cpp, and nothing can be computed any more: every later
    call raises the same error.
    """
    C._lib.ggml_set_abort_callback(_abort_callback)


def has_aborted() -> bool:
    """Whether llama.cpp would have ended the process: it must not be called again, not even to free memory."""
    return _abort_reason is not None


def _on_abort(message: bytes | None) -> None:
    global _abort_reason
    said = (message or b"").decode("utf-8", "replace")
    _abort_reason = " ".join(re.sub(r"^\S+:\d+: ", "", said).split()).rstrip(".")
    error = EngineError(f"llama.cpp gave up: {_abort_reason}.")
    if _current is None:  # nobody waits who could be told
        sys.stdout.flush()
        os.write(2, f"specd: {error}\n".encode())
        os._exit(1)
    waiting = _current
    while True:
        waiting[1].put((None, error))
        waiting = _calls.get()


_abort_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)


class Interrupt:
    """A flag that llama.cpp reads while it computes, without Python: set it and the work stops within 10 ms.

    One may be shared by several engines. Setting it is safe in a signal handler.
    """

    def __init__(self) -> None:
        self._flag = ctypes.create_string_buffer(2)

    def set(self) -> None:
        """Ask for a stop: work in progress, and any that starts before `clear`, ends with Interrupted."""
        self._flag[0] = b"\x01"

    def clear(self) -> None:
        """Allow work again."""
        self._flag[0] = b"\x00"

    def is_set(self) -> bool:
        """Whether a stop is asked for."""
        return self._flag[0] != b"\x00"

    def attach(self, context: object) -> None:
        """Make a llama.cpp context stop when the flag is set: strlen(flag) is the callback."""
        callback = ctypes.cast(ctypes.CDLL(None).strlen, C.ggml_abort_callback)
        C.llama_set_abort_callback(context, callback, ctypes.addressof(self._flag))


# All engines compute on this one thread. The main thread stays free for signals, and two models that take
# turns share one set of llama.cpp's worker threads: with a set each, the idle one would spin on the cores
# that the other needs.
_Outcome = SimpleQueue[Any]
_Call = tuple[Callable[[], Any], _Outcome]
_calls: SimpleQueue[_Call] = SimpleQueue()
_current: _Call | None = None


def _work() -> None:
    global _current
    while True:
        _current = call, outcome = _calls.get()
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))
        _current = None


_computing_thread = threading.Thread(target=_work, name="llama", daemon=True)
_computing_thread.start()


def compute(interrupt: Interrupt, call: Callable[[], _Result]) -> _Result:
    """Run something long on the computing thread and wait for it; on that thread itself, just run it.

    Handing over costs 0.1 ms, so a whole generation is best handed over at once, its decodes with it. An
    exception that arrives meanwhile in the calling thread (KeyboardInterrupt) stops the call, then goes on.
    """
    if threading.current_thread() is _computing_thread:
        return call()
    outcome = _Outcome()
    try:
        _calls.put((call, outcome))
        result, error = outcome.get()
    except BaseException:
        interrupt.set()
        _calls.put((int, fence := _Outcome()))  # calls are served in order: when this one is, ours is over
        fence.get()
        interrupt.clear()
        raise
    if error is not None:
        raise error
    return cast(_Result, result)
