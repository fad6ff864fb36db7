import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specd.errors import EngineError
from specd.models.gguf import read_header, shard_names


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(architecture: str = "qwen2") -> bytes:
    tokens = struct.pack("<IQ", 8, 3) + text("a") + text("bc") + text("")
    scores = struct.pack("<IQ3f", 6, 3, 1.0, 2.0, 3.0)
    values = {
        "general.architecture": struct.pack("<I", 8) + text(architecture),
        "qwen2.context_length": struct.pack("<II", 4, 32768),
        "tokenizer.ggml.tokens": struct.pack("<I", 9) + tokens,
        "tokenizer.ggml.scores": struct.pack("<I", 9) + scores,
        "flag": struct.pack("<I?", 7, True),
    }
    tensors = [("token_embd.weight", (64, 3), 12), ("norm", (64,), 0), ("new", (8,), 999)]
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, value in values.items():
        data += text(key) + value
    for name, shape, kind in tensors:
        data += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
    return data


def test_a_header_is_read_and_arrays_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(header() + b"\0" * 100)
    result = read_header(file)
    assert result.architecture == "qwen2"
    assert result.of_architecture("context_length") == 32768
    assert result.vocabulary_size == 3
    assert result.metadata["flag"] is True
    assert result.num_parameters == 64 * 3 + 64 + 8
    assert result.types()[0] == ("Q4_K", pytest.approx(192 / 264))
    assert {tensor.type for tensor in result.tensors} == {"Q4_K", "F32", "type 999"}
    assert not result.is_projector


def test_projectors_are_recognised(tmp_path: Path) -> None:
    """User case 23: a vision side file is not a language model."""
    file = tmp_path / "mmproj.gguf"
    file.write_bytes(header("clip"))
    assert read_header(file).is_projector


@pytest.mark.parametrize("length", range(0, len(header()), 7))
def test_a_truncated_header_is_told(tmp_path: Path, length: int) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(header()[:length])
    with pytest.raises(EngineError, match=r"x\.gguf is not a usable GGUF file"):
        read_header(file)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(4, len(header()) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_header_never_breaks_the_reader(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(header())
    for place, value in changes:
        data[place] = value
    file = tmp_path / "x.gguf"
    file.write_bytes(data)
    with contextlib.suppress(EngineError):
        read_header(file)


def test_all_parts_of_a_split_model_are_named() -> None:
    assert shard_names("a.gguf") == ["a.gguf"]
    assert shard_names("a-00002-of-00002.gguf") == ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]
