"""The `specd` command: where errors become one line of text and an exit code."""

import errno
import os
import re
import signal
import sys
from enum import IntEnum
from typing import Annotated, Any, NoReturn, TextIO

import typer

from specd import __version__
from specd.cli import bench, chat, doctor, generate, models, pairs, quantize, slim
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

_COMPLETION = "_SPECD_COMPLETE"  # set by a shell that wants completions
_COMPLETES = re.compile("(complete|source)_(bash|zsh|fish|powershell|pwsh)")
_CommandLineError: Any = typer.BadParameter.__base__  # of all complaints about arguments; typer exports only this one

app = typer.Typer(
    help="Run local GGUF models faster with lossless speculative decoding.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="generate")(generate.command)
app.command(name="chat")(chat.command)
app.command(name="bench")(bench.command)
app.command(name="doctor")(doctor.command)
models.app.command(name="pairs")(pairs.command)
models.app.command(name="quantize")(quantize.command)
models.app.command(name="slim")(slim.command)
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


def run() -> int:
    """Run the command line of this process and give its exit code."""
    _reopen_closed()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # UTF-8 whatever the locale: model text is not limited to it
            stream.reconfigure(encoding="utf-8", errors="replace", newline="\n")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _terminate)
    try:
        code = _invoke()
        sys.stdout.flush()
        return code
    except typer.Exit as exit_:
        return exit_.exit_code
    except _CommandLineError as error:
        return _failed(error.format_message(), ExitCode.USAGE)
    except Interrupted:
        return ExitCode.INTERRUPTED
    except SpecdError as error:
        return _failed(str(error), next(code for kind, code in _CODES if isinstance(error, kind)))
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except SystemExit as exit_:
        if isinstance(exit_.__context__, BrokenPipeError):  # what rich makes of it
            return ExitCode.READER_GONE
        raise
    except OSError as error:
        _detach(sys.stdout)
        if error.errno == errno.EPIPE:
            return ExitCode.READER_GONE
        if error.errno == errno.EBADF:
            return _failed("Standard output is closed, so the answer can go nowhere.", ExitCode.FAILED)
        return _failed(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", ExitCode.FAILED)


def _reopen_closed() -> None:
    """Put something in the place of standard streams that are closed, or the next file that is opened would get what
    is written to them. What would be read is empty; what would be answered cannot be, and that is told."""
    flags = {"stdin": os.O_RDONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}  # nothing can be written to stdout
    for number, (name, flag) in enumerate(flags.items()):
        if getattr(sys, name) is None:
            if (opened := os.open(os.devnull, flag)) != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _terminate(number: int, _: object) -> NoReturn:
    raise Interrupted(f"Stopped by {signal.Signals(number).name}.")


def _invoke() -> int:
    """Parse and run without the error handling of typer, which has exit codes of its own."""
    command = typer.main.get_command(app)
    if _COMPLETES.fullmatch(os.environ.get(_COMPLETION, "")):
        command(prog_name="specd")
    arguments = sys.argv[1:] or ["--help"]
    with command.make_context("specd", arguments) as context:
        return int(command.invoke(context) or ExitCode.DONE)


def _failed(message: str, code: ExitCode) -> int:
    """One line on stderr."""
    print(f"specd: {' '.join(message.split())}", file=sys.stderr)
    return code


def _detach(stream: TextIO | None) -> None:
    """Let the interpreter's own last flush of a broken stream go nowhere, silently."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
