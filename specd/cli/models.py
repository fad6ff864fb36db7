"""`specd models`: which models are known, which are here, and getting them."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from specd.cli.building import DEFAULT_CTX
from specd.cli.options import CtxOption, KvType, KvTypeOption, ModelsFileOption
from specd.errors import SpecdError, UnknownModel
from specd.models.fetch import fetch, locate
from specd.models.folders import config_folder
from specd.models.gguf import Header, read_header
from specd.models.memory import memory_of
from specd.models.registry import FILE_NAME, Model, Registry, load_registry
from specd.models.store import Store
from specd.terminal.progress import TransferProgress
from specd.terminal.text import is_terminal

_VOCABULARY = [f"tokenizer.ggml.{key}" for key in ("model", "pre", "merges", "scores", "bos_token_id")]

app = typer.Typer(help="Known models: list, fetch, describe.", no_args_is_help=True)


@app.command(name="list")
def list_(models: ModelsFileOption = None) -> None:
    """List known models: size, whether they are here, licence, and what they draft for."""
    registry, store = load_registry(models), Store()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("NAME", "SIZE", "HERE", "LICENCE", "SOURCES", "ROLE"):
        table.add_column(title, justify="right" if title == "SIZE" else "left", no_wrap=True)
    for name, model in registry.models.items():
        place = "yes" if here(model, store) else "no"
        size = f"{model.bytes / 1e9:.2f} GB" if model.bytes else "?"
        table.add_row(name, size, place, model.license or "?", _sources(model), _role(registry, name))
    tables().print(table)
    if is_terminal(sys.stdout):
        print(f"\nThe default is {registry.default}. Your own models go into {config_folder() / FILE_NAME}.")


@app.command()
def pull(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Models or pairs.", show_default="the default pair")
    ] = None,
    models: ModelsFileOption = None,
) -> None:
    """Fetch models that are not here yet, check them, and print their paths."""
    registry, store = load_registry(models), Store()
    wanted: list[Model] = []
    for name in names or [registry.default]:
        wanted.append(registry.target(name))
        if name in registry.pairs and (draft := registry.draft_for(name)) is not None:
            wanted.append(draft)
    for model in wanted:
        print(fetch(model, store, TransferProgress(sys.stderr)), flush=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A model, a pair, a path, or hub:owner/repo/file.gguf.")],
    ctx: CtxOption = None,
    kv_type: KvTypeOption = None,
    models: ModelsFileOption = None,
) -> None:
    """Describe a model: its entry, and what its file says when it is here, with the memory that a context takes."""
    registry, store = load_registry(models), Store()
    model = registry.target(name)
    path = locate(model, store, TransferProgress(sys.stderr))
    rows = [("name", model.name), ("file", str(path) if path else f"{model.file} (not here: specd models pull {name})")]
    rows += [("sources", _sources(model)), ("licence", model.license or "?")]
    rows += [("sha256", model.sha256 or "not known")]
    if (role := _role(registry, model.name)) != "":
        rows.append(("role", role))
    if path is not None:
        rows.append(("size", f"{path.stat().st_size / 1e9:.2f} GB"))
        header = read_header(path)
        rows += _described(header)
        rows += _memory(header, path.stat().st_size, ctx, kv_type or KvType.F16)
        rows.append(("drafts", _drafts(registry, store, header, path)))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    tables().print(table)


def _described(header: Header) -> list[tuple[str, str]]:
    types = ", ".join(f"{name} {share:.0%}" for name, share in header.types() if share >= 0.005)
    window = header.of_architecture("attention.sliding_window")
    template = header.metadata.get("tokenizer.chat_template")
    return [
        ("architecture", header.architecture + (f", sliding window of {window} tokens" if window else "")),
        ("parameters", f"{header.num_parameters / 1e6:,.0f} million"),
        ("quantisation", types),
        ("context", f"{header.of_architecture('context_length') or '?'} tokens"),
        ("vocabulary", f"{header.vocabulary_size or '?'} tokens"),
        ("chat template", "yes" if template else "none: it continues plain text"),
    ]


def _memory(header: Header, size: int, ctx: int | None, kv_type: KvType) -> list[tuple[str, str]]:
    memory, trained = memory_of(header, size, kv_type=kv_type), header.of_architecture("context_length") or 0
    rows = []
    for n_ctx in (ctx,) if ctx is not None else sorted({min(DEFAULT_CTX, trained), trained} - {0}):
        total = memory.total(n_ctx)
        if total is not None:
            cache = (memory.cache(n_ctx) or 0) / 1e9
            rows.append(
                (f"at --ctx {n_ctx}", f"{total / 1e9:.2f} GB of memory, {cache:.2f} of it KV cache ({kv_type})")
            )
    goes_back = "by saved states, as it has recurrent layers" if header.is_recurrent else "yes"
    return [*rows, ("can go back", goes_back)]


def _drafts(registry: Registry, store: Store, header: Header, path: Path) -> str:
    """Models that are here, are smaller and say that they have the same vocabulary."""
    fitting = []
    for model in registry.models.values():
        file = here(model, store)
        if file is None or file.stat().st_size >= path.stat().st_size:
            continue
        try:
            other = read_header(file)
        except SpecdError:
            continue
        if all(header.metadata.get(key) == other.metadata.get(key) for key in _VOCABULARY):
            fitting.append(model.name)
    return f"{', '.join(fitting)} (specd models pairs tells what each would gain)" if fitting else "none is here"


def located(registry: Registry, name: str | None, store: Store, progress: TransferProgress) -> tuple[Model, Path]:
    """The model of a name, and its file. Raises UnknownModel, with the command that fetches it, when it is not here."""
    model = registry.target(name)
    path = locate(model, store, progress)
    if path is None:
        raise UnknownModel(f"{model.name} is not here: specd models pull {name or model.name}")
    return model, path


def here(model: Model, store: Store) -> Path | None:
    """The model's file, None when it is not here or cannot be used."""
    try:
        return locate(model, store)
    except SpecdError:
        return None


def _sources(model: Model) -> str:
    if model.path is not None:
        return "local"
    names = [name for name, there in (("hub", model.hub), ("mirror", model.wheels)) if there]
    return ", ".join(names) or "none"


def _role(registry: Registry, name: str) -> str:
    roles = [f"target of {pair}" for pair, (target, _) in registry.pairs.items() if target == name]
    roles += [f"draft of {pair}" for pair, (_, draft) in registry.pairs.items() if draft == name]
    return ", ".join(roles)


def tables() -> Console:
    """Tables on a terminal fit it; in a pipe lines are never cut or wrapped."""
    return Console(width=None if is_terminal(sys.stdout) else 1000, highlight=False, markup=False)
