"""What llama.cpp does to the process."""

import subprocess
import sys

_ABORTS = """
from specd.errors import EngineError
from specd.llama import library
from specd.llama.library import C, Interrupt
library.survive_aborts()
for what in ("one", "two"):
    try:
        library.compute(Interrupt(), lambda: C._lib.ggml_abort(b"file.c", 7, what.encode()))
    except EngineError as error:
        print(error, library.has_aborted(), flush=True)
import os
os._exit(3)
"""
_NOBODY_WAITS = """
from specd.llama import library
library.survive_aborts()
print("what was said before", end="")
library.C._lib.ggml_abort(b"file.c", 7, b"three")
"""


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_where_llama_cpp_would_end_the_process_its_caller_gets_an_error() -> None:
    """And every later caller the same: it must not be called again."""
    result = _run(_ABORTS)
    assert (result.returncode, result.stderr) == (3, "")
    assert result.stdout == "llama.cpp gave up: one. True\n" * 2


def test_where_nobody_waits_one_line_says_so() -> None:
    result = _run(_NOBODY_WAITS)
    assert (result.returncode, result.stdout) == (1, "what was said before")
    assert result.stderr == "specd: llama.cpp gave up: three.\n"
