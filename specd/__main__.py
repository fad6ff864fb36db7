"""The start of the command: signals are in order before anything large is loaded."""

import os
import signal
import sys
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

    sys.exit(run())


if __name__ == "__main__":
    main()
