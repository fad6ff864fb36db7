"""Where layers go, on twelve shapes of machines."""

import pytest

from specd.models.fitting import Need, fit
from specd.models.gguf import Header, Tensor
from specd.models.memory import memory_of

GB = 1_000_000_000
# As their files and caches of 4096 tokens are, about: layers, bytes of a layer, of the rest, of buffers.
BIG = Need(80, 500_000_000, 1_500_000_000, 400_000_000)  # 70B Q4_K_M, 42 GB
EIGHT = Need(32, 150_000_000, 500_000_000, 300_000_000)  # 8B Q4_K_M, 5.6 GB
CODER = Need(28, 34_000_000, 300_000_000, 150_000_000)  # 1.5B Q4_K_M, 1.4 GB
HALF = Need(24, 16_000_000, 150_000_000, 100_000_000)  # 0.5B Q4_K_M, 0.6 GB
ONE = Need(16, 42_000_000, 300_000_000, 150_000_000)  # 1B Q4_K_M, 1.1 GB


@pytest.mark.parametrize(
    ("machine", "target", "draft", "free", "expected"),
    [
        ("a laptop without GPU", CODER, HALF, [], (0, 0)),
        ("2 GB, small pair", CODER, HALF, [2 * GB], (29, 6)),
        ("3 GB, small pair", CODER, HALF, [3 * GB], (29, 25)),
        ("4 GB, 8B target", EIGHT, HALF, [4 * GB], (17, 25)),
        ("6 GB, 8B target", EIGHT, HALF, [6 * GB], (33, 0)),
        ("8 GB, 8B target with a 1B draft", EIGHT, ONE, [8 * GB], (33, 17)),
        ("8 GB, 70B target", BIG, ONE, [8 * GB], (11, 17)),
        ("12 GB, 8B target, no draft", EIGHT, None, [12 * GB], (33, None)),
        ("16 GB of Apple's memory", EIGHT, ONE, [16 * GB], (33, 17)),
        ("24 GB, 70B target", BIG, EIGHT, [24 * GB], (33, 33)),
        ("2 x 24 GB, 70B target", BIG, ONE, [24 * GB, 24 * GB], (81, 17)),
        ("2 x 24 GB, 70B target with an 8B draft", BIG, EIGHT, [24 * GB, 24 * GB], (81, 19)),
        ("a GPU that others have filled", CODER, HALF, [GB // 4], (0, 0)),
    ],
)
def test_shapes(
    machine: str, target: Need, draft: Need | None, free: list[int], expected: tuple[int, int | None]
) -> None:
    found = fit(target, draft, free)
    assert (found.target, found.draft) == expected, f"{machine}: {found}"
    used = sum(
        need.computing + min(layers, need.num_layers) * need.layer + (need.output if layers > need.num_layers else 0)
        for need, layers in ((target, found.target), (draft, found.draft))
        if need is not None and layers
    )
    assert used <= sum(free)


def test_what_a_model_needs_comes_from_its_header() -> None:
    tensors = [Tensor("token_embd.weight", (64, 1000), "F16")]
    for i in range(2):
        tensors += [Tensor(f"blk.{i}.attn_{which}.weight", (64, 32), "F16") for which in "qkv"]
    metadata = {"general.architecture": "x", "x.block_count": 2, "x.embedding_length": 64, "x.feed_forward_length": 0}
    header = Header(3, metadata, tuple(tensors))
    size = 2 * header.num_parameters
    memory = memory_of(header, size)
    need = Need.of(header, memory, 256)
    assert need.num_layers == 2
    assert 2 * need.layer + need.output == pytest.approx(size + 256 * 2 * 64 * 2, abs=4)
    assert need.whole == pytest.approx(memory.total(256), abs=4)
    assert need.layers_in(need.whole) == 3
    assert need.layers_in(need.whole - 1) == 2
    assert need.layers_in(0) == 0
