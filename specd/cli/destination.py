"""Where an answer goes: standard output as it comes, or a file once it is whole."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from specd.errors import UsageError
from specd.models.folders import write_whole
from specd.terminal.text import Output


class Destination:
    """Gives an Output within a `with` block.

    A file gets all at once at the end of the block; when the block fails, what there is goes to FILE.part, and the
    file stays as it was.

    file:  None for standard output
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._text = io.StringIO()

    def __enter__(self) -> Output:
        self._output = Output(sys.stdout if self._file is None else self._text)
        return self._output

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._output.finish()
        text = self._text.getvalue()
        if self._file is None or (failure is not None and not text):
            return
        if failure is None:
            write_whole(self._file, text)
        else:
            write_whole(self._file.with_name(f"{self._file.name}.part"), text)


def check_writable(file: Path | None, option: str) -> None:
    """Before anything is computed. Raises UsageError where a file cannot be written."""
    if file is None:
        return
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{option} {file}: there is no folder {folder}.")
    if file.is_dir():
        raise UsageError(f"{option} {file} is a folder: give a file.")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {file} cannot be written: permission denied.")
