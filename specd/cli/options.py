"""Options that several commands share: same names, same meaning everywhere."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specd.decoding.pricing import MAX_DRAFT
from specd.decoding.sampling import SamplingParams
from specd.decoding.verify import RuleName

DEFAULT_DRAFT_MAX = MAX_DRAFT
MAX_DRAFT_LENGTH = 63
DEFAULT_MAX_TOKENS = 1024
DEFAULT_RULE = RuleName.BLOCK  # never accepts less than rejection, and measures best
_SAMPLING_DEFAULTS = SamplingParams()


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


class KvType(StrEnum):
    """Number formats of the KV cache."""

    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"


class FlashAttn(StrEnum):
    """Whether attention is computed in one go."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


_MODELS, _SPECULATION, _SAMPLING, _MACHINE = "Models", "Speculation", "Sampling", "Machine"

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
        max=MAX_DRAFT_LENGTH,
        help="Most tokens to draft in a round.",
        rich_help_panel=_SPECULATION,
        show_default=str(DEFAULT_DRAFT_MAX),
    ),
]
DraftLengthOption = Annotated[
    int | None,
    typer.Option(
        "--draft-length",
        min=1,
        max=MAX_DRAFT_LENGTH,
        metavar="N",
        help="Draft this many tokens every round, whatever it costs: for experiments.",
        rich_help_panel=_SPECULATION,
    ),
]
PredictFromOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--predict-from",
        metavar="FILE",
        help="A text that will come again in the answer, such as the old version of a file. Repeatable.",
        rich_help_panel=_SPECULATION,
        show_default="none",
    ),
]
ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain", help="Say on stderr what drafting cost and gained here, and why.", rich_help_panel=_SPECULATION
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
VerifyOption = Annotated[
    RuleName | None,
    typer.Option(
        "--verify",
        help="Rule that accepts drafted tokens; all are lossless.",
        rich_help_panel=_SPECULATION,
        show_default=DEFAULT_RULE,
    ),
]
DraftTemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--draft-temperature",
        metavar="X",
        help="The draft model's own temperature.",
        rich_help_panel=_SPECULATION,
        show_default="--temperature",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        "-t",
        metavar="X",
        help="0 is greedy; higher is more varied.",
        rich_help_panel=_SAMPLING,
        show_default=f"{_SAMPLING_DEFAULTS.temperature:g}",
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        metavar="K",
        help="Keep the K most likely tokens; 0 keeps all.",
        rich_help_panel=_SAMPLING,
        show_default=f"{_SAMPLING_DEFAULTS.top_k:g}",
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        metavar="P",
        help="Keep the fewest tokens that sum to P.",
        rich_help_panel=_SAMPLING,
        show_default=f"{_SAMPLING_DEFAULTS.top_p:g}",
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        metavar="P",
        help="Keep tokens at least P times as likely as the likeliest.",
        rich_help_panel=_SAMPLING,
        show_default=f"{_SAMPLING_DEFAULTS.min_p:g}",
    ),
]
RepeatPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--repeat-penalty",
        metavar="X",
        help="Above 1: tokens seen lately are less likely.",
        rich_help_panel=_SAMPLING,
        show_default=f"{_SAMPLING_DEFAULTS.repeat_penalty:g}",
    ),
]
PresencePenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--presence-penalty",
        metavar="X",
        help="Off the logits of tokens seen lately.",
        rich_help_panel=_SAMPLING,
        show_default=f"{_SAMPLING_DEFAULTS.presence_penalty:g}",
    ),
]
FrequencyPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--frequency-penalty",
        metavar="X",
        help="The same, times how often.",
        rich_help_panel=_SAMPLING,
        show_default=f"{_SAMPLING_DEFAULTS.frequency_penalty:g}",
    ),
]
PenaltyWindowOption = Annotated[
    int | None,
    typer.Option(
        "--penalty-window",
        metavar="TOKENS",
        help="Tokens that count as lately; -1 all.",
        rich_help_panel=_SAMPLING,
        show_default=f"{_SAMPLING_DEFAULTS.penalty_window:g}",
    ),
]
LogitBiasOption = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID=BIAS",
        help="Added to the logit of a token. Repeatable.",
        rich_help_panel=_SAMPLING,
        show_default="none",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        metavar="N",
        help="Makes sampled text repeatable; implies --verify coupled where none is given.",
        rich_help_panel=_SAMPLING,
        show_default="random",
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", metavar="TEXT", help="Ends the answer, and is not part of it. Repeatable.", show_default="none"
    ),
]
ChatTemplateOption = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        metavar="NAME|FILE",
        help="A Jinja file, or chatml, llama3, gemma, raw.",
        rich_help_panel=_MODELS,
        show_default="the model's own",
    ),
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
KvTypeOption = Annotated[
    KvType | None,
    typer.Option(
        "--kv-type",
        help="Number format of the KV cache; other than f16, it changes the text a little.",
        rich_help_panel=_MACHINE,
        show_default=KvType.F16,
    ),
]
FlashAttnOption = Annotated[
    FlashAttn | None,
    typer.Option("--flash-attn", help="Flash attention.", rich_help_panel=_MACHINE, show_default=FlashAttn.AUTO),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=32,
        max=65536,
        metavar="TOKENS",
        help="Tokens of a prompt per decode.",
        rich_help_panel=_MACHINE,
        show_default="512",
    ),
]
MicroBatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--micro-batch-size",
        min=32,
        max=65536,
        metavar="TOKENS",
        help="Tokens of a prompt that are computed at once.",
        rich_help_panel=_MACHINE,
        show_default="--batch-size",
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
