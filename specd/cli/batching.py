"""Many prompts with one model load: JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd.cli.building import Plan
from specd.cli.form import Form
from specd.cli.generating import Generator, Request, messages_of
from specd.cli.prompt import decoded
from specd.decoding.protocol import Event
from specd.decoding.statistics import Statistics
from specd.errors import Interrupted, SpecdError, UsageError
from specd.models.folders import write_whole
from specd.terminal.console import uses_color, warn
from specd.terminal.progress import TransferProgress
from specd.terminal.status import StatusLine, status_text
from specd.terminal.text import Output

_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "prompt": str,
    "id": (str, int),
    "system": str,
    "max_tokens": int,
    "seed": int,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the input.

    line:   counted from 1
    name:   its id, as the user gave it; None without one
    asked:  what it says; None when it cannot be understood, then `fault` says why
    """

    line: int
    name: str | int | None
    asked: Mapping[str, Any] | None
    fault: str | None = None

    @property
    def key(self) -> str | int:
        """What tells its result from others."""
        return self.line if self.name is None else f"id {self.name!r}"


def run_batch(plan: Plan, form: Form, file: Path, output: Path | None, *, skip_done: bool, stats: bool) -> int:
    """Answer all prompts of a file, in order. Each result is written as soon as it is there.

    Raises Interrupted when stopped: what was written stays, and the answer in the making is left out.
    """
    entries = read_entries(file)
    done = _done(output) if skip_done and output is not None else {}
    if output is None:
        num_failed, num_answered = _answer(plan, form, entries, Output(sys.stdout))
    elif output.exists() and not output.is_file():  # a pipe, a device
        with output.open("w", encoding="utf-8") as stream:
            num_failed, num_answered = _answer(plan, form, entries, Output(stream))
    else:
        kept = [entry for entry in entries if entry.key in done]
        _write(output, [done[entry.key] for entry in kept])
        rest = [entry for entry in entries if entry.key not in done]
        try:
            with output.open("a", encoding="utf-8") as stream:
                num_failed, num_answered = _answer(plan, form, rest, Output(stream))
        finally:
            results = _results(output)
            _write(output, [results[entry.key] for entry in entries if entry.key in results])
    if stats:
        print(f"{num_answered} answered, {len(done)} done before, {num_failed} failed", file=sys.stderr)
    if num_failed:
        raise SpecdError(f"{num_failed} of {len(entries)} prompts could not be answered: their results say why.")
    return 0


def read_entries(file: Path) -> list[Entry]:
    """The lines of a file, - for standard input. Raises UsageError for a file without prompts, and for ids that are
    there twice; a single line that is wrong becomes a result that says so."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(f"--batch {file} cannot be read: {error.strerror}.") from error
    lines = decoded(data, f"--batch {file}", warn).split("\n")
    entries = [_entry(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not entries:
        raise UsageError(f'--batch {file} has no prompts: give JSON lines such as {{"prompt": "Hello"}}.')
    seen: dict[str | int, int] = {}
    for entry in entries:
        if entry.key in seen:
            raise UsageError(f"--batch {file}: lines {seen[entry.key]} and {entry.line} have the same {entry.key}.")
        seen[entry.key] = entry.line
    return entries


def _entry(number: int, line: str) -> Entry:
    try:
        asked = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        return Entry(number, None, None, f"not JSON: {error}")
    if not isinstance(asked, dict):
        return Entry(number, None, None, f"not an object but {json.dumps(asked)[:40]}")
    name = asked.get("id") if isinstance(asked.get("id"), str | int) else None
    for field, value in asked.items():
        if field not in _FIELDS:
            return Entry(number, name, None, f"unknown field {field!r}; there are {', '.join(_FIELDS)}")
        if not isinstance(value, _FIELDS[field]) or isinstance(value, bool):
            return Entry(number, name, None, f"{field} cannot be {json.dumps(value)[:40]}")
    if not asked.get("prompt", "").strip():
        return Entry(number, name, None, "there is no prompt")
    if asked.get("max_tokens", 1) < 1 or asked.get("seed", 0) < 0:
        return Entry(number, name, None, "max_tokens is at least 1, and seed at least 0")
    return Entry(number, name, asked)


def _answer(plan: Plan, form: Form, entries: list[Entry], output: Output) -> tuple[int, int]:
    """How many failed, and how many were answered."""
    from specd.llama.library import Interrupt

    num_failed = num_answered = 0
    status = StatusLine(sys.stderr, output, time.monotonic, color=uses_color(sys.stderr))
    if not entries:
        return 0, 0
    with Generator(plan, form, TransferProgress(sys.stderr), Interrupt(), warn) as generator:
        for i, entry in enumerate(entries, start=1):
            result = _result(generator, plan, entry, status, f"{i} of {len(entries)}")
            failed = "error" in result
            num_failed, num_answered = num_failed + failed, num_answered + (not failed)
            named = {"line": entry.line} if entry.name is None else {"id": entry.name, "line": entry.line}
            output.write(json.dumps({**named, **result}, ensure_ascii=False) + "\n")
    return num_failed, num_answered


def _result(generator: Generator, plan: Plan, entry: Entry, status: StatusLine, place: str) -> dict[str, Any]:
    if entry.asked is None:
        return {"error": f"line {entry.line}: {entry.fault}."}
    settings = plan.settings
    request = Request(
        messages_of(entry.asked["prompt"], entry.asked.get("system", settings.system)),
        entry.asked.get("max_tokens", settings.max_tokens),
        entry.asked.get("seed", plan.seed),
    )

    def show(_: str, event: Event, statistics: Statistics) -> None:
        status.write("", lambda: f"{place} · {status_text(statistics, request.max_tokens)}")

    try:
        answer = generator.answer(request, show)
    except Interrupted:
        raise
    except SpecdError as error:
        return {"error": " ".join(str(error).split())}
    finally:
        status.erase()
    if answer.statistics.finish_reason == "interrupted":
        raise Interrupted("The batch was stopped.")
    return answer.as_json()


def _done(file: Path) -> dict[str | int, str]:
    """The results of a file that are answers, by key."""
    return {key: line for key, line in _results(file).items() if "error" not in json.loads(line)}


def _results(file: Path) -> dict[str | int, str]:
    """The lines of a file of results, by key. What is no result (a line that was cut) is left out."""
    return dict(_read_results(file)) if file.is_file() else {}


def _read_results(file: Path) -> Iterator[tuple[str | int, str]]:
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            result = json.loads(line)
            key = f"id {result['id']!r}" if "id" in result else int(result["line"])
        except (ValueError, KeyError, TypeError):
            continue
        yield key, line


def _write(file: Path, lines: list[str]) -> None:
    write_whole(file, "".join(f"{line}\n" for line in lines))
