"""Smaller versions of a model file: fewer tokens, fewer layers. What stays is copied byte for byte.

In vocabularies of byte-pair encoding that number their tokens in the order of their merges (Sennrich et al. 2016), the
tokens below any id are a vocabulary of their own: each one is made of two that come before it. So the rows behind that
id can go, with the merges that make them; control tokens, which usually come last, move up.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specd.errors import EngineError
from specd.models.gguf import Tensor, read_header, shard_names

_TOKENS = "tokenizer.ggml.tokens"
_KINDS = "tokenizer.ggml.token_type"
_MERGES = "tokenizer.ggml.merges"
_LAYER = re.compile(r"blk\.(\d+)\.(.*)")
_ROW_PER_TOKEN = ("token_embd.weight", "output.weight", "output.bias")
_NORMAL, _UNUSED = 1, 5  # kinds of tokens that need not stay
_EVEN = 64  # ids in a whole number of these: kernels take several rows at once, and fall back to slow ones for others
_NUM_BYTES = 256

Value = str | int | float | list[int]
"""What may be noted in a file."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A metadata value with its type, and its items' for arrays."""

    value: Any
    kind: Any
    item_kind: Any


class Parent:
    """A model file, as far as smaller ones are made of it. Reading the metadata takes seconds for large vocabularies.

    Raises EngineError for a split file, and for one that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        if len(shard_names(path.name)) > 1:
            raise EngineError(f"{path.name} is one of several parts of a model: only whole files can be cut.")
        self.header = read_header(path)
        try:
            fields = GGUFReader(path).fields
        except (ValueError, OSError, IndexError) as error:
            raise EngineError(f"{path} is not a usable GGUF file: {error}.") from error
        self._fields = {
            name: _Field(field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
            for name, field in fields.items()
            if not name.startswith("GGUF.")
        }
        self.num_layers: int = self.header.of_architecture("block_count") or 0
        tokens = self._fields.get(_TOKENS)
        self.num_tokens = len(tokens.value) if tokens else 0

    def why_not_fewer_tokens(self) -> str | None:
        """The reason why its vocabulary cannot be cut; None when it can."""
        model, merges = self._value("tokenizer.ggml.model"), self._value(_MERGES)
        if model != "gpt2" or not merges:
            return f"its tokenizer is no byte-pair encoding with merges (the file calls it {model!r})"
        if len(self._value(_KINDS) or ()) != self.num_tokens:
            return "it does not say of what kind its tokens are"
        ids = {token: number for number, token in enumerate(self._value(_TOKENS))}
        for merge in merges:
            left, _, right = merge.partition(" ")
            parts, whole = (ids.get(left), ids.get(right)), ids.get(left + right)
            if whole is None or None in parts or max(part for part in parts if part is not None) > whole:
                return f"its tokens are not numbered in the order of their merges ({merge!r} makes an earlier one)"
        for tensor in self.header.tensors:
            if self.num_tokens in tensor.shape and tensor.name not in _ROW_PER_TOKEN:
                return f"it has {tensor.name}, in which tokens stand otherwise than in rows"
        return None

    def why_not_fewer_layers(self) -> str | None:
        """The reason why no layer can be left out; None when one can."""
        if self.num_layers < 2:
            return f"it has {self.num_layers} layers"
        if self.header.of_architecture("nextn_predict_layers"):
            return "its last layers predict further tokens"
        return None

    def kept_tokens(self, num_tokens: int | None) -> npt.NDArray[np.int64]:
        """The ids that stay, ascending: those below `num_tokens` (a few less, to make the number even for kernels), and
        control tokens. All for None. Raises EngineError where not even single bytes would stay."""
        if num_tokens is None or num_tokens >= self.num_tokens:
            return np.arange(self.num_tokens)
        kinds = np.array(self._value(_KINDS))
        special = np.flatnonzero((kinds != _NORMAL) & (kinds != _UNUSED))
        below = num_tokens
        while True:
            kept = np.concatenate([np.arange(below), special[special >= below]])
            if len(kept) % _EVEN == 0 or below < _EVEN:
                break
            below -= len(kept) % _EVEN
        last_byte = max(i for i, token in enumerate(self._value(_TOKENS)) if len(token) == 1)
        if below <= last_byte:
            raise EngineError(
                f"{num_tokens} tokens are too few: the single bytes of this vocabulary reach up to {last_byte}."
            )
        return kept

    def write(
        self,
        target: Path,
        weights: Path,
        num_tokens: int | None,
        layers: Sequence[int] | None,
        notes: Mapping[str, Value],
    ) -> None:
        """Write a smaller file. The same arguments give the same bytes.

        weights:     a file with all of the tensors: the parent itself, or a requantised one
        num_tokens:  as in `kept_tokens`
        layers:      those that stay, ascending; None for all
        notes:       go into the metadata under their names

        Raises EngineError where the parts do not fit together.
        """
        from gguf import GGUFValueType, GGUFWriter

        kept = self.kept_tokens(num_tokens)
        layers = list(range(self.num_layers)) if layers is None else list(layers)
        writer = GGUFWriter(target, self.header.architecture)
        try:
            own = read_header(weights).metadata  # what the quantiser says of the types
            for name, field in self._fields.items():
                if name == "general.architecture":
                    continue
                is_told = name.startswith("general.") and field.item_kind is None
                value = self._cut_value(name, own.get(name, field.value) if is_told else field.value, kept, layers)
                if value is not None and value != []:
                    writer.add_key_value(name, value, field.kind, field.item_kind)
            for name, note in notes.items():
                kinds = {str: GGUFValueType.STRING, int: GGUFValueType.UINT64, float: GGUFValueType.FLOAT64}
                if isinstance(note, list):
                    writer.add_key_value(name, note, GGUFValueType.ARRAY, GGUFValueType.UINT64)
                else:
                    writer.add_key_value(name, note, kinds[type(note)])
            for name, data, kind in _tensors(weights, self.num_tokens, kept, layers):
                writer.add_tensor(name, data, raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()

    def _value(self, name: str) -> Any:
        field = self._fields.get(name)
        return field.value if field is not None else None

    def _cut_value(self, name: str, value: Any, kept: npt.NDArray[np.int64], layers: list[int]) -> Any:
        """The value for fewer tokens and layers; None for the id of a token that is gone."""
        if name == f"{self.header.architecture}.block_count":
            return len(layers)
        if name == f"{self.header.architecture}.vocab_size":
            return len(kept)
        if len(kept) < self.num_tokens:
            if name == _MERGES:
                tokens = self._value(_TOKENS)
                there = {tokens[i] for i in kept}
                return [merge for merge in value if merge.replace(" ", "", 1) in there]
            if re.fullmatch(r"tokenizer\.ggml\.\w+_token_ids?", name):
                new = {int(old): number for number, old in enumerate(kept)}
                return [new[i] for i in value if i in new] if isinstance(value, list) else new.get(value)
            if name.startswith("tokenizer.ggml.") and isinstance(value, list) and len(value) == self.num_tokens:
                return [value[i] for i in kept]
        if (
            name.startswith(f"{self.header.architecture}.")
            and isinstance(value, list)
            and len(value) == self.num_layers
        ):
            return [value[i] for i in layers]
        return value


def _tensors(
    weights: Path, num_tokens: int, kept: npt.NDArray[np.int64], layers: list[int]
) -> list[tuple[str, npt.NDArray[Any], Any]]:
    """What stays of a file's tensors: names, contents and types."""
    header, number = read_header(weights), {old: new for new, old in enumerate(layers)}
    content = np.memmap(weights, mode="r", dtype=np.uint8)[header.size :]
    found = []
    for tensor in header.tensors:
        rows, kind = _rows(tensor, content)
        name = tensor.name
        if layer := _LAYER.fullmatch(name):
            if int(layer[1]) not in number:
                continue
            name = f"blk.{number[int(layer[1])]}.{layer[2]}"
        if name in _ROW_PER_TOKEN and len(kept) < num_tokens:
            rows = rows[kept] if tensor.shape[-1] == len(rows) else rows.reshape(-1)[kept]
        found.append((name, rows, kind))
    return found


def _rows(tensor: Tensor, content: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], Any]:
    """A tensor's content by rows, and its type for the writer."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType[tensor.type]
    per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
    size = tensor.num_elements // per_block * bytes_per_block
    data = content[tensor.offset : tensor.offset + size]
    if len(data) < size:
        raise EngineError(f"{tensor.name} ends behind the end of the file.")
    shape = (*reversed(tensor.shape[1:]), math.ceil(tensor.shape[0] / per_block) * bytes_per_block)
    if kind == GGMLQuantizationType.F32:
        return data.view(np.float32).reshape(tuple(reversed(tensor.shape))), None
    if kind == GGMLQuantizationType.F16:
        return data.view(np.float16).reshape(tuple(reversed(tensor.shape))), None
    return data.reshape(shape), kind
