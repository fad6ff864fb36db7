"""`specd models quantize`: a model that is here, in another number format."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from specd.cli.models import located
from specd.cli.options import ModelsFileOption
from specd.errors import SpecdError, UsageError
from specd.models.gguf import read_header
from specd.models.registry import Model, Registry, add_model, load_registry
from specd.models.store import Store, require_space
from specd.terminal.progress import TransferProgress


def command(
    model: Annotated[str, typer.Argument(help="A model that is here: a name, a pair, or a path.")],
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="Such as q4_0, iq4_nl, q4_k_m, q8_0.")],
    pure: Annotated[bool, typer.Option("--pure", help="Every matrix in this very type.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name.", show_default="MODEL-TYPE")
    ] = None,
    models: ModelsFileOption = None,
) -> None:
    """Write a model in another quantisation, next to the original, and add it to your models.toml.

    A draft whose rows do not fit its format is slow: models pairs says where this would help.
    """
    from specd.llama.devices import usable_cores
    from specd.llama.quantize import TYPES, quantize
    from specd.llama.trial import TRIALS, Request, ensure_survival

    registry, store, progress = load_registry(models), Store(), TransferProgress(sys.stderr)
    if kind.lower() not in TYPES:
        raise UsageError(f"There is no type {kind!r}. Known: {', '.join(TYPES)}.")
    kind = kind.lower()
    source, path = located(registry, model, store, progress)
    name = name or default_name(source.name, kind, pure=pure)
    check_name(name, registry)
    target = store.folder / "models" / "quantized" / f"{name}.gguf"
    needed = int(read_header(path).num_parameters * TYPES[kind] / 8) + path.stat().st_size // 8
    require_space(target.parent, needed, f"Writing {name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    ensure_survival(Request(str(path), usable_cores(), 1), store.folder / TRIALS)
    unfinished = target.with_suffix(f".{os.getpid()}")
    done = 0

    def show(count: int, total: int) -> None:
        nonlocal done
        if not done:
            progress.start(f"quantising {source.name} to {kind}", path.stat().st_size)
        progress.advance((count - done) * path.stat().st_size // total)
        done = count

    try:
        quantize(path, unfinished, kind, pure=pure, threads=usable_cores(), progress=show)
        unfinished.replace(target)
    finally:
        progress.finish()
        unfinished.unlink(missing_ok=True)
    file = register(name, source, target)
    before, after = path.stat().st_size, target.stat().st_size
    print(f"{name}: {after / 1e9:.2f} GB, was {before / 1e9:.2f} GB. {target}")
    progress.note(f"It is in {file}. Try it: specd generate --draft {name} …")


def default_name(source: str, kind: str, *, pure: bool) -> str:
    """What a requantised model is called when nobody says otherwise."""
    return f"{source.removesuffix('.gguf')}-{kind}{'-pure' if pure else ''}"


def check_name(name: str, registry: Registry) -> None:
    """Raises UsageError for a name that cannot be one, or is taken."""
    if not re.fullmatch(r"[\w.+-]+", name):
        raise UsageError(f"{name!r} cannot be a name: use letters, digits, dots, dashes and underscores.")
    if name in registry.models or name in registry.pairs:
        raise UsageError(f"There is a model or pair {name!r} already: take another name with --name.")


def register(name: str, source: Model, target: Path, *, replaces: bool = False) -> Path:
    """Write a file made of another model into the user's models.toml, or remove it where that fails."""
    entry: dict[str, str | int] = {"path": str(target), "bytes": target.stat().st_size}
    if source.license:
        entry["license"] = source.license
    try:
        return add_model(name, entry, replaces=replaces)
    except SpecdError:
        target.unlink(missing_ok=True)
        raise
