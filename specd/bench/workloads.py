"""Prompts to measure with (`workloads.toml`)."""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Workload:
    """A prompt of one kind.

    max_tokens:  budget of the answer
    predicted:   a text that will come again in the answer, where the user has one; else empty
    """

    kind: str
    prompt: str
    max_tokens: int
    predicted: str


def load_workloads() -> dict[str, Workload]:
    """The packaged workloads, by kind."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    workloads = {}
    for entry in table["workloads"]:
        document = table["documents"].get(entry.get("document"), "")
        prompt = f"{entry['prompt']}\n\n{document}" if document else entry["prompt"]
        predicted = document if entry.get("predicted") else ""
        workloads[entry["kind"]] = Workload(entry["kind"], prompt, entry["max_tokens"], predicted)
    return workloads
