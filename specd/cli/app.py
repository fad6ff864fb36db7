"""The `specd` command: where errors become one line of text and an exit code."""

import errno
import os
import sys
from enum import IntEnum
from typing import Annotated, TextIO

import click
import typer

from specd import __version__
from specd.cli import generate, models
from specd.errors import Interrupted, ModelNotAvailable, PromptTooLong, SpecdError, UsageError


class ExitCode(IntEnum):
    """The contract with shells and scripts."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    MODEL_NOT_AVAILABLE = 3
    PROMPT_TOO_LONG = 4
    INTERRUPTED = 130
    READER_GONE = 141


_CODES: tuple[tuple[type[SpecdError], ExitCode], ...] = (
    (UsageError, ExitCode.USAGE),
    (ModelNotAvailable, ExitCode.MODEL_NOT_AVAILABLE),
    (PromptTooLong, ExitCode.PROMPT_TOO_LONG),
    (SpecdError, ExitCode.FAILED),
)

app = typer.Typer(
    help="Run local GGUF models faster with lossless speculative decoding.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="generate")(generate.command)
app.add_typer(models.app, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run())


def run() -> int:
    """Run the command line of this process and give its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # UTF-8 whatever the locale: model text is not limited to it
            stream.reconfigure(encoding="utf-8", errors="replace", newline="\n")
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return int(code or ExitCode.DONE)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return ExitCode.USAGE
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "specd"
        return _failed(f"{error.format_message()} See {where} --help.", ExitCode.USAGE)
    except Interrupted:
        return ExitCode.INTERRUPTED
    except SpecdError as error:
        return _failed(str(error), next(code for kind, code in _CODES if isinstance(error, kind)))
    except (KeyboardInterrupt, click.exceptions.Abort):
        return ExitCode.INTERRUPTED
    except OSError as error:
        if error.errno == errno.EPIPE:
            _detach(sys.stdout)
            return ExitCode.READER_GONE
        _detach(sys.stdout)
        return _failed(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", ExitCode.FAILED)


def _failed(message: str, code: ExitCode) -> int:
    """One line on stderr."""
    print(f"specd: {' '.join(message.split())}", file=sys.stderr)
    return code


def _detach(stream: TextIO | None) -> None:
    """Let the interpreter's own last flush of a broken stream go nowhere, silently."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
