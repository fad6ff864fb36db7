"""The start of the command: signals are in order before anything large is loaded."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

_INTERRUPTED = 130


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)  # nothing was begun, and nothing is to be said


def main() -> None:
    """Entry point of the console script."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _end)
    from specd.cli.app import run

    code = run()
    library = sys.modules.get("specd.llama.library")
    if library is not None and library.has_aborted():  # its threads wait for ever, and so would a usual end
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
