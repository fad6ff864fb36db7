"""Prompts to measure with: our own (`workloads.toml`), or a file of the user's."""

import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specd.errors import UsageError


@dataclass(frozen=True, slots=True)
class Workload:
    """What a person asks, and how much of the answers is decoded.

    category:      kind of text
    name:          tells it from others of its category; the same as the category where there is one
    turns:         what the person says, one after the other
    bench_tokens:  budget of each answer when measuring; 0 for what is not measured with
    max_tokens:    budget of the answer in recorded runs; 0 for what is not recorded
    predicted:     a text that will come again in the answer, where there is one; else empty
    """

    category: str
    name: str
    turns: tuple[str, ...]
    bench_tokens: int
    max_tokens: int
    predicted: str = ""


def load_workloads(section: str = "workloads") -> dict[str, Workload]:
    """The packaged workloads, by category; with "held_out", other texts of the same kinds."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    workloads = {}
    for entry in table[section]:
        document = table["documents"].get(entry.get("document"), "")
        first, *later = entry.get("turns") or [entry["prompt"]]
        workloads[entry["kind"]] = Workload(
            category=entry["kind"],
            name=entry["kind"],
            turns=(f"{first}\n\n{document}" if document else first, *later),
            bench_tokens=entry.get("bench_tokens", 0),
            max_tokens=entry.get("max_tokens", 0),
            predicted=document if entry.get("predicted") else "",
        )
    return workloads


def read_prompts(path: Path, max_tokens: int) -> list[Workload]:
    """The prompts of a file: JSON lines with `turns` (and `category`, `question_id`), or one prompt per line.

    Raises UsageError with the line that is neither.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"--prompts {path} cannot be read: {error.strerror or error}.") from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise UsageError(f"--prompts {path} has no prompts in it: give one per line, as text or as JSON with `turns`.")
    as_json = path.suffix in (".jsonl", ".json") or numbered[0][1].startswith("{")
    return [
        _parsed(f"{path} line {number}", line, number, max_tokens)
        if as_json
        else Workload(path.stem, str(number), (line,), max_tokens, 0)
        for number, line in numbered
    ]


def first_of_each(workloads: Sequence[Workload], number: int) -> list[Workload]:
    """The first ones of each category, in their order."""
    seen: Counter[str] = Counter()
    chosen = []
    for workload in workloads:
        seen[workload.category] += 1
        if seen[workload.category] <= number:
            chosen.append(workload)
    return chosen


def _parsed(place: str, line: str, number: int, max_tokens: int) -> Workload:
    try:
        entry = json.loads(line)
        turns = entry["turns"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f'{place} is not an object with "turns": {error}.') from error
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UsageError(f'{place}: "turns" must be a list of texts, not {json.dumps(turns)[:60]}.')
    name, category = str(entry.get("question_id", number)), str(entry.get("category", "prompts"))
    return Workload(category, name, tuple(turns), max_tokens, 0)
