"""GBNF, llama.cpp's grammar format, as a grammar for llguidance.

Literals and classes become single characters: llguidance's longer terminals take the longest match and never give
back, so that a rule of blanks before " x" would swallow the blank that the literal needs.
"""

import re
import sys
from collections.abc import Sequence

import lark
from llguidance import LLMatcher

from specd.errors import UsageError

_GBNF = lark.Lark(
    r"""
    start: rule+
    rule: HEAD alternatives
    alternatives: sequence ("|" sequence)*
    sequence: repeated*
    repeated: (LITERAL | CLASS | ANY | NAME | group) TIMES*
    group: "(" alternatives ")"
    HEAD.2: /[a-zA-Z0-9_-]+\s*::=/
    NAME: /[a-zA-Z0-9_-]+/
    LITERAL: /"(\\.|[^"\\\n])*"/
    CLASS: /\[(\\.|[^\]\\\n])*\]/
    ANY: "."
    TIMES: /[*+?]|\{\s*\d+\s*(,\s*\d*\s*)?\}/
    COMMENT: /#[^\n]*/
    %ignore COMMENT
    %ignore /\s+/
    """,
    parser="lalr",
)
_CHARACTER = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|.", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_Tree = lark.Tree[lark.Token]
_NOTHING = '""'
_EVERYTHING = ("\0", chr(sys.maxunicode))


def gbnf_grammar(text: str, name: str) -> str:
    """The grammar of the texts that the rule `root` describes. Raises UsageError, with the place.

    name:  how the user calls it
    """
    try:
        rules = [_tree(each) for each in _GBNF.parse(text).children]
        heads = [_head(rule) for rule in rules]
        if twice := next((head for i, head in enumerate(heads) if head in heads[:i]), None):
            raise UsageError(f"{name}: the rule {twice} is there twice.")
        if "root" not in heads:
            raise UsageError(f"{name} has no rule named root, where every grammar begins.")
        names = {head: "start" if head == "root" else f"r{i}" for i, head in enumerate(heads)}
        lines = [
            f"{names[head]}: {_alternatives(_tree(rule.children[1]), names)}"
            for head, rule in zip(heads, rules, strict=True)
        ]
    except lark.UnexpectedInput as error:
        if isinstance(error, lark.UnexpectedToken) and error.token.type == "$END":
            raise UsageError(f"{name} ends where a rule is not complete.") from error
        found = error.get_context(text, span=20).splitlines()[0].strip() or "the end"
        raise UsageError(f"{name}, line {error.line}, column {error.column}: not GBNF: {found}") from error
    except _Fault as fault:
        raise UsageError(f"{name}, line {fault.token.line}, column {fault.token.column}: {fault}.") from fault
    grammar = LLMatcher.grammar_from_lark("\n".join(["%llguidance {}", *lines]))
    if reason := LLMatcher.validate_grammar(grammar):
        raise UsageError(f"{name} cannot be followed: {reason.splitlines()[0]}.")
    return grammar


class _Fault(Exception):
    """Something at a token that is not as it must be."""

    def __init__(self, token: lark.Token, message: str) -> None:
        super().__init__(message)
        self.token = token


def _head(rule: _Tree) -> str:
    return str(rule.children[0]).removesuffix("::=").strip()


def _tree(part: _Tree | lark.Token) -> _Tree:
    assert isinstance(part, lark.Tree)
    return part


def _alternatives(tree: _Tree, names: dict[str, str]) -> str:
    sequences = (
        " ".join(_repeated(_tree(each), names) for each in _tree(sequence).children) for sequence in tree.children
    )
    return " | ".join(sequence or _NOTHING for sequence in sequences)


def _repeated(tree: _Tree, names: dict[str, str]) -> str:
    what, *times = tree.children
    written = _atom(what, names)
    for each in times:  # what is repeated may be repeated again
        written = f"({written}){''.join(str(each).split())}"
    return written


def _atom(what: _Tree | lark.Token, names: dict[str, str]) -> str:
    """A part that stands for itself."""
    if isinstance(what, lark.Tree):
        return f"({_alternatives(_tree(what.children[0]), names)})"
    if what.type == "LITERAL":
        return f"({' '.join(_class([(c, c)]) for c in _characters(what)) or _NOTHING})"
    if what.type == "ANY":
        return _class([_EVERYTHING])
    if what.type == "NAME":
        if what not in names:
            raise _Fault(what, f"there is no rule named {what}")
        return names[what]
    characters = _characters(what)
    negated = what.startswith("[^")
    return _class(_ranges(characters[1:] if negated else characters, what), negated=negated)


def _characters(token: lark.Token) -> list[str]:
    """Between the first and the last sign of a literal or a class, with escapes resolved."""
    return [_character(sign, token) for sign in _CHARACTER.findall(token[1:-1])]


def _character(sign: str, token: lark.Token) -> str:
    if len(sign) == 1:
        return sign
    if sign[1] in "xuU" and len(sign) > 2:
        code = int(sign[2:], 16)
        if code > sys.maxunicode or 0xD800 <= code < 0xE000:
            raise _Fault(token, f"{sign} is no character")
        return chr(code)
    if sign[1] not in _ESCAPES:
        raise _Fault(token, f"there is no escape {sign}")
    return _ESCAPES[sign[1]]


def _ranges(characters: Sequence[str], token: lark.Token) -> list[tuple[str, str]]:
    """First and last of each range; a dash at the beginning or the end stands for itself."""
    ranges, i = [], 0
    while i < len(characters):
        is_range = i + 2 < len(characters) and characters[i + 1] == "-"
        first, last = characters[i], characters[i + 2 if is_range else i]
        if first > last:
            raise _Fault(token, f"the range {first}-{last} is empty")
        ranges.append((first, last))
        i += 3 if is_range else 1
    if not ranges:
        raise _Fault(token, "the class is empty")
    return ranges


def _class(ranges: Sequence[tuple[str, str]], *, negated: bool = False) -> str:
    """A regular expression for one character."""
    inside = "".join(rf"\u{{{ord(first):x}}}-\u{{{ord(last):x}}}" for first, last in ranges)
    return f"/[{'^' if negated else ''}{inside}]/"
