"""What models take, against what is known of them."""

import pytest

from specd.models.gguf import Header, Tensor
from specd.models.memory import memory_of


def header(*layers: tuple[int, int], recurrent: int = 0) -> Header:
    """A model whose layers have keys and values of these widths."""
    tensors = [
        Tensor(f"blk.{i}.attn_{which}.weight", (64, width), "F16")
        for i, widths in enumerate(layers)
        for which, width in zip("kv", widths, strict=True)
    ]
    tensors += [Tensor(f"blk.{len(layers) + i}.ssm_in.weight", (64, 64), "F16") for i in range(recurrent)]
    metadata = {"general.architecture": "x", "x.embedding_length": 64, "x.feed_forward_length": 256}
    return Header(3, {**metadata, "tokenizer.ggml.tokens": 1000}, tuple(tensors))


@pytest.mark.parametrize(("kv_type", "per_element"), [("f16", 2.0), ("q8_0", 1.0625), ("q4_0", 0.5625)])
def test_the_cache_keeps_a_key_and_a_value_per_layer_and_token(kv_type: str, per_element: float) -> None:
    memory = memory_of(header((128, 64), (128, 64)), 10**6, kv_type=kv_type)
    assert memory.per_token == 2 * 192 * per_element
    assert memory.cache(1) == memory.cache(256) == int(256 * 2 * 192 * per_element)  # whole cells
    assert memory.total(256) == 10**6 + memory.beside_weights(256)


def test_layers_with_a_state_take_nothing_per_token() -> None:
    assert memory_of(header((32, 32), recurrent=5), 1).per_token == 128.0
    only_states = memory_of(header(recurrent=5), 1)
    assert only_states.per_token is None
    assert only_states.total(100) is None
    assert header((1, 1), recurrent=1).is_recurrent
    assert not header((1, 1)).is_recurrent


@pytest.mark.parametrize("free", [10**7, 10**8, 10**9])
def test_the_largest_context_fits(free: int) -> None:
    memory = memory_of(header((128, 128)), 10**6)
    n_ctx = memory.largest_context(free)
    assert n_ctx > 0
    assert 0.6 * free < memory.beside_weights(n_ctx) < free
    assert memory.largest_context(1000) == 0
