"""A model with its context, and the one record of what its KV cache holds.

llama.cpp aborts the process on several kinds of bad input (too many tokens or rows in a batch, ids it does not know),
so everything that reaches it is checked here first.
"""

import ctypes
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from specd.decoding.context import TokenBuffer, Tokens, common_prefix_length
from specd.decoding.sampling import Logits
from specd.errors import CannotRewind, EngineError, Interrupted, NoSuchFile
from specd.llama import library
from specd.llama.batch import Batch
from specd.llama.checkpoints import Checkpoints
from specd.llama.devices import device_list
from specd.llama.library import C, Interrupt
from specd.llama.runtime import FLASH_ATTENTION, KV_TYPES, LOAD_MODES, Placement, Runtime
from specd.llama.servers import reach
from specd.llama.vocab import Vocabulary

EXACT_ROWS = range(2, 8)  # batch sizes whose rows agree bit for bit, on a CPU with flash attention
UNKNOWN_CONTEXT = 4096  # tokens, where a file does not say for how many a model was trained
_ABORTED = 2
_MOST_WAITING = 8  # tokens
# The bindings give a pointer to floats, whose conversion takes longer than the call.
_logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("llama_get_logits", C._lib))


class Engine:
    """Loads a GGUF file; `allocate` then gives it a context of a wanted size.

    threads:     how many llama.cpp may use
    max_rows:    the most tokens `advance` scores at once; few rows keep the output buffers small
    exact:       rows do not depend on how many are scored together (CPU; at most 7 rows; plain steps cost
                 more, as they score a second row that is thrown away)
    runtime:     how contexts compute, until `configure` says otherwise
    placement:   where the weights lie
    interrupt:   may be shared with other engines

    least_tokens, an attribute, may be set at any time: a decode of fewer is padded to so many, and the padding taken
    back. Where kernels for several rows are faster than those for one, that saves time.

    `identity` tells apart engines whose passes may cost differently.

    Raises NoSuchFile or EngineError when the file cannot be loaded, with llama.cpp's own last complaint.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        max_rows: int,
        exact: bool = False,
        runtime: Runtime | None = None,
        placement: Placement | None = None,
        interrupt: Interrupt | None = None,
    ) -> None:
        if exact and max_rows > EXACT_ROWS[-1]:
            raise EngineError(f"Exact mode scores at most {EXACT_ROWS[-1]} tokens at once, not {max_rows}.")
        self.path = path
        self.exact = exact
        self.max_rows = max_rows
        self.threads = threads
        self.runtime = runtime or Runtime()
        self.placement = placement or Placement()
        self.interrupt = interrupt or Interrupt()
        self.least_tokens = 1
        self._context: Any = None
        self._held = TokenBuffer()
        self._model = self._load(self.placement)
        self.vocabulary = Vocabulary(self._model)
        self.n_vocab = self.vocabulary.size
        trained: int = C.llama_model_n_ctx_train(self._model)
        self.trained_context = trained if trained > 0 else UNKNOWN_CONTEXT  # what the file says may be nonsense
        self.num_bytes: int = C.llama_model_size(self._model)
        self.is_recurrent = C.llama_model_is_recurrent(self._model) or C.llama_model_is_hybrid(self._model)
        if exact and self.is_recurrent:
            self.close()
            raise CannotRewind(f"Exact mode needs a memory that can go back; the one of {path.name} cannot.")

    def _load(self, placement: Placement) -> Any:
        if not self.path.is_file():
            raise NoSuchFile(f"There is no model file {self.path}.")
        if placement.servers:
            reach(placement.servers)
        params = C.llama_model_default_params()
        params.n_gpu_layers = placement.gpu_layers
        params.load_mode = LOAD_MODES[placement.mmap, placement.mlock]
        if placement.devices is not None:
            chosen = device_list(placement.devices)
            params.devices = ctypes.addressof(chosen)
        if placement.tensor_split:
            shares = (ctypes.c_float * C.llama_max_devices())(*placement.tensor_split)
            params.tensor_split = shares
        params.use_extra_bufts = not self.exact
        go_on = C.llama_progress_callback(lambda _progress, _data: not self.interrupt.is_set())
        params.progress_callback = go_on
        model: Any = None

        def load() -> int:
            nonlocal model
            model = C.llama_model_load_from_file(str(self.path).encode(), params)
            return 0

        library.forget_complaints()
        library.compute(self.interrupt, load)
        if not model:
            if self.interrupt.is_set():
                raise Interrupted(f"Loading {self.path.name} was stopped.")
            raise EngineError(f"llama.cpp cannot load {self.path}: {library.last_complaint()}.")
        library.release_file_pages(self.path)
        return model

    @property
    def identity(self) -> list[object]:
        """What decides how long a pass takes, but for the length of the context."""
        place, runtime = self.placement, [self.runtime.kv_type, self.runtime.flash_attention]
        where = [place.gpu_layers, place.devices, place.tensor_split, *place.servers]
        padded = [self.least_tokens] if self.least_tokens > 1 else []
        return [*file_identity(self.path), self.threads, self.exact, *where, library.build(), *runtime, *padded]

    def configure(self, threads: int, runtime: Runtime) -> None:
        """Compute otherwise from the next `allocate` on."""
        self.threads, self.runtime = threads, runtime

    def allocate(self, n_ctx: int) -> None:
        """Give the engine an empty context of at least `n_ctx` tokens, in place of any it had.

        Raises EngineError when llama.cpp cannot, most often for want of memory.
        """
        self._free_context()
        params = C.llama_context_default_params()
        params.n_ctx = n_ctx + 1 if self.exact else n_ctx
        params.n_batch = min(self.runtime.batch, params.n_ctx)
        params.n_ubatch = min(self.runtime.micro_batch or params.n_batch, params.n_batch)
        params.type_k = params.type_v = KV_TYPES[self.runtime.kv_type]
        params.flash_attn_type = FLASH_ATTENTION[True if self.exact else self.runtime.flash_attention]
        params.n_outputs_max = max(self.max_rows, EXACT_ROWS[0])
        params.n_rs_seq = self.max_rows if self.is_recurrent else 0  # 0 again where the architecture has no such thing
        params.n_threads = params.n_threads_batch = self.threads  # verification is a batch
        library.forget_complaints()
        self._context = library.compute(self.interrupt, lambda: C.llama_init_from_model(self._model, params))
        if not self._context:
            raise EngineError(
                f"llama.cpp cannot make a context of {n_ctx} tokens for {self.path.name}: "
                f"{library.last_complaint()}. A smaller --ctx needs less memory."
            )
        self.interrupt.attach(self._context)
        self._memory = C.llama_get_memory(self._context)
        self._checkpoints = Checkpoints(self._context)
        self.n_ctx: int = C.llama_n_ctx(self._context) - (1 if self.exact else 0)  # rounded up by llama.cpp
        self._views: dict[tuple[int, int], Logits] = {}
        self._batch = Batch(C.llama_n_batch(self._context))
        self._held = TokenBuffer(capacity=self.n_ctx + 1)
        self._num_decoded = self._last_start = 0

    @property
    def has_context(self) -> bool:
        """Whether it was allocated."""
        return bool(self._context)

    @property
    def batch_size(self) -> int:
        """How many tokens of a prompt one decode takes in."""
        return self._batch.capacity

    def __len__(self) -> int:
        """How many tokens the cache holds."""
        return len(self._held)

    @property
    def held(self) -> Tokens:
        """The tokens that the cache holds, `[len(self)]`; valid until the next change."""
        return self._held.view

    def matching(self, tokens: Tokens) -> int:
        """How many leading tokens of `tokens` the cache holds already."""
        return common_prefix_length(self._held.view, tokens)

    def sync(self, tokens: Tokens, num_rows: int = 0) -> Logits:
        """Make the cache hold exactly `tokens`: the longest common prefix is kept, the rest decoded.

        Returns the logits after each of the last `num_rows` tokens, `[num_rows, n_vocab]`, valid until the
        next call. Raises Interrupted when stopped; what was decoded until then is kept.
        """
        kept = min(self.matching(tokens), len(tokens) - num_rows)
        self.rollback(kept)
        rows = self._append(tokens[kept:], num_rows)
        self.checkpoint()
        return rows

    def advance(self, tokens: Tokens) -> Logits:
        """Append at most `max_rows` tokens; the logits after each, `[len(tokens), n_vocab]`.

        The rows are valid until the next call. Raises Interrupted when stopped; the cache then is as before.
        """
        return self._append(tokens, len(tokens))

    def checkpoint(self) -> None:
        """What is appended from here on can be taken back. Costs a copy of the state where layers are recurrent.

        While a few tokens wait to be decoded again, the state before them still serves: they ride in the next decode.
        """
        if not self.is_recurrent:
            return
        if len(self) - self._num_decoded > _MOST_WAITING:
            self._append(self._held.view[:0], 0)
        if self._num_decoded == len(self):
            self._checkpoints.take(len(self))

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens.

        A memory that cannot go back so far by itself goes to an earlier state; the tokens since then are decoded
        again with the next ones.
        """
        if not 0 <= length <= len(self):
            raise EngineError(f"Cannot keep {length} of the {len(self)} tokens in the cache.")
        self._go_back(length)
        self._held.truncate(length)

    def close(self) -> None:
        """Free the context, then the model. May be called again."""
        if library.has_aborted():
            self._context = self._model = None
        self._free_context()
        if self._model:
            C.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chat_template(self) -> str | None:
        """The Jinja chat template in the file, if there is one."""
        template = C.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else None

    def _append(self, tokens: Tokens, num_rows: int) -> Logits:
        if not self._context:
            raise EngineError(f"{self.path.name} has no context: it was closed or never allocated.")
        if num_rows > self.max_rows:
            raise EngineError(f"At most {self.max_rows} rows can be scored at once, not {num_rows}.")
        if len(self) + len(tokens) > self.n_ctx:
            raise EngineError(f"{len(tokens)} more tokens do not fit: {len(self)} of {self.n_ctx} are in the cache.")
        if len(tokens) and tokens.view(np.uint32).max() >= self.n_vocab:  # a negative id is a huge one
            raise EngineError(f"Token ids must be in 0 … {self.n_vocab - 1}: {tokens.min()} … {tokens.max()}.")
        length = len(self)
        self._held.extend(tokens)
        try:
            while self._num_decoded < len(self):  # the rows asked for must not be split over decodes
                left = len(self) - self._num_decoded
                size = min(self._batch.capacity, left)
                rest = left - size
                if 0 < rest < num_rows:
                    size -= num_rows - rest
                elif self.exact and rest == 1 and size > EXACT_ROWS[0]:
                    size -= 1  # two are left, which are computed like any other number
                self._decode(size, num_rows if size == left else 0)
        finally:
            self._held.truncate(max(length, self._num_decoded))
        return self._rows(num_rows)

    def _decode(self, size: int, num_rows: int) -> None:
        """One llama_decode of the next `size` tokens, with rows for the last `num_rows`."""
        start = self._last_start = self._num_decoded
        tokens = self._held.view[start : start + size]
        padding = self._padding(size)
        batch = self._batch.filled(
            np.concatenate([tokens, np.repeat(tokens[-1:], padding)]) if padding else tokens,
            start,
            num_rows + (padding if self.exact else 0),
            num_unread=0 if self.exact else padding,
        )
        code = _ABORTED
        library.forget_complaints()
        try:
            if not self.interrupt.is_set():
                code = library.compute(self.interrupt, partial(C.llama_decode, self._context, batch))
        finally:
            self._num_decoded = start + size + padding
            if code or padding:  # a part of the batch may have been decoded; the padding surely was
                self._go_back(start if code else start + size)
        if code == _ABORTED:
            raise Interrupted(f"{self.path.name} was stopped while computing.")
        if code:
            raise EngineError(f"llama.cpp failed to decode (code {code}): {library.last_complaint()}.")

    def _padding(self, size: int) -> int:
        """How many tokens that nobody asked for go behind `size` tokens."""
        if self.exact:
            return 1 if size == 1 else 0
        if self.is_recurrent or size >= self.least_tokens or self._num_decoded + self.least_tokens > self.n_ctx:
            return 0
        return self.least_tokens - size

    def _go_back(self, length: int) -> None:
        """Make the memory hold at most the first `length` tokens."""
        if length >= self._num_decoded:
            return
        # Recurrent layers may keep a state for each token of the last decode, to which they can go back once; what they
        # give for other places is wrong.
        may_cut = not self.is_recurrent or length > self._last_start
        if may_cut and C.llama_memory_seq_rm(self._memory, 0, length, -1):
            self._num_decoded = self._last_start = length
        else:
            self._num_decoded = self._checkpoints.restore(length)

    def _rows(self, num_rows: int) -> Logits:
        """The last decode's first rows, without a copy."""
        if num_rows == 0:
            return np.empty((0, self.n_vocab), np.float32)
        address = _logits_address(self._context)
        if not address:
            raise EngineError(f"{self.path.name} gave no logits.")
        view = self._views.get((address, num_rows))  # the buffer moves only when it grows
        if view is None:
            floats = (ctypes.c_float * (num_rows * self.n_vocab)).from_address(address)
            view = np.frombuffer(memoryview(floats), np.float32).reshape(num_rows, self.n_vocab)
            view.flags.writeable = False
            self._views[address, num_rows] = view
        return view

    def _free_context(self) -> None:
        if self._context:
            C.llama_free(self._context)
            self._context = None
        self._held.truncate(0)


def file_identity(path: Path) -> list[object]:
    """What tells a file from others and from its own earlier states, without reading it."""
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
