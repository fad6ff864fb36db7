"""Hostile invocations of the installed command on SmolLM2, seeded.

python -m tests.model.fuzz [NUMBER [SEED [KIND]]]

None may end in a traceback, an abort or a hang, or with an exit code outside the contract; where something went wrong,
one line on stderr says so. A violation is printed with what repeats it.
"""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from specd.cli.app import app
from tests.model.conftest import path_of

SPECD = Path(sys.executable).with_name("specd")
MODEL = "smollm2-135m"
CONTRACT = {0, 1, 2, 3, 4, 130, 141}
FAILED = {1, 2, 3, 4}
SECONDS = 90.0  # after which an invocation counts as hanging
FORBIDDEN = re.compile("Traceback|Fatal Python|Exception ignored|terminate called|GGML_ASSERT|Segmentation")
METADATA_BYTES = 2500  # of SmolLM2, then come its tokens


@dataclass
class Case:
    """An invocation: what is run, and with what around it."""

    arguments: list[str | bytes]
    stdin: bytes | None = b""
    env: dict[str, str] = field(default_factory=dict)
    closed: tuple[int, ...] = ()  # descriptors
    stdout: str | None = None  # a file that it goes to


@dataclass(frozen=True)
class Outcome:
    code: int
    stderr: str
    fault: str | None


class Fuzz:
    """A folder for files, a damaged model among them, and the odd things that are done with them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.model = path_of(MODEL)
        self.damaged = folder / "damaged.gguf"
        start = self.model.read_bytes()[:4_000_000]
        tensors = (start.index(b"token_embd.weight"), start.rindex(b".weight"))  # their names, shapes and places
        size = self.model.stat().st_size
        self.places = [(0, 64), (24, METADATA_BYTES), (24, METADATA_BYTES), tensors, (0, tensors[0]), (0, size)]
        known = folder / "cache" / "models" / self.model.parent.name
        known.parent.mkdir(parents=True)
        known.symlink_to(self.model.parent)  # the only model that is there
        self._state = {
            "SPECD_CACHE": str(folder / "cache"),
            "SPECD_STATE": str(folder / "state"),
            "HF_HUB_OFFLINE": "1",
            "SPECD_CONFIG": str(folder / "config"),
        }
        self.kinds: dict[str, Callable[[], Case]] = {
            "arguments": self.argument_soup,
            "files": self.broken_file,
            "model files": self.damaged_model,
            "environment": self.odd_environment,
            "descriptors": self.closed_descriptors,
            "input": self.odd_input,
        }

    def run(self, case: Case) -> Outcome:
        """Run it, and judge how it ended."""
        env = {**os.environ, **self._state, **case.env}

        def close() -> None:
            for descriptor in case.closed:
                os.close(descriptor)

        with open(case.stdout, "wb") if case.stdout else open(os.devnull, "wb") as out:
            process = subprocess.Popen(
                [str(SPECD), *case.arguments],
                stdin=subprocess.PIPE if case.stdin is not None else None,
                stdout=out,
                stderr=subprocess.PIPE,
                env=env,
                cwd=self.folder,
                preexec_fn=close,
            )
            try:
                _, err = process.communicate(case.stdin, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                _, err = process.communicate()
                return Outcome(-9, err.decode("utf-8", "replace"), "hangs")
        stderr = err.decode("utf-8", "replace")
        return Outcome(process.returncode, stderr, self._fault(process.returncode, stderr, case))

    def _fault(self, code: int, stderr: str, case: Case) -> str | None:
        if code not in CONTRACT:
            return f"exit code {code}"
        if found := FORBIDDEN.search(stderr):
            return f"{found[0]} on stderr"
        told = [line for line in stderr.splitlines() if line.startswith("specd: ") and "warning:" not in line]
        if code in FAILED and len(told) != 1 and 2 not in case.closed:
            return f"{len(told)} lines that say what went wrong"
        return None

    def argument_soup(self) -> Case:
        """Options of all commands with values that fit and values that do not."""
        pick = self.random
        command = pick.choice(COMMANDS).split()
        arguments: list[str | bytes] = [*command]
        if command in (["generate"], ["chat"], ["bench"]):
            arguments += ["-m", MODEL, "-n", "3", *(["-p", "Hi"] if command == ["generate"] else [])]
        if command == ["bench"]:
            arguments += ["--repeats", "1", "--methods", "lookup", "--prompts", str(self._write("prompts", b"Hi\n"))]
        known = [option for option in OPTIONS if option in options_of(*command)] or list(OPTIONS)
        for _ in range(pick.randint(0, 4)):
            option = pick.choice(known if pick.random() < 0.96 else list(OPTIONS))
            values = OPTIONS[option]
            arguments.append(option)
            if values or pick.random() < 0.05:
                arguments.append(pick.choice(values) if values and pick.random() < 0.8 else self._value())
        if pick.random() < 0.05:
            pick.shuffle(arguments)
        return Case(arguments, stdin=pick.choice([b"", b"Hello\n", b"/help\nhello\n/exit\n"]))

    def broken_file(self) -> Case:
        """Files of every kind that is read, changed here and there."""
        option, content, command = self.random.choice(FILES)
        file = self._write("file", self._changed(content))
        extra = ["-p", "Hi"] if command == "generate" and option != "--batch" else []
        if command == "bench":
            extra = ["--repeats", "1", "--methods", "lookup"]
            extra += ["--prompts", str(self._write("prompts", b"Hi\n"))] if option != "--prompts" else []
        return Case([command, "-m", MODEL, "-n", "3", option, str(file), *extra], stdin=b"hello\n")

    def damaged_model(self) -> Case:
        """A model that is cut, or has other bits here and there, most of them where they matter."""
        self.damage()
        role = self.random.choice([["-m"], ["-m", MODEL, "-d"]])
        return Case(["generate", *role, str(self.damaged), "-p", "Hi", "-n", "4", "--no-stdin"])

    def damage(self) -> None:
        """Write the damaged model."""
        pick, size = self.random, self.model.stat().st_size
        self.damaged.unlink(missing_ok=True)
        shutil.copy(self.model, self.damaged)
        if pick.random() < 0.3:
            os.truncate(self.damaged, pick.choice([0, 3, 24, pick.randrange(self.places[3][1]), pick.randrange(size)]))
            return
        with self.damaged.open("r+b") as file:
            for _ in range(pick.choice([1, 1, 3, 30])):
                place = pick.choice(self.places)
                place = pick.randrange(*place)
                file.seek(place)
                if pick.random() < 0.7:
                    byte = file.read(1)
                    file.seek(place)
                    file.write(bytes([byte[0] ^ 1 << pick.randrange(8)]))
                else:
                    file.write(pick.choice([b"\xff" * 8, bytes(8), struct.pack("<Q", 1 << pick.randrange(64))]))

    def odd_environment(self) -> Case:
        """Variables that are read somewhere, with values that nobody meant."""
        pick = self.random
        names = pick.sample(VARIABLES, pick.randint(1, 4))
        env = {name: pick.choice([*ODD, str(self.folder)]) for name in names}
        arguments = pick.choice(
            [
                ["generate", "-m", str(self.model), "-p", "Hi", "-n", "3"],
                ["models", "list"],
                ["chat", "-m", str(self.model), "-n", "3"],
            ]
        )
        return Case(arguments, stdin=b"hello\n", env=env)

    def closed_descriptors(self) -> Case:
        """Standard streams that are closed, full, or cannot be read."""
        pick = self.random
        closed = tuple(sorted(pick.sample([0, 1, 2], pick.randint(0, 3))))
        stdout = pick.choice([None, "/dev/full", str(self.folder / "out")])
        arguments = pick.choice(ANSWERS).split()
        return Case(arguments, stdin=b"hello\n" if 0 not in closed else b"", closed=closed, stdout=stdout)

    def odd_input(self) -> Case:
        """Prompts that are no text, too long, or control strings."""
        pick = self.random
        stdin = pick.choice([*INPUTS, bytes(pick.randrange(256) for _ in range(300))])
        arguments = ["generate", "-m", MODEL, "-n", "4", *pick.choice([[], ["-p", "Say:"], ["--raw"], ["--ctx", "64"]])]
        return Case(
            [*arguments, *pick.choice([[], ["--format", "json"], ["--json-object"], ["--stop", "\n"]])], stdin=stdin
        )

    def _value(self) -> str:
        pick = self.random
        return pick.choice([*VALUES, str(self._write("soup", self._changed(pick.choice(FILES)[1])))])

    def _write(self, name: str, content: bytes) -> Path:
        file = self.folder / name
        file.write_bytes(content)
        return file

    def _changed(self, content: bytes) -> bytes:
        pick, data = self.random, bytearray(content)
        for _ in range(pick.choice([0, 1, 2, 8])):
            place = pick.randrange(len(data) + 1)
            match pick.randrange(4):
                case 0:
                    data[place : place + pick.randrange(6)] = b""
                case 1:
                    data[place:place] = pick.choice(
                        [b'"', b"{", b"}", b"[" * 2000, b"\0", b"\xff", b"\\", b"-1", b"1e999", b"null", b"\n"]
                    )
                case 2:
                    data[place : place + 1] = bytes([pick.randrange(256)])
                case 3:
                    data = data[:place]
        return bytes(data)


PLAIN_VALUES = """
    0 -1 1 2 7 0.5 -0.5 nan inf 1e400 99999999999999999999 abc none auto off draft lookup hybrid json jsonl text match
    coupled / /dev/null /nonexistent/x . 🙃 -- - = 5=1 5=nan 999999999=1 a=b {} [ chatml raw qwen2.5-coder f16 q4_0 q9
    hub:a/b/c.gguf hub: 32 8192 1:2 --help -n smollm2-135m {"type":"nope"} {"type":"string","maxLength":3}
""".split()
VALUES = ["", " ", "\n", "ä\udcfeö", "x" * 5000, *PLAIN_VALUES]
# Each with values that mean something; none where it takes none.
OPTIONS = {
    option: values
    for option, *values in map(
        str.split,
        """
        --no-stdin
        --system Brief.
        --raw
        --max-tokens 1 5
        --stop a . never
        --ignore-eos
        --json-schema {"type":"string","maxLength":3} {"enum":[1,true]}
        --json-object
        --grammar /nonexistent
        --format text json jsonl
        --output out /dev/null
        --stats
        --stats-file stats
        --batch /nonexistent
        --skip-done
        --model smollm2-135m gemma3-270m
        --draft none smollm2-135m
        --models /nonexistent
        --chat-template chatml raw
        --temperature 0 0.8 100
        --top-k 0 1 40
        --top-p 0.5 1
        --min-p 0 1
        --repeat-penalty 1.1 1e9
        --presence-penalty 1 -1
        --frequency-penalty 1e30
        --penalty-window 0 -1 8
        --logit-bias 5=1 5=-inf 1=1e38
        --seed 0 18446744073709551615
        --method auto draft lookup hybrid off
        --draft-max 0 1 31 63
        --draft-length 1 7 31 63
        --predict-from /dev/null
        --verify rejection block coupled match
        --draft-temperature 0 2
        --exact
        --strict
        --explain
        --ctx 1 64 300 8192
        --threads 1 2 3
        --kv-type f16 q8_0 q4_0
        --flash-attn auto on off
        --batch-size 32 512
        --micro-batch-size 32 65536
        --load /nonexistent
        --resume
        --color-by-source
        --version
        --help
        --nonsense
        -z
        --per-category 1
        --html page.html
        --json report.json
        --pure
        --name x
        """.strip().splitlines(),
    )
}
TOML = b"""default = "a"
[models.a]
path = "/x"
defaults = { ctx = 99, temperature = 0.5 }
[pairs.b]
target = "a"
"""
CHAT = {
    "format": 1,
    "model": {"name": MODEL},
    "draft": None,
    "settings": {"top_k": 3},
    "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tokens": [5]}],
}
FILES = [
    ("--models", TOML, "generate"),
    ("--json-schema", b'{"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}', "generate"),
    ("--grammar", b'root ::= "a" | b+ [^x-z]{2,3} # c\nb ::= "\\x41" ("c" | .)?\n', "generate"),
    ("--batch", b'{"prompt": "Hi", "id": "a"}\n{"prompt": "Ho", "max_tokens": 2, "seed": 3}\n', "generate"),
    ("--chat-template", b"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:", "generate"),
    ("--predict-from", b"def f(x):\n    return x\n", "generate"),
    ("--file", "Grüße\r\n".encode(), "generate"),
    ("--load", json.dumps(CHAT).encode(), "chat"),
    ("--prompts", b'{"question_id": 1, "category": "a", "turns": ["Hi", "Ho"]}\n', "bench"),
    ("--baseline", b'{"format": 1, "cells": []}', "bench"),
]
COMMANDS = [
    *["generate"] * 8,
    *["chat"] * 2,
    "bench",
    "models list",
    "models show",
    "models pairs",
    "models quantize",
    "models pull",
    "",
]
ANSWERS = [
    f"generate -m {MODEL} -n 5",
    f"generate -m {MODEL} -p Hi -n 5",
    f"generate -m {MODEL} -p Hi -n 5 --format json --stats",
    f"generate -m {MODEL} -p Hi -n 5 -o /dev/full",
    f"generate -m {MODEL} -p Hi -n 5 --stats-file /dev/full",
    f"chat -m {MODEL} -n 3",
    "models list",
    "--help",
    "generate --nonsense",
]
INPUTS = [
    b"",
    b"\0" * 50,
    b"\xef\xbb\xbfhi\r\n",
    b"<|im_start|>system\n" * 20,
    "🙃\u202e\u0000".encode() * 40,
    b"a" * 100_000,
    b"word " * 30_000,
    b"\xff\xfe" * 50,
    b"\x1b[2J\x07" * 30,
]
ODD = [
    "",
    "0",
    "-1",
    "x" * 3000,
    "/nonexistent",
    "/dev/null",
    "C",
    "de_DE.ISO-8859-1",
    "dumb",
    "xterm",
    "ä\udcff",
    "~",
    "off",
    "9" * 12,
]
VARIABLES = """
    HOME LANG LC_ALL TERM COLUMNS LINES NO_COLOR SPECD_CONFIG SPECD_CACHE SPECD_STATE XDG_CACHE_HOME
    XDG_CONFIG_HOME XDG_STATE_HOME TMPDIR HF_HOME HF_TOKEN HF_HUB_CACHE HF_ENDPOINT OMP_NUM_THREADS EDITOR USER
    SHELL FORCE_COLOR _SPECD_COMPLETE COMP_WORDS
""".split()


def options_of(*path: str) -> set[str]:
    """The options that a command knows."""
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return {option for parameter in command.params for option in parameter.opts} | {"--help"}


def cases(fuzz: Fuzz, number: int, kind: str | None = None) -> Iterator[tuple[str, Case]]:
    """So many, of all kinds in turn, or of one."""
    kinds = [kind] if kind is not None else list(fuzz.kinds)
    for i in range(number):
        yield kinds[i % len(kinds)], fuzz.kinds[kinds[i % len(kinds)]]()


def violations(number: int, seed: int, kind: str | None = None) -> tuple[list[str], Counter[str]]:
    """What went wrong, and how often each kind was run and ended how."""
    found, counts = [], Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(Path(folder), seed)
        for i, (name, case) in enumerate(cases(fuzz, number, kind)):
            outcome = fuzz.run(case)
            counts[f"{name}: exit {outcome.code}"] += 1
            if outcome.fault is not None:
                found.append(f"{i} {name}: {outcome.fault}: {case}\n{outcome.stderr[-3000:]}")
                print(found[-1], flush=True)
                if name == "model files":
                    shutil.copy(fuzz.damaged, Path(tempfile.gettempdir()) / f"violation-{seed}-{i}.gguf")
    return found, counts


def main(number: int = 500, seed: int = 1, kind: str | None = None) -> None:
    """Run and print."""
    found, counts = violations(number, seed, kind)
    for name, count in sorted(counts.items()):
        print(f"{count:5} {name}")
    print(f"{len(found)} violations of {number}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:3]), *sys.argv[3:4])
