"""What a schema costs and gains on the default pair: validity, seconds per token, and speed on the extraction prompt.

python -m tests.model.measure_constrained [PROMPTS [REPEATS]]

Answers with and without schema are decoded in turns, so that ratios mean something on a machine that does other things.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

import jsonschema

from specd.bench.workloads import load_workloads
from specd.cli.building import Plan, choose_draft
from specd.cli.form import Form
from specd.cli.generating import Answer, Generator, Request, messages_of
from specd.cli.settings import Settings
from specd.grammars.schema import schema_grammar
from specd.llama.library import Interrupt
from specd.models.registry import load_registry
from specd.terminal.console import silent
from specd.terminal.progress import TransferProgress

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "height": {"type": "number", "minimum": 0.4, "maximum": 2.5},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue", None]}, "minItems": 1, "maxItems": 4},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 40},
                "code": {"type": "string", "pattern": "^[0-9]{5}$"},
                "kind": {"enum": ["home", "work"]},
            },
            "required": ["street", "code", "kind"],
            "additionalProperties": False,
        },
        "friends": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 30}},
                "required": ["name"],
            },
            "maxItems": 2,
        },
    },
    "required": ["name", "age", "height", "colours", "address", "friends"],
    "additionalProperties": False,
}
ORDERS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("name", "email", "city", "items", "due", "payment")},
        "required": ["name", "email", "city", "items", "due", "payment"],
        "additionalProperties": False,
    },
}
PROMPT = "Invent a person number {}: name, age, height in metres, colours, address, friends. Answer with JSON only."


def generator(stack: ExitStack, schema: Mapping[str, Any] | None, **given: Any) -> Generator:
    registry = load_registry()
    settings = Settings.of(registry.target(None), given)
    plan = Plan(registry.target(None), choose_draft(registry, None, None, settings.method), settings, False, False, 0)
    form = Form(grammar=schema_grammar(json.dumps(schema), "it") if schema is not None else None)
    return stack.enter_context(Generator(plan, form, TransferProgress(sys.stderr), Interrupt(), silent))


def say(generator: Generator, prompt: str, max_tokens: int, seed: int) -> Answer:
    return generator.answer(Request(messages_of(prompt, None), max_tokens, seed), lambda *_: None)


def seconds_per_token(answer: Answer) -> float:
    return answer.statistics.decode_seconds / answer.statistics.num_completion_tokens


def main(num_prompts: int = 50, repeats: int = 5) -> None:
    """Measure and print."""
    with ExitStack() as stack:
        free = generator(stack, None, method="off", temperature=0.8)
        plain = generator(stack, PERSON, method="off", temperature=0.8)
        auto = generator(stack, PERSON, temperature=0.8)
        ratios, gains, num_valid = [], [], 0
        for i in range(num_prompts):
            answers = [say(each, PROMPT.format(i), 400, i) for each in (free, plain, auto)]
            ratios.append(seconds_per_token(answers[1]) / seconds_per_token(answers[0]))
            gains.append(seconds_per_token(answers[1]) / seconds_per_token(answers[2]))
            try:
                jsonschema.validate(json.loads(answers[2].text), PERSON)
                num_valid += 1
            except (ValueError, jsonschema.ValidationError) as error:
                print(f"invalid: {answers[2].statistics.finish_reason} {error} {answers[2].text!r}")
    print(f"{num_valid} of {num_prompts} valid at temperature 0.8, with speculation")
    print(f"seconds per token with the schema over without, both plain: median {median(ratios):.3f}")
    print(f"with the schema, auto over plain: median {median(gains):.2f}")
    workload = load_workloads()["extraction"]
    with ExitStack() as stack:
        free, auto = generator(stack, None, method="off"), generator(stack, ORDERS)
        speeds, times = [], []
        for _ in range(repeats):
            answers = [say(each, workload.turns[0], 800, 0) for each in (free, auto)]
            speeds.append(seconds_per_token(answers[0]) / seconds_per_token(answers[1]))
            times.append(answers[0].statistics.decode_seconds / answers[1].statistics.decode_seconds)
            jsonschema.validate(json.loads(answers[1].text), ORDERS)
    print(
        f"extraction, schema and auto over free and plain: tokens/s median {median(speeds):.2f} "
        f"({min(speeds):.2f}-{max(speeds):.2f}), whole answer {median(times):.2f}"
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
