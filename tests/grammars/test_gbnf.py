"""GBNF against the languages that it describes."""

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specd.errors import UsageError
from specd.grammars.gbnf import gbnf_grammar


class Bytes:
    """A token per byte."""

    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


BYTES = LLTokenizer(TokenizerWrapper(Bytes()))


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, gbnf_grammar(grammar, "it"), log_level=0)
    data = text.encode()
    return matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["", "y", "yesno"]),
        ('root ::= blank " x"\nblank ::= [ \\t]*', [" x", "   x", "\t x"], ["x", " y"]),
        ('root ::= a "b"\na ::= "a" | "ab"', ["ab", "abb"], ["a", "abbb"]),
        ('root ::= [a-c]+ ("-" [0-9]{2,3})?', ["a", "abc-12", "c-123"], ["d", "a-1", "a-1234"]),
        ('root ::= ("a"{2})*', ["", "aa", "aaaa"], ["a", "aaa"]),
        ('root ::= ("a"+)? "b"{0,1} "c"{1,}', ["c", "aac", "bcc"], ["", "bb"]),
        ("root ::= [^a-z\\n]", ["A", "é", "-"], ["a", "\n", ""]),
        ("root ::= [-+a]", ["-", "+", "a"], [","]),
        ('root ::= "\\"\\x41\\u00e9\\U0001F600\\n"', ['"Aé😀\n'], ['"Aé😀']),
        ("root ::= . .", ["é\n"], ["a"]),
        ('root ::= "(" root ")" | ""', ["", "(())"], ["(", "())"]),
        ('root ::= list # a comment\nlist ::=\n  "a" list\n  | "b" # ends\n', ["b", "aab"], ["a"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a"]),
        ("root ::= [a\\]\\\\]+", ["a]\\"], ["["]),
    ],
)
def test_languages(grammar: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not accepts(grammar, text)] == []
    assert [text for text in no if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a" | other', "it, line 1, column 16: there is no rule named other"),
        ('start ::= "a"', "no rule named root"),
        ('root ::= "a"\nroot ::= "b"', "the rule root is there twice"),
        ('root ::= ("a"', "ends where a rule is not complete"),
        ('root ::= "a\n', "it, line 1, column 10: not GBNF"),
        ('root ::= "a"\n\nb := "c"', "it, line 3, column 3: not GBNF"),
        ('root ::= "\\q"', r"there is no escape \q"),
        ('root ::= "\\ud800"', r"\ud800 is no character"),
        ("root ::= [z-a]", "the range z-a is empty"),
        ("root ::= []", "the class is empty"),
        ("root ::= [^]", "the class is empty"),
        ("", "ends where a rule is not complete"),
        ("# nothing", "ends where a rule is not complete"),
    ],
)
def test_faults_are_told_with_their_place(grammar: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        gbnf_grammar(grammar, "it")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
