"""`specd chat`: a conversation in the terminal."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from specd.chat.conversation import Session
from specd.chat.templates import read_template
from specd.cli import offload, options
from specd.cli.chatting import Chat
from specd.cli.prompt import checked_stops, clean
from specd.cli.talk import Talk, last_session
from specd.errors import UsageError
from specd.models.registry import check_options, load_registry
from specd.terminal.console import uses_color, warn
from specd.terminal.progress import TransferProgress
from specd.terminal.transcript import Transcript


def command(
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="A first message.", show_default="none")] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system message.")] = None,
    load: Annotated[
        Path | None, typer.Option("--load", metavar="FILE", help="Go on with a conversation kept by /save.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last conversation.")] = False,
    color_by_source: Annotated[
        bool, typer.Option("--color-by-source", help="Colour tokens by who proposed them.")
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", min=1, help="Most tokens of an answer.", show_default=str(options.DEFAULT_MAX_TOKENS)
        ),
    ] = None,
    stop: options.StopOption = None,
    model: options.ModelOption = None,
    draft: options.DraftOption = None,
    models: options.ModelsFileOption = None,
    chat_template: options.ChatTemplateOption = None,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    min_p: options.MinPOption = None,
    repeat_penalty: options.RepeatPenaltyOption = None,
    presence_penalty: options.PresencePenaltyOption = None,
    frequency_penalty: options.FrequencyPenaltyOption = None,
    penalty_window: options.PenaltyWindowOption = None,
    seed: options.SeedOption = None,
    method: options.MethodOption = None,
    draft_max: options.DraftMaxOption = None,
    draft_length: options.DraftLengthOption = None,
    verify: options.VerifyOption = None,
    draft_temperature: options.DraftTemperatureOption = None,
    exact: options.ExactOption = False,
    strict: options.StrictOption = False,
    ctx: options.CtxOption = None,
    threads: options.ThreadsOption = None,
    kv_type: options.KvTypeOption = None,
    flash_attn: options.FlashAttnOption = None,
    gpu_layers: offload.GpuLayersOption = None,
    draft_gpu_layers: offload.DraftGpuLayersOption = None,
    device: offload.DeviceOption = None,
    tensor_split: offload.TensorSplitOption = None,
    rpc: offload.RpcOption = None,
    mmap: offload.MmapOption = None,
    mlock: offload.MlockOption = None,
) -> int:
    """Talk with a model. /help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.

    Without a terminal, each line of standard input is a message, and standard output has the answers.
    """
    from specd.llama.library import Interrupt

    if load is not None and resume:
        raise UsageError("--load and --resume both name a conversation to go on with: give one of them.")
    given = {
        "ctx": ctx,
        "threads": threads,
        "kv_type": kv_type,
        "flash_attn": flash_attn,
        "gpu_layers": gpu_layers,
        "draft_gpu_layers": draft_gpu_layers,
        "device": device,
        "tensor_split": tensor_split,
        "rpc": rpc,
        "mmap": mmap,
        "mlock": mlock,
        "method": method,
        "draft_max": draft_max,
        "draft_length": draft_length,
        "max_tokens": max_tokens,
        "system": system,
        "verify": verify,
        "seed": seed,
        "draft_temperature": draft_temperature,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "penalty_window": penalty_window,
    }
    session = Session.load(load or last_session()) if load is not None or resume else None
    if session is not None:
        known = session.models["model"]
        assert known is not None
        model = model or known["name"]
        if draft is None and (drafted := session.models["draft"]) is not None:
            draft = drafted["name"]
        check_options(session.settings, f"{load or last_session()}: settings")
        given = {**session.settings, **{name: value for name, value in given.items() if value is not None}}
    interrupt, registry = Interrupt(), load_registry(models)
    chat = Chat(
        registry,
        model,
        draft,
        {name: value for name, value in given.items() if value is not None},
        template=read_template(chat_template) if chat_template is not None else None,
        stops=checked_stops(stop),
        exact=exact,
        strict=strict,
        seed=seed if seed is not None else secrets.randbits(32),
        progress=TransferProgress(sys.stderr),
        interrupt=interrupt,
        warn=warn,
    )
    screen = Transcript(sys.stdout, sys.stderr, time.monotonic, color=uses_color(sys.stdout))
    screen.by_source = color_by_source
    talk = Talk(chat, registry, screen, interrupt)
    try:
        talk.begin(session, system)
        return talk.run(clean(prompt, "--prompt", warn) if prompt is not None else None)
    finally:
        chat.close()
