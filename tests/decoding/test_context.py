import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specd.decoding.context import TokenBuffer, as_tokens, common_prefix_length

TOKENS = st.lists(st.integers(0, 3), max_size=40)


@given(TOKENS, TOKENS)
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix_length(as_tokens(a), as_tokens(b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(st.lists(st.one_of(TOKENS, st.integers(0, 40))))
def test_a_buffer_behaves_like_a_list(steps: list[list[int] | int]) -> None:
    buffer, expected = TokenBuffer(capacity=4), []
    for step in steps:
        if isinstance(step, int):
            expected = expected[:step]
            buffer.truncate(min(step, len(buffer)))
        else:
            expected = expected + step
            buffer.extend(step)
        assert buffer.view.tolist() == expected
        assert len(buffer) == len(expected)


def test_tokens_that_follow_are_not_kept() -> None:
    buffer = TokenBuffer([1, 2], capacity=2)
    assert buffer.followed_by([3, 4, 5]).tolist() == [1, 2, 3, 4, 5]
    assert buffer.view.tolist() == [1, 2]
    buffer.extend([6])
    assert buffer.view.tolist() == [1, 2, 6]


def test_a_view_cannot_be_written() -> None:
    assert not TokenBuffer([1, 2]).view.flags.writeable
    assert TokenBuffer([1, 2]).view.dtype == np.int32
