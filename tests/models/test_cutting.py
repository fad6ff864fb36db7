"""Cutting files: what stays is there byte for byte, and what is said about it fits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from specd.errors import EngineError
from specd.models.cutting import Parent
from specd.models.gguf import read_header

WIDTH, LAYERS = 64, 4
BYTES = [chr(0x100 + i) for i in range(256)]
MERGES = [f"{chr(0x100 + i)} {chr(0x101 + i)}" for i in range(100)]
TOKENS = [*BYTES, *(merge.replace(" ", "") for merge in MERGES), "<end>", "<unused>", "<start>"]
KINDS = [1] * 356 + [3, 5, 3]
FIRST_WRONG = ["\u0100 \u0101", "\u0102 \u0103", "\u0100\u0101 \u0102\u0103", "\u0101 \u0102"]


def write(
    path: Path,
    *,
    model: str = "gpt2",
    tokens: Sequence[str] = TOKENS,
    merges: Sequence[str] = MERGES,
    kinds: Sequence[int] = KINDS,
    extra: dict[str, Any] | None = None,
) -> Path:
    random = np.random.default_rng(0)
    file = gguf.GGUFWriter(path, "llama")
    file.add_block_count(LAYERS)
    file.add_vocab_size(len(tokens))
    file.add_array("general.languages", ["en"])
    file.add_array("llama.attention.head_count_kv", [1, 2, 3, 4])
    file.add_tokenizer_model(model)
    file.add_token_list(list(tokens))
    if kinds:
        file.add_token_types(list(kinds))
    if merges:
        file.add_token_merges(list(merges))
    file.add_eos_token_id(len(tokens) - 3)
    file.add_bos_token_id(len(tokens) - 1)
    file.add_pad_token_id(len(tokens) - 2)
    for key, value in (extra or {}).items():
        file.add_uint32(key, value)
    for name, rows in {"token_embd.weight": len(tokens), "output.weight": len(tokens)}.items():
        weights = random.normal(size=(rows, WIDTH)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        file.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    file.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        file.add_tensor(f"blk.{layer}.attn_norm.weight", np.full(WIDTH, layer, np.float32))
        file.add_tensor(f"blk.{layer}.ffn_up.weight", random.normal(size=(8, WIDTH)).astype(np.float16))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "parent.gguf")


def content(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items()}, {t.name: t for t in reader.tensors}


def test_the_first_tokens_and_the_special_ones_stay(path: Path, tmp_path: Path) -> None:
    parent, target = Parent(path), tmp_path / "cut.gguf"
    assert parent.why_not_fewer_tokens() is None
    parent.write(target, path, 322, None, {})
    values, tensors = content(target)
    kept = [*range(318), 356, 358]  # an even number for kernels: 320
    assert parent.kept_tokens(322).tolist() == kept
    assert values["tokenizer.ggml.tokens"] == [TOKENS[i] for i in kept]
    assert values["tokenizer.ggml.token_type"] == [KINDS[i] for i in kept]
    assert values["tokenizer.ggml.merges"] == MERGES[: 318 - 256]
    assert (values["tokenizer.ggml.eos_token_id"], values["tokenizer.ggml.bos_token_id"]) == (318, 319)
    assert values["llama.vocab_size"] == 320
    _, before = content(path)
    for name in ("token_embd.weight", "output.weight"):
        assert tensors[name].tensor_type == gguf.GGMLQuantizationType.Q8_0
        assert np.array_equal(tensors[name].data, before[name].data[kept])
    assert np.array_equal(tensors["blk.1.ffn_up.weight"].data, before["blk.1.ffn_up.weight"].data)
    assert read_header(target).vocabulary_size == 320


def test_an_id_that_points_to_a_token_which_is_gone_goes_too(path: Path, tmp_path: Path) -> None:
    Parent(path).write(tmp_path / "cut.gguf", path, 322, None, {})
    assert "tokenizer.ggml.padding_token_id" not in content(tmp_path / "cut.gguf")[0]


def test_layers_that_stay_are_numbered_anew(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "cut.gguf"
    Parent(path).write(target, path, None, [0, 2, 3], {})
    values, tensors = content(target)
    assert values["llama.block_count"] == 3
    assert values["llama.attention.head_count_kv"] == [1, 3, 4]
    assert [tensors[f"blk.{i}.attn_norm.weight"].data[0] for i in range(3)] == [0, 2, 3]
    assert "blk.3.attn_norm.weight" not in tensors
    assert len(values["tokenizer.ggml.tokens"]) == len(TOKENS)


def test_everything_stays_where_nothing_is_cut(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "same.gguf"
    Parent(path).write(target, path, None, None, {})
    (before, tensors), (after, copied) = content(path), content(target)
    del before["GGUF.kv_count"], after["GGUF.kv_count"]
    assert after == before
    assert all(np.array_equal(copied[name].data, tensors[name].data) for name in tensors)


def test_the_same_bytes_again_with_what_is_noted(path: Path, tmp_path: Path) -> None:
    notes: dict[str, Any] = {"specd.slim.type": "q4_0", "specd.slim.cost": 0.25, "specd.slim.layers": [0, 2]}
    for name in ("a", "b"):
        Parent(path).write(tmp_path / name, path, 330, [0, 2], notes)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    values, _ = content(tmp_path / "a")
    assert {name: values[name] for name in notes} == notes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama"}, "its tokenizer is no byte-pair encoding with merges (the file calls it 'llama')"),
        ({"merges": ()}, "its tokenizer is no byte-pair encoding with merges"),
        ({"kinds": ()}, "it does not say of what kind its tokens are"),
        (
            {"tokens": [*BYTES, *(merge.replace(" ", "") for merge in reversed(FIRST_WRONG))], "merges": FIRST_WRONG},
            "its tokens are not numbered in the order of their merges",
        ),
        ({"merges": [*MERGES, "\u0100 \u0109"]}, "its tokens are not numbered in the order of their merges"),
    ],
)
def test_other_vocabularies_are_not_cut(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    if "tokens" in changes:
        changes = {**changes, "kinds": [1] * len(changes["tokens"])}
    parent = Parent(write(tmp_path / "parent.gguf", **changes))
    assert reason in (parent.why_not_fewer_tokens() or "")


def test_single_bytes_must_stay(path: Path) -> None:
    with pytest.raises(
        EngineError, match="100 tokens are too few: the single bytes of this vocabulary reach up to 255"
    ):
        Parent(path).kept_tokens(100)


def test_layers_that_predict_further_tokens_stay(tmp_path: Path) -> None:
    parent = Parent(write(tmp_path / "parent.gguf", extra={"llama.nextn_predict_layers": 1}))
    assert parent.why_not_fewer_layers() == "its last layers predict further tokens"


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="only whole files can be cut"):
        Parent(write(tmp_path / "m-00001-of-00002.gguf"))


def test_a_damaged_file_is_told(path: Path, tmp_path: Path) -> None:
    (tmp_path / "short.gguf").write_bytes(path.read_bytes()[:3000])
    with pytest.raises(EngineError, match=r"short\.gguf"):
        Parent(tmp_path / "short.gguf")
