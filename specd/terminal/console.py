"""Words to the user beside the answer."""

import os
import sys
from typing import TextIO

from specd.terminal.text import is_terminal


def uses_color(stream: TextIO) -> bool:
    """Whether to use colours and dim text: on a terminal, unless NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def warn(text: str) -> None:
    """One line on stderr, terminal or not: something was not as asked."""
    print(f"specd: warning: {' '.join(text.split())}", file=sys.stderr)


def silent(text: str) -> None:
    """In place of `warn`, where the same was said before."""
