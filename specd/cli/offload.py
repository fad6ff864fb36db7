"""Where models lie: options, and what they mean on the devices that are here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from specd.errors import EngineError, UsageError
from specd.models.fitting import Fit, Need, fit
from specd.models.gguf import Header, num_bytes, read_header
from specd.models.memory import memory_of

if TYPE_CHECKING:
    from specd.cli.settings import Settings
    from specd.llama.devices import Device
    from specd.llama.runtime import Placement, Runtime

AUTO, ALL, NONE = "auto", "all", "none"
ON_GPU = ("gpu", "igpu")  # kinds of devices
_PANEL = "Devices"
_Loaded = TypeVar("_Loaded")

GpuLayersOption = Annotated[
    str | None,
    typer.Option(
        "--gpu-layers",
        metavar="auto|all|N",
        help="Layers of the target on the GPU.",
        rich_help_panel=_PANEL,
        show_default="auto: all that fit",
    ),
]
DraftGpuLayersOption = Annotated[
    str | None,
    typer.Option(
        "--draft-gpu-layers",
        metavar="auto|all|N",
        help="Layers of the draft on the GPU.",
        rich_help_panel=_PANEL,
        show_default="auto: all that fit",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME,…|none",
        help="Devices that take layers, as `specd doctor` names them; none for the CPU alone.",
        rich_help_panel=_PANEL,
        show_default="all",
    ),
]
TensorSplitOption = Annotated[
    str | None,
    typer.Option(
        "--tensor-split",
        metavar="A,B,…",
        help="How much of the layers each device takes.",
        rich_help_panel=_PANEL,
        show_default="by free memory",
    ),
]
RpcOption = Annotated[
    str | None,
    typer.Option(
        "--rpc",
        metavar="HOST:PORT,…",
        help="RPC servers of llama.cpp that take layers of the target, as devices RPC0, RPC1, …",
        rich_help_panel=_PANEL,
    ),
]
MmapOption = Annotated[
    bool | None,
    typer.Option("--mmap/--no-mmap", help="Map or read model files.", rich_help_panel=_PANEL, show_default="auto"),
]
MlockOption = Annotated[
    bool | None, typer.Option("--mlock", help="Keep models in memory, never swapped out.", rich_help_panel=_PANEL)
]


def parse_layers(text: str, option: str) -> int | None:
    """Layers as a number, -1 for all; None for auto. Raises UsageError for anything else."""
    if text == AUTO:
        return None
    if text == ALL:
        return -1
    if not text.isdecimal():
        raise UsageError(f"{option} must be auto, all or a number of layers, not {text!r}.")
    return int(text)


def placement_of(settings: Settings, layers: int, *, is_draft: bool = False) -> Placement:
    """With everything that was asked for; a draft stays on this machine.

    Raises UsageError for shares that are no numbers.
    """
    from specd.llama.runtime import Placement

    names = settings.device.split(",") if settings.device else None
    if names == [NONE]:
        names = []
    if is_draft and settings.rpc:
        names = [device.name for device in usable_gpus(settings, is_draft=True)]
    try:
        split = tuple(map(float, settings.tensor_split.split(","))) if settings.tensor_split else ()
    except ValueError as error:
        raise UsageError(f"--tensor-split must be numbers, as in 3,1, not {settings.tensor_split!r}.") from error
    return Placement(
        gpu_layers=layers,
        devices=tuple(names) if names is not None else None,
        tensor_split=split,
        mmap=settings.mmap,
        mlock=settings.mlock,
        servers=servers(settings) if not is_draft else (),
    )


def servers(settings: Settings) -> tuple[str, ...]:
    """The RPC servers whose devices may take layers of the target."""
    return tuple(settings.rpc.split(",")) if settings.rpc else ()


def usable_gpus(settings: Settings, *, is_draft: bool = False) -> list[Device]:
    """The GPUs that may take layers, those of RPC servers among them; but for a draft, which stays here.

    Raises UsageError or EngineError where a server cannot be had.
    """
    from specd.llama.devices import devices

    if settings.rpc:
        from specd.llama.servers import reach

        reach(servers(settings))
    names = settings.device.split(",") if settings.device else None
    return [
        device
        for device in devices()
        if device.kind in ON_GPU and (names is None or device.name in names) and not (is_draft and device.is_remote)
    ]


def fitting_layers(
    gpus: list[Device], runtime: Runtime, path: Path, other: Path | None, n_ctx: int, rows: int
) -> tuple[int, Fit]:
    """Layers of a model that fit onto GPUs, and the whole of what was found.

    other:  the draft that is going to be loaded after it; None for a model that comes last
    """

    def need(file: Path, num_rows: int) -> Need:
        header: Header = read_header(file)
        memory = memory_of(header, num_bytes(file), kv_type=runtime.kv_type, batch=runtime.batch, rows=num_rows)
        return Need.of(header, memory, n_ctx)

    found = fit(need(path, rows), need(other, 1) if other is not None else None, [gpu.free_bytes for gpu in gpus])
    return found.target, found


def with_fewer(load: Callable[[Placement], _Loaded], placement: Placement, note: Callable[[str], None]) -> _Loaded:
    """Load; where that fails, with fewer and fewer layers on the GPU, at last with none. Raises the last error."""
    while True:
        try:
            return load(placement)
        except EngineError as error:
            if placement.gpu_layers == 0:
                raise
            fewer = placement.gpu_layers * 3 // 4
            note(f"{error} Trying {fewer} layers on the GPU.")
            placement = replace(placement, gpu_layers=fewer)
