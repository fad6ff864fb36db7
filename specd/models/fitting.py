"""How many layers of target and draft go onto GPUs: by estimate, before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

from specd.models.gguf import Header
from specd.models.memory import Memory

KEPT_FREE = 0.06  # of the memory of a GPU, for what an estimate does not know, and for the desktop
AT_LEAST_KEPT = 400_000_000  # bytes
DRAFT_SHARE = 0.3  # of all GPU memory that a draft may take where the target does not fit whole


@dataclass(frozen=True, slots=True)
class Need:
    """What a model takes on a GPU, in bytes.

    num_layers:  repeating ones; the output counts as one more
    layer:       of one layer, its part of the KV cache included
    output:      of what is not in a repeating layer
    computing:   of buffers, once any layer is there
    """

    num_layers: int
    layer: int
    output: int
    computing: int

    @classmethod
    def of(cls, header: Header, memory: Memory, n_ctx: int) -> "Need":
        """From a model's header, for a context of so many tokens."""
        num_layers = max(1, int(header.of_architecture("block_count") or 1))
        in_layers = sum(tensor.num_elements for tensor in header.tensors if tensor.name.startswith("blk."))
        share = in_layers / max(1, header.num_parameters)
        layer = int((memory.weights * share + (memory.cache(n_ctx) or 0)) / num_layers)
        work = memory.computing + memory.computing_per_token * n_ctx
        return cls(num_layers, layer, int(memory.weights * (1 - share)), work)

    @property
    def whole(self) -> int:
        """Of all layers and the output."""
        return self.computing + self.num_layers * self.layer + self.output

    def layers_in(self, free: int) -> int:
        """How many layers fit, as llama.cpp counts them: num_layers + 1 with the output, which goes last."""
        if self.whole <= free:
            return self.num_layers + 1
        return max(0, min(self.num_layers, (free - self.computing) // max(1, self.layer)))


@dataclass(frozen=True, slots=True)
class Fit:
    """Layers on GPUs, out of how many; for the draft None without one."""

    target: int
    target_of: int
    draft: int | None = None
    draft_of: int | None = None

    def __str__(self) -> str:
        parts = [f"target {self.target} of {self.target_of}"]
        if self.draft is not None:
            parts.append(f"draft {self.draft} of {self.draft_of}")
        return f"layers on the GPU: {', '.join(parts)}"


def fit(target: Need, draft: Need | None, free: Sequence[int]) -> Fit:
    """The most useful share of both models on GPUs with so many free bytes each.

    Both whole, if they fit; else the target whole and of the draft what fits. Where the target does not fit, its layers
    on the CPU decide how long a pass takes, and a small draft wholly on the GPU pays most: it goes first.
    """
    room = sum(max(0, bytes_ - max(AT_LEAST_KEPT, int(KEPT_FREE * bytes_))) for bytes_ in free)
    draft_of = draft.num_layers + 1 if draft is not None else None
    if draft is None:
        return Fit(target.layers_in(room), target.num_layers + 1)
    if target.whole <= room:
        return Fit(target.num_layers + 1, target.num_layers + 1, draft.layers_in(room - target.whole), draft_of)
    if draft.whole <= DRAFT_SHARE * room:
        return Fit(target.layers_in(room - draft.whole), target.num_layers + 1, draft.num_layers + 1, draft_of)
    return Fit(target.layers_in(room), target.num_layers + 1, 0, draft_of)
