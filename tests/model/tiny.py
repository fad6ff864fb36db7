"""Small models with random weights, of architectures for which no file can be had: a few layers, 260 tokens.

They say nothing sensible, but what they say depends on all of their context, which is what memory is about.
"""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

WIDTH, HIDDEN, HEADS, LAYERS, CONTEXT = 64, 128, 4, 4, 2048
TOKENS = [f"<0x{i:02X}>" for i in range(256)]  # every byte
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>"]


class Writer:
    """A GGUF file in the making: tensors are drawn, wide enough that no token is certain."""

    kind: type[np.floating] = np.float32  # of matrices

    def __init__(
        self,
        path: Path,
        architecture: str,
        seed: int,
        output_norm: str = "output_norm.weight",
        *,
        width: int = WIDTH,
        hidden: int = HIDDEN,
        layers: int = LAYERS,
    ) -> None:
        self.width, self.hidden = width, hidden
        self._random = np.random.default_rng(seed)
        self.file = gguf.GGUFWriter(path, architecture)
        self.file.add_context_length(CONTEXT)
        self.file.add_embedding_length(width)
        self.file.add_block_count(layers)
        self.file.add_vocab_size(len(TOKENS) + len(SPECIAL))
        self.file.add_layer_norm_rms_eps(1e-5)
        self.file.add_tokenizer_model("llama")
        self.file.add_token_list([*SPECIAL, *TOKENS])
        self.file.add_token_scores([0.0] * (len(SPECIAL) + len(TOKENS)))
        kinds = [gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL]
        self.file.add_token_types([*kinds, *[gguf.TokenType.BYTE] * len(TOKENS)])
        self.file.add_bos_token_id(0)
        self.file.add_eos_token_id(1)
        self.tensor("token_embd.weight", len(TOKENS) + len(SPECIAL), width)
        self.tensor("output.weight", len(TOKENS) + len(SPECIAL), width, scale=2.0)
        self.ones(output_norm, width)

    def tensor(self, name: str, *shape: int, scale: float = 1.0) -> None:
        """Normal weights; the last dimension is the one that is summed over."""
        weights = self._random.normal(scale=scale / np.sqrt(shape[-1]), size=shape)
        self.file.add_tensor(name, weights.astype(self.kind))

    def ones(self, name: str, *shape: int) -> None:
        self.file.add_tensor(name, np.ones(shape, np.float32))

    def values(self, name: str, values: np.ndarray) -> None:
        self.file.add_tensor(name, values.astype(np.float32))

    def attention(self, layer: int, heads_kv: int = 2) -> None:
        """Queries, keys and values of a layer."""
        head = self.width // HEADS
        self.tensor(f"blk.{layer}.attn_q.weight", self.width, self.width, scale=3.0)
        self.tensor(f"blk.{layer}.attn_k.weight", heads_kv * head, self.width, scale=3.0)
        self.tensor(f"blk.{layer}.attn_v.weight", heads_kv * head, self.width)
        self.tensor(f"blk.{layer}.attn_output.weight", self.width, self.width)

    def feed_forward(self, layer: int) -> None:
        """The other half of a layer."""
        self.ones(f"blk.{layer}.ffn_norm.weight", self.width)
        self.tensor(f"blk.{layer}.ffn_gate.weight", self.hidden, self.width)
        self.tensor(f"blk.{layer}.ffn_up.weight", self.hidden, self.width)
        self.tensor(f"blk.{layer}.ffn_down.weight", self.width, self.hidden)

    def heads(self, heads_kv: int | list[int] = 2) -> None:
        """What attention needs to know."""
        self.file.add_head_count(HEADS)
        self.file.add_head_count_kv(heads_kv)
        self.file.add_feed_forward_length(self.hidden)
        self.file.add_rope_freq_base(10_000.0)
        self.file.add_rope_dimension_count(self.width // HEADS)

    def close(self) -> None:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def mamba(path: Path, seed: int = 0) -> None:
    """State-space layers only: the whole memory is a state."""
    inner, state, rank, kernel = 2 * WIDTH, 8, 4, 4
    writer = Writer(path, "mamba", seed)
    writer.file.add_feed_forward_length(0)
    writer.file.add_head_count(0)
    writer.file.add_ssm_conv_kernel(kernel)
    writer.file.add_ssm_inner_size(inner)
    writer.file.add_ssm_state_size(state)
    writer.file.add_ssm_time_step_rank(rank)
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        writer.ones(f"{name}.attn_norm.weight", WIDTH)
        writer.tensor(f"{name}.ssm_in.weight", 2 * inner, WIDTH)
        writer.tensor(f"{name}.ssm_conv1d.weight", inner, kernel)
        writer.values(f"{name}.ssm_conv1d.bias", np.zeros(inner))
        writer.tensor(f"{name}.ssm_x.weight", rank + 2 * state, inner, scale=2.0)
        writer.tensor(f"{name}.ssm_dt.weight", inner, rank)
        writer.values(f"{name}.ssm_dt.bias", np.full(inner, -2.0))
        writer.values(f"{name}.ssm_a", -np.tile(np.arange(1, state + 1) / 8, (inner, 1)))
        writer.ones(f"{name}.ssm_d", inner)
        writer.tensor(f"{name}.ssm_out.weight", WIDTH, inner)
    writer.close()


def hybrid(path: Path, seed: int = 0) -> None:
    """LFM2: short convolutions, which keep a state, and attention by turns."""
    writer = Writer(path, "lfm2", seed, output_norm="token_embd_norm.weight")
    attention = [layer % 2 == 1 for layer in range(LAYERS)]
    writer.heads([2 if attends else 0 for attends in attention])
    writer.file.add_shortconv_l_cache(3)
    for layer, attends in enumerate(attention):
        writer.ones(f"blk.{layer}.attn_norm.weight", WIDTH)
        writer.feed_forward(layer)
        if attends:
            writer.attention(layer)
            writer.ones(f"blk.{layer}.attn_q_norm.weight", WIDTH // HEADS)
            writer.ones(f"blk.{layer}.attn_k_norm.weight", WIDTH // HEADS)
        else:
            writer.tensor(f"blk.{layer}.shortconv.conv.weight", WIDTH, 3)
            writer.tensor(f"blk.{layer}.shortconv.in_proj.weight", 3 * WIDTH, WIDTH, scale=2.0)
            writer.tensor(f"blk.{layer}.shortconv.out_proj.weight", WIDTH, WIDTH)
    writer.close()


def sliding(path: Path, seed: int = 0) -> None:
    """Gemma 3's pattern: most layers see only the last tokens."""
    writer = Writer(path, "gemma3", seed)
    writer.heads()
    writer.file.add_sliding_window(32)
    writer.file.add_key_length(WIDTH // HEADS)
    writer.file.add_value_length(WIDTH // HEADS)
    for layer in range(LAYERS):
        writer.ones(f"blk.{layer}.attn_norm.weight", WIDTH)
        writer.attention(layer)
        writer.ones(f"blk.{layer}.attn_q_norm.weight", WIDTH // HEADS)
        writer.ones(f"blk.{layer}.attn_k_norm.weight", WIDTH // HEADS)
        writer.ones(f"blk.{layer}.post_attention_norm.weight", WIDTH)
        writer.ones(f"blk.{layer}.post_ffw_norm.weight", WIDTH)
        writer.feed_forward(layer)
    writer.close()


def experts(path: Path, seed: int = 0) -> None:
    """Mixture of experts: two of four are used for each token."""
    writer = Writer(path, "llama", seed)
    writer.heads()
    writer.file.add_expert_count(4)
    writer.file.add_expert_used_count(2)
    for layer in range(LAYERS):
        writer.ones(f"blk.{layer}.attn_norm.weight", WIDTH)
        writer.attention(layer)
        writer.ones(f"blk.{layer}.ffn_norm.weight", WIDTH)
        writer.tensor(f"blk.{layer}.ffn_gate_inp.weight", 4, WIDTH)
        writer.tensor(f"blk.{layer}.ffn_gate_exps.weight", 4, HIDDEN, WIDTH)
        writer.tensor(f"blk.{layer}.ffn_up_exps.weight", 4, HIDDEN, WIDTH)
        writer.tensor(f"blk.{layer}.ffn_down_exps.weight", 4, WIDTH, HIDDEN)
    writer.close()


def dense(path: Path, seed: int = 0) -> None:
    """A llama of 200 million weights in 16 bits, large enough that its passes take time on a GPU too."""
    width, hidden, layers = 1024, 2816, 16
    writer = Writer(path, "llama", seed, width=width, hidden=hidden, layers=layers)
    writer.kind = np.float16
    writer.heads(2)
    for layer in range(layers):
        writer.ones(f"blk.{layer}.attn_norm.weight", width)
        writer.attention(layer)
        writer.feed_forward(layer)
    writer.close()


ARCHITECTURES: dict[str, Callable[[Path, int], None]] = {
    "mamba": mamba,
    "hybrid": hybrid,
    "sliding window": sliding,
    "mixture of experts": experts,
}
