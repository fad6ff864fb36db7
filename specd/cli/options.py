"""Options that several commands share: same names, same meaning everywhere."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_DRAFT_MAX = 3  # a target pass over 4 rows: the first knee of CPU kernels
DEFAULT_MAX_TOKENS = 1024


class Method(StrEnum):
    """Which drafters may be used."""

    AUTO = "auto"
    DRAFT = "draft"
    LOOKUP = "lookup"
    HYBRID = "hybrid"
    OFF = "off"

    @property
    def uses_lookup(self) -> bool:
        """Whether prompt lookup may draft."""
        return self in (Method.AUTO, Method.LOOKUP, Method.HYBRID)

    @property
    def uses_model(self) -> bool:
        """Whether a draft model may draft."""
        return self in (Method.AUTO, Method.DRAFT, Method.HYBRID)


_MODELS, _SPECULATION, _MACHINE = "Models", "Speculation", "Machine"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME|PATH",
        help="Model or pair from `specd models list`, a GGUF file, or hub:owner/repo/file.gguf.",
        rich_help_panel=_MODELS,
        show_default="the default pair",
    ),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "-d",
        metavar="NAME|PATH|none",
        help="Draft model.",
        rich_help_panel=_MODELS,
        show_default="the pair's",
    ),
]
ModelsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--models", metavar="FILE", help="A models.toml that adds to the known models.", rich_help_panel=_MODELS
    ),
]
MethodOption = Annotated[
    Method | None,
    typer.Option("--method", help="Which drafters may be used.", rich_help_panel=_SPECULATION, show_default="auto"),
]
DraftMaxOption = Annotated[
    int | None,
    typer.Option(
        "--draft-max",
        min=0,
        max=63,
        help="Most tokens to draft in a round.",
        rich_help_panel=_SPECULATION,
        show_default="3",
    ),
]
ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Bit-identical output with and without speculation (CPU; plain steps cost more).",
        rich_help_panel=_SPECULATION,
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Fail where a draft cannot be used as asked.", rich_help_panel=_SPECULATION),
]
CtxOption = Annotated[
    int | None,
    typer.Option(
        "--ctx",
        min=1,
        metavar="TOKENS",
        help="Context size.",
        rich_help_panel=_MACHINE,
        show_default="4096, or what the prompt needs",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=512,
        help="CPU threads.",
        rich_help_panel=_MACHINE,
        show_default="the cores this process may use",
    ),
]
