"""The engine on SmolLM2 135M: positions, rows, checks, interruption."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specd.decoding.context import Tokens, as_tokens
from specd.errors import EngineError, Interrupted, NoSuchFile
from specd.llama.engine import Engine
from tests.model.conftest import open_engine, path_of

TEXT = "The quick brown fox jumps over the lazy dog. " * 60
CLOSE = 2.0  # logits: differently shaped batches round differently, by up to 1.5; other contexts are far off


@pytest.fixture
def tokens(smollm2: Engine) -> Tokens:
    smollm2.rollback(0)
    return smollm2.vocabulary.tokenize(TEXT, add_special=False, parse_special=False)


def fresh_row(engine: Engine, tokens: Tokens) -> np.ndarray:
    """The logits after a context, decoded from nothing."""
    engine.rollback(0)
    return engine.sync(tokens, num_rows=1)[0].copy()


def sync_for_ever(engine: Engine, tokens: Tokens) -> None:
    """Prefill again and again, until something stops it (or, when nothing does, for a minute or so)."""
    for _ in range(100):
        engine.rollback(0)
        engine.sync(tokens)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return float(np.abs(a - b).max()) < CLOSE


def test_rows_are_those_after_each_token(smollm2: Engine, tokens: Tokens) -> None:
    smollm2.sync(tokens[:20])
    rows = smollm2.advance(tokens[20:24]).copy()
    assert rows.shape == (4, smollm2.n_vocab)
    assert smollm2.held.tolist() == tokens[:24].tolist()
    for i in range(4):
        assert close(rows[i], fresh_row(smollm2, tokens[: 21 + i]))
    assert float(np.abs(rows[0] - rows[1]).max()) > 4 * CLOSE


def test_padding_is_taken_back_and_changes_nothing_but_rounding(tokens: Tokens) -> None:
    with (
        open_engine("smollm2-135m", n_ctx=256, max_rows=1) as plain,
        open_engine("smollm2-135m", n_ctx=256, max_rows=1) as padded,
    ):
        padded.least_tokens = 4
        end = padded.n_ctx
        text = np.resize(tokens, end)
        for engine in (plain, padded):
            engine.sync(text[: end - 8])
        for position in range(end - 8, end):  # the last ones have no room for padding
            a, b = (engine.advance(text[position : position + 1])[0].copy() for engine in (plain, padded))
            assert close(a, b)
            assert len(padded) == position + 1
        assert padded.held.tolist() == text.tolist()


def test_a_rollback_leaves_no_trace(smollm2: Engine, tokens: Tokens) -> None:
    """User case 5: a rejected draft must not be seen by what follows."""
    smollm2.sync(tokens[:30])
    smollm2.advance(as_tokens([5, 6, 7, 8]))
    smollm2.rollback(31)
    row = smollm2.advance(tokens[31:32])[0].copy()
    assert close(row, fresh_row(smollm2, as_tokens([*tokens[:30].tolist(), 5, int(tokens[31])])))


def test_sync_keeps_the_common_prefix(smollm2: Engine, tokens: Tokens) -> None:
    smollm2.sync(tokens[:50])
    other = np.concatenate([tokens[:40], as_tokens([9, 9, 9])])
    assert smollm2.matching(other) == 40
    row = smollm2.sync(other, num_rows=1)[0].copy()
    assert smollm2.held.tolist() == other.tolist()
    assert close(row, fresh_row(smollm2, other))
    again = smollm2.sync(other, num_rows=1)[0].copy()  # nothing new, and yet a row
    assert close(row, again)


@pytest.mark.parametrize("length", [511, 512, 513, 514, 600])
def test_rows_are_not_split_over_the_batches_of_a_prefill(smollm2: Engine, tokens: Tokens, length: int) -> None:
    rows = smollm2.sync(tokens[:length], num_rows=4).copy()
    for i in (0, 3):
        assert close(rows[i], fresh_row(smollm2, tokens[: length - 3 + i]))


def test_what_llama_cpp_would_abort_on_is_refused(smollm2: Engine, tokens: Tokens) -> None:
    smollm2.sync(tokens[:10])
    with pytest.raises(EngineError, match="ids must be in"):
        smollm2.advance(as_tokens([smollm2.n_vocab]))
    with pytest.raises(EngineError, match="ids must be in"):
        smollm2.advance(as_tokens([-1]))
    with pytest.raises(EngineError, match="At most 8 rows"):
        smollm2.advance(tokens[:9])
    with pytest.raises(EngineError, match="do not fit"):
        smollm2.sync(np.tile(tokens, 9))
    for length in (-1, 11):
        with pytest.raises(EngineError, match="Cannot keep"):
            smollm2.rollback(length)
    smollm2.sync(tokens[:10])
    assert len(smollm2) == 10
    assert smollm2.sync(as_tokens([])).shape == (0, smollm2.n_vocab)


def test_only_the_rows_asked_for_are_kept(smollm2: Engine, tokens: Tokens) -> None:
    """User case 33: not a row per position."""
    assert smollm2.sync(tokens[:500], num_rows=2).shape == (2, smollm2.n_vocab)
    rows = smollm2.advance(tokens[500:503])
    assert not rows.flags.owndata
    assert not rows.flags.writeable


def test_a_context_can_be_filled_to_the_last_cell() -> None:
    with open_engine("smollm2-135m", n_ctx=256) as engine:
        assert engine.n_ctx == 256
        engine.sync(as_tokens([5] * 255))
        engine.advance(as_tokens([6]))
        with pytest.raises(EngineError, match="256 of 256"):
            engine.advance(as_tokens([6]))
        engine.allocate(300)  # rounded up by llama.cpp
        assert (engine.n_ctx, len(engine)) == (512, 0)
        engine.sync(as_tokens([5] * 400))


def test_a_closed_engine_says_so() -> None:
    engine = open_engine("smollm2-135m", n_ctx=256)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed or never allocated"):
        engine.sync(as_tokens([1]))


def test_an_interrupt_stops_a_prefill_and_the_next_call_repairs(smollm2: Engine, tokens: Tokens) -> None:
    long = np.tile(tokens, 3)[:1900]
    timer = threading.Timer(0.15, smollm2.interrupt.set)
    timer.start()
    with pytest.raises(Interrupted):
        sync_for_ever(smollm2, long)
    assert smollm2.held.tolist() == long[: len(smollm2)].tolist()
    with pytest.raises(Interrupted):
        smollm2.advance(tokens[:1])  # until it is cleared
    smollm2.interrupt.clear()
    row = smollm2.sync(tokens[:40], num_rows=1)[0].copy()
    assert close(row, fresh_row(smollm2, tokens[:40]))


@pytest.fixture
def raises_on_sigint() -> Iterator[None]:
    """Python's own handler, also where the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("raises_on_sigint")
def test_ctrl_c_in_a_decode_raises_at_once_and_the_engine_goes_on(smollm2: Engine, tokens: Tokens) -> None:
    long = np.tile(tokens, 3)[:1900]
    threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        sync_for_ever(smollm2, long)
    assert not smollm2.interrupt.is_set()
    row = smollm2.sync(tokens[:40], num_rows=1)[0].copy()
    assert close(row, fresh_row(smollm2, tokens[:40]))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="no model file"):
        Engine(tmp_path / "x.gguf", threads=1, max_rows=1)


@pytest.mark.parametrize("size", [0, 3, 1000, 3_000_000])
def test_a_truncated_file_is_told_with_the_reason_of_llama_cpp(
    tmp_path: Path, size: int, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.gguf"
    with path_of("smollm2-135m").open("rb") as whole:
        file.write_bytes(whole.read(size))
    with pytest.raises(EngineError, match=r"cannot load .*x\.gguf: .*\w") as error:
        Engine(file, threads=1, max_rows=1)
    assert "gave no reason" not in str(error.value)
    assert not str(error.value).endswith("failed to load model.")
    assert capfd.readouterr() == ("", "")


def test_loading_can_be_stopped() -> None:
    from specd.llama.library import Interrupt

    interrupt = Interrupt()
    interrupt.set()
    with pytest.raises(Interrupted):
        Engine(path_of("smollm2-135m"), threads=1, max_rows=1, interrupt=interrupt)


def test_exact_mode_bounds_its_rows() -> None:
    with pytest.raises(EngineError, match="at most 7"):
        Engine(path_of("smollm2-135m"), threads=1, max_rows=8, exact=True)


def test_exact_rows_do_not_depend_on_their_number(tokens: Tokens) -> None:
    tokens = np.tile(tokens, 2)
    with open_engine("smollm2-135m", max_rows=7, exact=True) as engine:
        for context in (30, 700):
            engine.sync(tokens[:context])
            rows = {}
            for n in range(1, 8):
                rows[n] = engine.advance(tokens[context : context + n]).copy()
                assert len(engine) == context + n
                engine.rollback(context)
            for n in range(1, 7):
                assert np.array_equal(rows[n], rows[7][:n])


def test_a_sliding_window_is_kept_across_its_edge() -> None:
    with open_engine("gemma3-270m", n_ctx=1024) as engine:
        text = "One two three four five six seven eight nine ten. " * 60
        tokens = engine.vocabulary.tokenize(text, add_special=True, parse_special=False)[:620]
        engine.sync(tokens)
        engine.rollback(560)
        row = engine.sync(tokens[:600], num_rows=1)[0].copy()
        fresh = fresh_row(engine, tokens[:600])
        assert float(np.abs(row - fresh).max()) < 2.0
        assert int(row.argmax()) == int(fresh.argmax())


def test_decoding_runs_beside_python(smollm2: Engine, tokens: Tokens) -> None:
    """The main thread stays free while llama.cpp works: signals and the status line depend on it."""
    ticks = 0
    done = threading.Event()

    def work() -> None:
        smollm2.rollback(0)
        smollm2.sync(np.tile(tokens, 3)[:1500])
        done.set()

    threading.Thread(target=work).start()
    while not done.is_set():
        time.sleep(0.005)
        ticks += 1
    assert ticks > 10
