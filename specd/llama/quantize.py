"""Requantising a model file with llama.cpp's own quantiser.

It cannot be interrupted and may end the process on a bad file, so it runs in a process of its own: this module, run
with `python -m`.
"""

import ctypes
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from specd.errors import EngineError, Interrupted

# Bits per weight, scales included: what a file of such a type takes at most, but for tensors that stay as they are.
TYPES = {
    "q2_k": 3.4, "q3_k_s": 3.5, "q3_k_m": 4.0, "q3_k_l": 4.3, "q4_0": 4.6, "q4_1": 5.1, "q4_k_s": 4.7, "q4_k_m": 5.0,
    "iq4_nl": 4.6, "iq4_xs": 4.4, "q5_0": 5.6, "q5_1": 6.1, "q5_k_s": 5.6, "q5_k_m": 5.8, "q6_k": 6.7, "q8_0": 8.6,
    "f16": 16.0, "bf16": 16.0, "f32": 32.0,
}  # fmt: skip
_TENSOR = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")


def quantize(
    source: Path, target: Path, kind: str, *, pure: bool, threads: int, progress: Callable[[int, int], None]
) -> None:
    """Write `source` to `target` with its weights in another type, one of TYPES.

    pure:      all matrices in this very type; otherwise llama.cpp keeps some of them finer
    progress:  told after each tensor how many are done, and of how many

    Raises EngineError with llama.cpp's reason, or Interrupted when the quantiser was stopped. What was written until
    then is left at `target`.
    """
    command = [sys.executable, "-m", "specd.llama.quantize", str(source), str(target), kind, str(pure), str(threads)]
    words: deque[str] = deque(["no reason was given"], maxlen=1)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            for line in process.stdout or ():
                if tensor := _TENSOR.search(line):
                    progress(int(tensor[1]), int(tensor[2]))
                elif line.startswith("error: "):
                    words.append(line.removeprefix("error: ").strip())
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code in (-signal.SIGINT, -signal.SIGTERM):
        raise Interrupted(f"Quantising {source.name} was stopped.")
    if code:
        raise EngineError(f"llama.cpp cannot write {source.name} as {kind}: {words[-1]}.")


def _main(source: str, target: str, kind: str, pure: str, threads: str) -> int:
    """In the process of its own: the log goes to stdout, and Ctrl-C ends it at once."""
    from specd.llama.library import C

    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def on_log(level: int, text: bytes | None, _: object) -> None:
        line = (text or b"").decode("utf-8", "replace").strip()
        if line:
            print(f"error: {line}" if level == 4 else line, flush=True)

    callback = C.llama_log_callback(on_log)
    C.llama_log_set(callback, None)
    params = C.llama_model_quantize_default_params()
    name = "LLAMA_FTYPE_ALL_F32" if kind == "f32" else f"LLAMA_FTYPE_MOSTLY_{kind.upper()}"
    params.ftype, params.pure, params.nthread = getattr(C, name), pure == "True", int(threads)
    params.allow_requantize = True
    return int(C.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
