"""How contexts compute."""

from collections.abc import Mapping
from dataclasses import dataclass

from specd.llama.library import C


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a context computes; the defaults are llama.cpp's own, but for the batch.

    batch:            tokens of a prompt per decode: the work between two looks at the interrupt on a GPU
    micro_batch:      of them at once; None for all
    kv_type:          number format of the KV cache: anything but f16 changes what the model says a little
    flash_attention:  None where llama.cpp decides
    """

    batch: int = 512
    micro_batch: int | None = None
    kv_type: str = "f16"
    flash_attention: bool | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model lies.

    gpu_layers:    how many layers GPUs take, the output counted; -1 for all; no effect without a GPU
    devices:       names of the devices that take them; None for all there are, none for the CPU alone
    tensor_split:  how much of them each device takes; by their free memory when empty
    mmap:          whether the file is mapped rather than read; None where llama.cpp decides
    mlock:         whether the system may not swap it out
    servers:       RPC servers, host:port, whose devices are among them
    """

    gpu_layers: int = -1
    devices: tuple[str, ...] | None = None
    tensor_split: tuple[float, ...] = ()
    mmap: bool | None = None
    mlock: bool = False
    servers: tuple[str, ...] = ()


LOAD_MODES: Mapping[tuple[bool | None, bool], int] = {
    (None, False): -1,  # LLAMA_LOAD_MODE_AUTO
    (False, False): 0,
    (True, False): 1,
    (False, True): 2,
    (None, True): 3,
    (True, True): 3,
}
"""By mmap and mlock."""
KV_TYPES: Mapping[str, int] = {"f16": C.GGML_TYPE_F16, "q8_0": C.GGML_TYPE_Q8_0, "q4_0": C.GGML_TYPE_Q4_0}
FLASH_ATTENTION: Mapping[bool | None, int] = {None: -1, False: 0, True: 1}  # LLAMA_FLASH_ATTN_TYPE_…
