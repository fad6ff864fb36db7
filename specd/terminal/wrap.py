"""Words that stream are kept whole at the end of a line."""

import re
from collections.abc import Callable

from rich.cells import cell_len

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")
_FENCE = "```"
_AS_IT_IS = ("    ", "\t", "|")  # beginnings of lines that are code or tables


class WordWrap:
    """Breaks lines at blanks so that they fit a width; code and tables are left as they are.

    A word is written when the blank behind it comes, or it is longer than a line.

    write:  where the text goes, in pieces with a style each
    width:  in cells; asked anew for each line, as windows change
    """

    def __init__(self, write: Callable[[str, str], None], width: Callable[[], int]) -> None:
        self._write = write
        self._width = width
        self._word: list[tuple[str, str]] = []
        self._blank = ("", "")
        self._line = ""  # as the model wrote it
        self._column = 0  # on the screen
        self._in_code = False

    def feed(self, text: str, style: str = "") -> None:
        """More text."""
        for piece in _PIECES.findall(text):
            if piece == "\n":
                self._end_line(style)
            elif piece.isspace():
                self._end_word()
                self._blank = (self._blank[0] + piece, style)
                self._line += piece
            else:
                self._line += piece
                self._word.append((piece, style))
                if self._column + self._word_width > self._width():
                    self._end_word()

    def finish(self) -> None:
        """No more text comes."""
        self._end_word()

    @property
    def _word_width(self) -> int:
        return sum(cell_len(piece) for piece, _ in self._word)

    def _end_line(self, style: str) -> None:
        self._end_word()
        self._write("\n", style)
        if self._line.lstrip().startswith(_FENCE):
            self._in_code = not self._in_code
        self._line, self._column, self._blank = "", 0, ("", "")

    def _end_word(self) -> None:
        if not self._word:
            return
        blank, style = self._blank
        needed = cell_len(blank) + self._word_width
        is_text = not self._in_code and not self._line.startswith((*_AS_IT_IS, _FENCE))
        if is_text and self._column and blank and self._column + needed > self._width():
            self._write("\n", style)
            self._column = 0
        elif blank:
            self._write(blank, style)
            self._column += cell_len(blank)
        for piece, piece_style in self._word:
            self._write(piece, piece_style)
        self._column += self._word_width
        self._word, self._blank = [], ("", "")
