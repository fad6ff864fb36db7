"""How much memory a model takes, as far as its header tells."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from specd.models.gguf import Header

ELEMENT_BYTES: Mapping[str, float] = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}  # of the KV cache, by its type
_MASK_BYTES = 6  # of a token of a batch and one of the context: once in 32 bits, once in 16
_WELL = 0.9
CELLS = 256  # llama.cpp rounds a context up to a multiple of so many tokens
_KEYS_AND_VALUES = re.compile(r"blk\.\d+\.attn_[kv]\.weight")


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes.

    per_token:            of the KV cache; None for an architecture whose cache is not known here
    computing:            buffers for the work on a batch, an estimate
    computing_per_token:  of them, what grows with the context: which tokens of a batch see which
    """

    weights: int
    per_token: float | None
    computing: int
    computing_per_token: int

    def cache(self, n_ctx: int) -> int | None:
        """Of the KV cache for so many tokens."""
        return None if self.per_token is None else int(self.per_token * -(-n_ctx // CELLS) * CELLS)

    def beside_weights(self, n_ctx: int) -> int:
        """Cache and work, as far as they are known."""
        return (self.cache(n_ctx) or 0) + self.computing + self.computing_per_token * n_ctx

    def total(self, n_ctx: int) -> int | None:
        """Weights, cache and work; None where the cache is not known."""
        return None if self.per_token is None else self.weights + self.beside_weights(n_ctx)

    def largest_context(self, free: int) -> int:
        """The most tokens whose cache and work fit well into so many bytes; 0 where none do, or that is not known."""
        if not self.per_token:
            return 0
        room = _WELL * free - self.computing
        return max(0, int(room / (self.per_token + self.computing_per_token)) // CELLS * CELLS)


def memory_of(header: Header, num_bytes: int, *, kv_type: str = "f16", batch: int = 512, rows: int = 32) -> Memory:
    """From the shapes of a model's tensors: each layer with attention keeps a key and a value per token.

    num_bytes:  of the file
    batch:      tokens of a prompt that are computed at once
    rows:       of logits that are kept
    """
    widths = [tensor.shape[-1] for tensor in header.tensors if _KEYS_AND_VALUES.fullmatch(tensor.name)]
    per_token = sum(widths) * ELEMENT_BYTES[kv_type] if widths else None
    embedding = _number(header, "embedding_length")
    hidden = _number(header, "feed_forward_length")
    computing = 4 * (batch * (4 * embedding + 3 * hidden) + rows * (header.vocabulary_size or 0))
    return Memory(num_bytes, per_token, computing, _MASK_BYTES * batch)


def _number(header: Header, key: str) -> int:
    value = header.of_architecture(key)
    return value if isinstance(value, int) else 0
