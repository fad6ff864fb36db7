"""Signals that stop what is being computed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specd.llama.library import Interrupt


@contextmanager
def stopping(interrupt: Interrupt) -> Iterator[list[int]]:
    """Signals stop the computation, which then ends in order; a second one ends the process. Gives those that came.

    A signal that is ignored already (nohup, a background job of a script) stays ignored.
    """

    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
