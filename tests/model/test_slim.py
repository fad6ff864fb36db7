"""`specd models slim`, as a process on real files."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.llama.engine import Engine
from specd.llama.pairing import compare_vocabularies
from specd.models.gguf import read_header
from specd.models.store import Store
from tests.model.conftest import open_engine, path_of

SPECD = Path(sys.executable).with_name("specd")
MODEL = "smollm2-135m"
NAMES = ("test-slim", "test-slim-again", "test-short", "test-gemma")
PROMPT = "Explain in two sentences why the sky over the Þingvellir harbour is blue, then name 三 colours as JSON."


def specd(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = subprocess.run(
        [SPECD, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | (env or {})
    )
    return result.returncode, result.stdout, result.stderr


def file_of(name: str) -> Path:
    return Store().folder / "models" / "slim" / f"{name}.gguf"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Folders of the tests' own for what is configured and learned."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "prompts.txt").write_text("Name three birds.\nWhat is rain?\nCount from 1 to 20.\n")
    yield {"SPECD_CONFIG": str(folder), "SPECD_STATE": str(folder / "state"), "PROMPTS": str(folder / "prompts.txt")}
    for name in NAMES:
        file_of(name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def slim(own: dict[str, str]) -> str:
    """SmolLM2 with a third of its tokens and a layer less."""
    code, out, _ = specd(
        *("models", "slim", MODEL, "--target", MODEL, "--vocab", "16384", "--type", "q4_0-pure"),
        *("--layers", "0-27,29", "--name", NAMES[0], "--calibrate", own["PROMPTS"]),
        env=own,
    )
    assert code == 0
    assert "On texts that it was not chosen by: a drafted token costs" in out
    assert f"{NAMES[0]}: q4_0-pure, 16384 tokens, 29 layers." in out
    return NAMES[0]


def test_the_file_says_what_it_was_made_of(slim: str, own: dict[str, str]) -> None:
    header, parent = read_header(file_of(slim)), read_header(path_of(MODEL))
    assert header.of_architecture("block_count") == 29
    assert header.vocabulary_size == 16384 - 16384 % 64
    assert header.metadata["specd.slim.parent.sha256"].startswith("b179c952")
    assert header.metadata["specd.slim.type"] == "q4_0-pure"
    assert 0 < header.metadata["specd.slim.agreement"] <= header.metadata["specd.slim.parent.agreement"] <= 1
    assert header.metadata["specd.slim.cost"] > 0
    assert file_of(slim).stat().st_size < 0.85 * path_of(MODEL).stat().st_size
    assert header.metadata["tokenizer.ggml.pre"] == parent.metadata["tokenizer.ggml.pre"]
    entry = tomllib.loads((Path(own["SPECD_CONFIG"]) / "models.toml").read_text())["models"][slim]
    assert entry["path"] == str(file_of(slim))


def test_the_same_command_gives_the_same_bytes(slim: str, own: dict[str, str]) -> None:
    first = file_of(slim).read_bytes()
    arguments = ["models", "slim", MODEL, "--target", MODEL, "--vocab", "16384", "--type", "q4_0-pure"]
    arguments += ["--layers", "0-27,29", "--calibrate", own["PROMPTS"]]
    for name in (NAMES[0], NAMES[1]):  # again in its place, and beside it
        assert specd(*arguments, "--name", name, env=own)[0] == 0
        assert file_of(name).read_bytes() == first


def test_its_tokenizer_is_a_valid_one(slim: str) -> None:
    with Engine(file_of(slim), threads=1, max_rows=1) as draft, open_engine(MODEL) as target:
        pairing = compare_vocabularies(target.vocabulary, draft.vocabulary)
        assert (pairing.num_shared, pairing.reason, pairing.is_cut, pairing.others) == (16384, None, True, ())
        for text in (PROMPT, "def f(x):\n    return x\n"):
            tokens = draft.vocabulary.tokenize(text, add_special=False, parse_special=False)
            assert b"".join(draft.vocabulary.piece(token) for token in tokens.tolist()).decode() == text


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_answers_are_those_without_it(slim: str, own: dict[str, str], temperature: str) -> None:
    """Bit for bit, in exact mode; sampled by the rule whose text does not depend on what is drafted."""
    common = ("generate", "-m", MODEL, "-p", PROMPT, "-n", "96", "--no-stdin", "--exact", "-t", temperature)
    common += ("--seed", "5", "--verify", "coupled", "--format", "json")
    plain = json.loads(specd(*common, "--method", "off", env=own)[1])
    for how in (("--method", "draft", "--draft-length", "4"), ()):
        drafted = json.loads(specd(*common, "-d", slim, *how, env=own)[1])
        assert drafted["text"] == plain["text"]
        if how:
            assert drafted["stats"]["num_accepted_tokens"] > 3


def test_greedy_and_sampled_text_with_it_pass_the_check(slim: str, own: dict[str, str]) -> None:
    code, out, _ = specd(
        *("bench", "--check", "-m", MODEL, "-d", slim, "--prompts", own["PROMPTS"], "--per-category", "1", "-n", "24"),
        env=own,
    )
    assert code == 0
    assert "checks passed" in out.splitlines()[-1]
    assert any("draft" in line for line in out.splitlines())


def test_a_draft_is_told_not_to_gain_when_it_does_not(own: dict[str, str]) -> None:
    """A model as a draft of itself, without half of its layers."""
    code, out, _ = specd(
        *("models", "slim", MODEL, "--target", MODEL, "--layers", "0-9,20-29", "--vocab", "all", "--type", "same"),
        *("--name", NAMES[2], "--calibrate", own["PROMPTS"]),
        env=own,
    )
    assert code == 0
    assert "Nothing is gained by what was asked for." in out


def test_a_vocabulary_that_cannot_be_cut_is_refused_and_the_rest_goes_on(own: dict[str, str]) -> None:
    refused = specd("models", "slim", "gemma3-270m", "--target", "gemma3-270m", "--vocab", "9000", env=own)
    assert refused[0] == 1
    assert refused[2] == (
        "specd: --vocab 9000: the vocabulary of this model cannot be cut: its tokenizer is no byte-pair encoding with "
        "merges (the file calls it 'llama').\n"
    )
    code, out, _ = specd(
        *("models", "slim", "gemma3-270m", "--target", "gemma3-270m", "--type", "q4_0-pure", "--layers", "0-16"),
        *("--name", NAMES[3], "--calibrate", own["PROMPTS"]),
        env=own,
    )
    assert code == 0
    assert f"{NAMES[3]}: q4_0-pure, all tokens, 17 layers." in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--type", "q9"], 2, "--type q9 is none of same, q2_k"),
        (["--vocab", "many"], 2, "--vocab must be a number of tokens, or all, not 'many'"),
        (["--vocab", "40"], 1, "40 tokens are too few: the single bytes of this vocabulary reach up to"),
        (["--layers", "3-99"], 2, "--layers must be layers from 0 to 29"),
        (["--layers", "a"], 2, "--layers must be layers from 0 to 29"),
        (["--name", "smollm2-135m"], 2, "There is a model or pair 'smollm2-135m' already"),
        (["--calibrate", "/none"], 2, "--prompts /none cannot be read"),
        (["--target", "nowhere"], 3, "There is no model or pair named 'nowhere'"),
    ],
)
def test_what_cannot_be_done_is_one_line(own: dict[str, str], arguments: list[str], code: int, words: str) -> None:
    target = [] if "--target" in arguments else ["--target", MODEL]
    got, out, err = specd("models", "slim", MODEL, *target, *arguments, env=own)
    assert (got, out) == (code, "")
    assert err.startswith(f"specd: {words}")
    assert err.count("\n") == 1


def test_a_model_that_cannot_draft_for_the_target_is_told_at_once(own: dict[str, str]) -> None:
    code, out, err = specd("models", "slim", MODEL, "--target", "gemma3-270m", "--calibrate", own["PROMPTS"], env=own)
    assert (code, out) == (1, "")
    assert "cannot draft for gemma-3-270m-Q4_K_M.gguf: their tokenizers are of different kinds" in err
