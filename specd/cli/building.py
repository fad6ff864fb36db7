"""From options to loaded models and a drafter: the one place that knows which drafters there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specd.bench.pairs import in_ids_of
from specd.cli.offload import fitting_layers, parse_layers, placement_of, usable_gpus, with_fewer
from specd.cli.options import DEFAULT_DRAFT_MAX, FlashAttn, KvType, Method
from specd.cli.settings import Settings
from specd.decoding.constraint import Constraint, constrained
from specd.decoding.protocol import Drafter
from specd.decoding.protocol import Engine as AnyEngine
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import sampler
from specd.decoding.verify import RULES
from specd.drafting.constrained import Constrained, Forced
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from specd.drafting.predicted import Predicted
from specd.errors import EngineError, Interrupted, PromptTooLong, SpecdError, UsageError
from specd.models.fetch import fetch, locate
from specd.models.gguf import num_bytes, read_header
from specd.models.memory import memory_of
from specd.models.progress import Progress
from specd.models.registry import Model, Registry
from specd.models.store import Store

if TYPE_CHECKING:  # importing llama.cpp takes 0.4 s: only when something is to be computed
    from specd.llama.engine import Engine
    from specd.llama.library import Interrupt
    from specd.llama.runtime import Placement, Runtime

DEFAULT_CTX = 4096  # tokens; more when the prompt needs it
NO_DRAFT = "none"
EXACT_DRAFT_MAX = 6  # exact mode scores at most 7 rows


@dataclass(frozen=True, slots=True)
class Plan:
    """What to load and how. draft: None when there is none to load. Raises UsageError where options contradict."""

    target: Model
    draft: Model | None
    settings: Settings
    exact: bool
    strict: bool
    seed: int

    def __post_init__(self) -> None:
        if self.exact and self.max_draft > EXACT_DRAFT_MAX:
            raise UsageError(f"--exact drafts at most {EXACT_DRAFT_MAX} tokens in a round, not {self.max_draft}.")
        if self.settings.kv_type is not KvType.F16 and self.settings.flash_attn is FlashAttn.OFF:
            raise UsageError(f"--kv-type {self.settings.kv_type} needs flash attention, but --flash-attn is off.")

    @property
    def max_draft(self) -> int:
        """The most tokens of a draft."""
        wanted = self.settings.draft_max if self.settings.draft_length is None else self.settings.draft_length
        if wanted is not None:
            return wanted
        return EXACT_DRAFT_MAX if self.exact else DEFAULT_DRAFT_MAX


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model.

    engine:      None when there is none, then `reason` says why
    model:       the same, speaking the target's ids
    num_shared:  ids below are known to it
    """

    engine: Engine | None = None
    model: AnyEngine | None = None
    num_shared: int = 0
    reason: str | None = None


def choose_draft(registry: Registry, target: str | None, draft: str | None, method: Method) -> Model | None:
    """The draft model to load, if any. Raises UsageError where the options contradict each other."""
    if draft is not None and draft != NO_DRAFT and not method.uses_model:
        raise UsageError(f"--method {method} uses no draft model, but --draft {draft} names one: drop one of them.")
    if draft == NO_DRAFT and method is Method.DRAFT:
        raise UsageError("--method draft needs a draft model, but --draft is none: drop one of them.")
    if not method.uses_model or draft == NO_DRAFT:
        return None
    chosen = registry.model(draft) if draft is not None else registry.draft_for(target)
    if chosen is None and method is Method.DRAFT:
        raise UsageError(f"No draft model is known for {target}: name one with --draft.")
    return chosen


def load_target(plan: Plan, store: Store, progress: Progress, interrupt: Interrupt) -> Engine:
    """Fetch and load the target; it has no context yet. Raises UsageError for a bias on a token it does not have."""
    target = _load(plan.target, plan, plan.max_draft + 1, store, progress, interrupt, is_draft=False)
    for token in plan.settings.sampling.logit_bias:
        if not 0 <= token < target.n_vocab:
            target.close()
            raise UsageError(
                f"--logit-bias names token {token}; {plan.target.name} has tokens 0 to {target.n_vocab - 1}."
            )
    return target


def allocate(target: Engine, plan: Plan, num_prompt: int) -> None:
    """Give the target a context of the size it needs. Raises PromptTooLong."""
    give_context(target, context_size(target, plan, num_prompt))


def give_context(engine: Engine, n_ctx: int) -> None:
    """Allocate so many tokens, if they fit. Raises EngineError."""
    _require_room(engine, n_ctx)
    engine.allocate(n_ctx)


def _require_room(engine: Engine, n_ctx: int) -> None:
    """Raise EngineError, with what would fit, where memory does not do for a context: llama.cpp may crash there."""
    from specd.llama.devices import available_memory, has_gpu

    if has_gpu():
        return  # the cache lies there, and llama.cpp refuses in order
    name, runtime, free = engine.path.name, engine.runtime, available_memory()
    memory = memory_of(
        read_header(engine.path), engine.num_bytes, kv_type=runtime.kv_type, batch=runtime.batch, rows=engine.max_rows
    )
    needed = memory.beside_weights(n_ctx)
    if needed <= free:
        return
    fits = memory.largest_context(free)
    hint = f"--ctx {fits} would fit." if fits else "Take a smaller model, or close other programs."
    smaller = " --kv-type q8_0 takes half of it." if runtime.kv_type == KvType.F16 and memory.per_token else ""
    raise EngineError(
        f"A context of {n_ctx} tokens for {name} needs {needed} bytes ({needed / 1e9:.2f} GB) beside the model, and "
        f"{free / 1e9:.2f} GB are free. {hint}{smaller}"
    )


def _require_room_for_weights(model: Model, path: Path) -> None:
    from specd.llama.devices import available_memory, has_gpu

    size, free = num_bytes(path), available_memory()
    if size > free and not has_gpu():
        raise EngineError(
            f"{model.name} needs {size} bytes ({size / 1e9:.2f} GB) for its weights alone, and {free / 1e9:.2f} GB are "
            "free: take a smaller model or quantisation, or close other programs."
        )


def context_size(target: Engine, plan: Plan, num_prompt: int) -> int:
    """Tokens: --ctx, or enough for prompt and answer. Raises PromptTooLong."""
    trained, max_tokens = target.trained_context, plan.settings.max_tokens
    n_ctx = plan.settings.ctx or min(max(DEFAULT_CTX, num_prompt + max_tokens), trained)
    if num_prompt > n_ctx:
        if num_prompt < trained:
            hint = f"This model takes up to {trained}: --ctx {min(num_prompt + max_tokens, trained)}."
        else:
            hint = (
                f"What fits is the first {(n_ctx - 1) / num_prompt:.0%} of it: shorten it by {num_prompt - n_ctx + 1}."
            )
        raise PromptTooLong(f"The prompt has {num_prompt} tokens, the context of {plan.target.name} {n_ctx}. {hint}")
    return n_ctx


def load_draft(
    target: Engine,
    plan: Plan,
    store: Store,
    progress: Progress,
    interrupt: Interrupt,
    warn: Callable[[str], None],
    *,
    max_rows: int = 1,
) -> LoadedDraft:
    """Fetch, load and check the draft. Where it cannot be used: a warning, or the error with `strict`.

    max_rows:  that are asked of it at once; drafting asks for one
    """
    from specd.llama.pairing import pair, too_large

    if plan.draft is None or plan.max_draft == 0:
        return LoadedDraft()
    engine = None
    try:
        engine = _load(plan.draft, plan, max_rows, store, progress, interrupt, is_draft=True)
        pairing = pair(target, engine, store.folder / "pairs")
        if pairing.reason is not None:
            raise EngineError(f"{plan.draft.name} cannot draft for {plan.target.name}: {pairing.reason}.")
        give_context(engine, min(target.n_ctx, engine.trained_context))
    except Interrupted:
        raise
    except SpecdError as error:
        if engine is not None:
            engine.close()
        if plan.strict:
            raise
        warn(f"{error} Going on with prompt lookup only.")
        return LoadedDraft(reason=str(error))
    if (warning := too_large(target, engine)) is not None:
        warn(warning)
    return LoadedDraft(engine, *in_ids_of(target, engine, pairing))


def build_drafters(
    target: Engine,
    plan: Plan,
    draft: LoadedDraft,
    predicted: Sequence[str],
    randomness: Randomness,
    constraint: Constraint | None = None,
) -> tuple[list[Drafter], Mapping[str, str]]:
    """What the method may use and what is there, the cheap ones first; and by name, why another is missing.

    predicted:   texts that are expected to come again in the answer
    constraint:  what the answer must look like; nothing else is drafted then
    """
    reasons = _reasons(target, plan, draft)
    drafters: list[Drafter] = []
    if "lookup" not in reasons and (plan.settings.method.uses_lookup or draft.engine is None):
        if predicted:
            text = "\n".join(predicted)
            drafters.append(Predicted(target.vocabulary.tokenize(text, add_special=False, parse_special=False)))
        drafters.append(Lookup())
    if constraint is not None and "lookup" not in reasons:
        drafters = [Constrained(drafter, constraint) for drafter in drafters] or [Forced(constraint)]
    if draft.model is not None:
        to_distribution, draw = sampler(plan.settings.draft_sampling), RULES[plan.settings.verify].draw
        if constraint is not None:
            to_distribution = constrained(to_distribution, constraint)
        drafters.append(
            DraftModel(
                draft.model,
                to_distribution,
                draw,
                num_shared=draft.num_shared,
                randomness=randomness,
                clock=time.perf_counter,
            )
        )
    return drafters, reasons


def _reasons(target: Engine, plan: Plan, draft: LoadedDraft) -> Mapping[str, str]:
    """By drafter, why it is not used although it could be."""
    if plan.settings.method is Method.OFF:
        return {"lookup": "turned off (--method off)"}
    if plan.max_draft == 0:
        return {"lookup": "turned off (--draft-max 0)"}
    if draft.reason is not None:
        return {"draft": draft.reason}
    if plan.settings.method.uses_model and draft.engine is None:
        return {"draft": f"no draft model was named or is known for {plan.target.name}"}
    return {}


def _load(
    model: Model,
    plan: Plan,
    max_rows: int,
    store: Store,
    progress: Progress,
    interrupt: Interrupt,
    *,
    is_draft: bool,
) -> Engine:
    from specd.llama.devices import usable_cores
    from specd.llama.engine import Engine
    from specd.llama.library import survive_aborts
    from specd.llama.trial import TRIALS, Request, ensure_survival

    path = fetch(model, store, progress)
    if read_header(path).is_projector:
        raise EngineError(f"{path} is the vision or audio side of a model; give the language model's file.")
    settings, exact = plan.settings, plan.exact and not is_draft
    threads = settings.threads or usable_cores()
    survive_aborts()
    runtime, gpus = _runtime(settings), usable_gpus(settings, is_draft=is_draft)
    _require_room_for_weights(model, path)
    option = "--draft-gpu-layers" if is_draft else "--gpu-layers"
    layers = parse_layers(settings.draft_gpu_layers if is_draft else settings.gpu_layers, option)
    n_ctx = settings.ctx or DEFAULT_CTX

    def load(placement: Placement) -> Engine:
        if not placement.servers:  # a server serves one process at a time: this one
            ensure_survival(Request(str(path), threads, max_rows, exact, runtime, placement), store.folder / TRIALS)
        engine = Engine(
            path,
            threads=threads,
            max_rows=max_rows,
            exact=exact,
            runtime=runtime,
            placement=placement,
            interrupt=interrupt,
        )
        if gpus and layers is None:  # an estimate must prove itself
            try:
                engine.allocate(min(n_ctx, engine.trained_context))
            except EngineError:
                engine.close()
                raise
        return engine

    if layers is not None or not gpus:
        return load(placement_of(settings, -1 if layers is None else layers, is_draft=is_draft))
    other = locate(plan.draft, store) if plan.draft is not None and not is_draft else None
    layers_that_fit, found = fitting_layers(gpus, runtime, path, other, n_ctx, max_rows)
    if layers_that_fit < found.target_of:
        progress.note(f"{model.name}: {found}")
    return with_fewer(load, placement_of(settings, layers_that_fit, is_draft=is_draft), progress.note)


def _runtime(settings: Settings) -> Runtime:
    """How contexts are to compute."""
    from specd.llama.runtime import Runtime

    batch = settings.batch_size or max(Runtime().batch, settings.micro_batch_size or 0)
    flash = None if settings.flash_attn is FlashAttn.AUTO else settings.flash_attn is FlashAttn.ON
    return Runtime(batch, settings.micro_batch_size, settings.kv_type.value, flash)
