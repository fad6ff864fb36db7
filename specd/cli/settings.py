"""What a model is asked to do: options over the model's own defaults over the built-in ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import EnumType
from typing import Any

from specd.cli import options
from specd.cli.offload import AUTO, parse_layers
from specd.cli.options import FlashAttn, KvType, Method
from specd.decoding.sampling import SamplingParams
from specd.decoding.verify import RuleName
from specd.errors import UsageError
from specd.models.registry import Model

_KINDS = {"method": Method, "verify": RuleName, "kv_type": KvType, "flash_attn": FlashAttn}
_SAMPLING = tuple(entry.name for entry in fields(SamplingParams))


@dataclass(frozen=True, slots=True)
class Settings:
    """Options that a model's entry in models.toml may have defaults for."""

    method: Method = Method.AUTO
    draft_max: int | None = None
    draft_length: int | None = None
    max_tokens: int = options.DEFAULT_MAX_TOKENS
    ctx: int | None = None
    threads: int | None = None
    kv_type: KvType = KvType.F16
    flash_attn: FlashAttn = FlashAttn.AUTO
    batch_size: int | None = None
    micro_batch_size: int | None = None
    gpu_layers: str = AUTO
    draft_gpu_layers: str = AUTO
    device: str | None = None
    tensor_split: str | None = None
    rpc: str | None = None
    mmap: bool | None = None
    mlock: bool = False
    system: str | None = None
    verify: RuleName = options.DEFAULT_RULE
    sampling: SamplingParams = field(default_factory=SamplingParams)
    draft_sampling: SamplingParams = field(default_factory=SamplingParams)

    @classmethod
    def of(cls, model: Model, given: dict[str, Any]) -> Settings:
        """What was given over the model's defaults over the built-in ones."""
        values = dict(model.defaults) | {name: value for name, value in given.items() if value is not None}
        sampling = {name: values.pop(name) for name in _SAMPLING if name in values}
        try:
            for name, kind in _KINDS.items():
                if name in values:
                    values[name] = kind(values[name])
        except ValueError as error:
            raise UsageError(f"models.toml, defaults of {model.name}: {error}.") from error
        if given.get("seed") is not None:
            values.setdefault("verify", RuleName.COUPLED)  # its text depends on the seed, not on what is drafted
        values.pop("seed", None)
        for name in ("gpu_layers", "draft_gpu_layers"):
            if name in values:
                values[name] = str(values[name])
                parse_layers(values[name], f"--{name.replace('_', '-')}")
        own = SamplingParams(**sampling)
        draft_temperature = values.pop("draft_temperature", own.temperature)
        return cls(**values, sampling=own, draft_sampling=replace(own, temperature=draft_temperature))


SETTABLE: Mapping[str, Callable[[str], Any]] = {
    **{entry.name: type(entry.default) for entry in fields(SamplingParams) if isinstance(entry.default, int | float)},
    "draft_temperature": float,
    "seed": int,
    "max_tokens": int,
    "method": Method,
    "draft_max": int,
    "draft_length": int,
    "verify": RuleName,
}
"""What may be changed while a model is loaded: by name, how a text is read."""
_LIMITS = {
    "seed": (0, None),
    "max_tokens": (1, None),
    "draft_max": (0, options.MAX_DRAFT_LENGTH),
    "draft_length": (1, options.MAX_DRAFT_LENGTH),
}
DEFAULT = "default"


def parse_setting(name: str, text: str) -> Any:
    """The value of an option in a text; None for `default`. Raises UsageError for an option or a value that is none."""
    if name not in SETTABLE:
        nearest = difflib.get_close_matches(name, SETTABLE, n=1)
        hint = f"Did you mean {nearest[0]}?" if nearest else f"There are {', '.join(SETTABLE)}."
        raise UsageError(f"There is no option {name!r} to set. {hint}")
    if text == DEFAULT:
        return None
    read = SETTABLE[name]
    try:
        value = read(text)
    except ValueError as error:
        what = (
            f"one of {', '.join(read)}" if isinstance(read, EnumType) else "an integer" if read is int else "a number"
        )
        raise UsageError(f"{name} must be {what}, not {text!r}.") from error
    low, high = _LIMITS.get(name, (None, None))
    if (low is not None and value < low) or (high is not None and value > high):
        raise UsageError(
            f"{name} must be {low} or more{f', and {high} at most' if high is not None else ''}, not {text}."
        )
    return value


def parse_biases(texts: list[str] | None) -> dict[int, float] | None:
    """Parse ID=BIAS options. Raises UsageError for anything else."""
    if not texts:
        return None
    try:
        return {int(token): float(bias) for token, bias in (text.split("=") for text in texts)}
    except ValueError as error:
        raise UsageError(f"--logit-bias {' '.join(texts)}: give a token id and a number, as in 42=-1.5.") from error
