"""A vocabulary that is small enough to think about."""

from specd.decoding.context import Tokens, as_tokens

PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


class Words:
    """A vocabulary of characters, some longer pieces, and two ends. It tokenises greedily, like no real one."""

    def __init__(self, *longer: str, characters: str = PRINTABLE, num_ends: int = 2, blank_first: bool = False) -> None:
        self._words = [*characters, *longer, *[""] * num_ends]
        self._ends = list(range(len(self._words) - 1, len(self._words) - 1 - num_ends, -1))
        self._longest_first = sorted(filter(None, self._words), key=len, reverse=True)
        self._blank_first = blank_first
        self.eos = len(self._words) - 1
        self.size = len(self._words)

    def pieces(self) -> list[bytes]:
        return [word.encode() for word in self._words]

    def ends(self) -> list[int]:
        return self._ends

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        text = f" {text}" if self._blank_first and not text.startswith("\n") else text
        tokens = []
        while text:
            word = next((word for word in self._longest_first if text.startswith(word)), "")
            if not word:
                raise ValueError(f"{text[0]!r} has no token")
            tokens.append(self._words.index(word))
            text = text[len(word) :]
        return as_tokens(tokens)

    def text(self, tokens: list[int]) -> str:
        return "".join(self._words[token] for token in tokens)
