"""`specd generate` from outside: the installed command on SmolLM2 135M."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest

from tests.model.conftest import path_of

SPECD = Path(sys.executable).with_name("specd")
MODEL = "smollm2-135m"
LONG_PROMPT = "Count from 1 to 500, one number per line."
ENDLESS = ("--raw", "-p", "1, 2, 3, 4, 5,", "--no-stdin", "-n", "8000")
CAPITAL = "The capital of France is"


def specd(*arguments: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `specd generate` with SmolLM2."""
    command = [str(SPECD), "generate", "--model", MODEL, *arguments]
    source = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    result = subprocess.run(command, capture_output=True, timeout=300, env=os.environ | (env or {}), **source)  # type: ignore[call-overload]
    return result.returncode, result.stdout.decode(), result.stderr.decode()


def as_json(*arguments: str, **options: Any) -> dict[str, Any]:
    code, out, _ = specd("--format", "json", *arguments, **options)
    assert code == 0
    result: dict[str, Any] = json.loads(out)
    return result


def test_stdout_is_the_answer_and_nothing_else() -> None:
    """User case 39."""
    code, out, err = specd("--prompt", CAPITAL, "--raw", "-n", "10")
    assert (code, err) == (0, "")
    assert "Paris" in out
    assert out.endswith("\n")
    assert not out.endswith("\n\n")
    assert "\x1b" not in out


def test_the_json_object_reconciles() -> None:
    """User cases 3 and 9: exactly the tokens asked for, and what ran is what was asked."""
    result = as_json("-p", LONG_PROMPT, "-n", "50", "--method", "lookup", "--draft-length", "2")
    stats = result["stats"]
    assert result["finish_reason"] == "length"
    assert result["completion_tokens"] == 50
    assert (result["model"], result["draft"]) == (MODEL, None)
    assert stats["longest_draft"] <= 2
    assert set(stats["drafters"]) == {"lookup"}
    drafted = stats["num_accepted_tokens"] + stats["num_rejected_tokens"] + stats["num_discarded_tokens"]
    assert stats["num_draft_tokens"] == drafted > 0
    assert stats["num_rounds"] + stats["num_accepted_tokens"] == 50
    assert stats["decode_seconds"] > 0
    assert stats["decode_tokens_per_second"] == pytest.approx(50 / stats["decode_seconds"])


def test_the_draft_that_ran_is_named() -> None:
    """User case 9: the file asked for is the file that drafts."""
    result = as_json(
        "-p", LONG_PROMPT, "-n", "20", "--method", "draft", "--draft", str(path_of(MODEL)), "--draft-length", "3"
    )
    assert result["draft"] == path_of(MODEL).name
    assert result["stats"]["drafters"]["draft"]["num_draft_tokens"] > 0


def test_a_text_that_is_expected_is_drafted_from_its_first_token(tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 3
    (tmp_path / "old.txt").write_text(text)
    arguments = ("--raw", "-p", f"{text}\n\n{text}\n\n", "-n", "24", "--method", "lookup", "--draft-length", "4")
    result = as_json(*arguments, "--predict-from", str(tmp_path / "old.txt"))
    assert result["stats"]["drafters"]["predicted"]["num_accepted_tokens"] >= 12
    assert "predicted" not in as_json(*arguments)["stats"]["drafters"]


def test_control_is_explained_in_words_and_numbers() -> None:
    result = as_json("-p", LONG_PROMPT, "-n", "60", "--method", "lookup")
    control = result["stats"]["control"]
    assert sum(control["rounds"].values()) == result["stats"]["num_rounds"]
    assert control["plain_seconds"] > 0
    assert result["stats"]["plain_tokens_per_second_estimate"] == pytest.approx(1 / control["plain_seconds"], rel=0.5)
    assert {"1", "2", "4"} <= set(control["pass_seconds"]["target"])
    assert control["max_speedup"]["lookup"] > 1
    code, _, err = specd("-p", LONG_PROMPT, "-n", "60", "--method", "lookup", "--explain")
    assert code == 0
    assert "A plain step takes" in err
    assert "lookup costs nothing; perfect drafts would give" in err
    assert "rounds: " in err


def test_a_draft_that_cannot_pay_is_not_used_and_one_line_says_why() -> None:
    """The same file as target and draft: no acceptance could make up for that."""
    result = as_json("-p", LONG_PROMPT, "-n", "20", "--method", "draft", "--draft", str(path_of(MODEL)))
    assert result["stats"]["num_draft_tokens"] == 0
    assert "cannot pay here: a drafted token costs" in result["stats"]["speculation_off_reason"]


def test_what_was_measured_and_learned_is_kept(tmp_path: Path) -> None:
    env = {"SPECD_STATE": str(tmp_path)}
    for _ in range(2):
        as_json("-p", LONG_PROMPT, "-n", "20", "--method", "lookup", env=env)
        files = sorted(path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.json"))
        assert files == ["acceptance", "costs"]
    (tmp_path / "costs").chmod(0o500)
    for path in tmp_path.rglob("*.json"):
        path.write_text("broken")
    assert as_json("-p", LONG_PROMPT, "-n", "20", "--method", "lookup", env=env)["completion_tokens"] == 20


@pytest.mark.parametrize("n", [1, 2, 7])
def test_exactly_as_many_tokens_as_asked(n: int) -> None:
    for method in ("off", "lookup", "auto"):
        result = as_json("-p", LONG_PROMPT, "-n", str(n), "--method", method)
        assert (result["completion_tokens"], result["finish_reason"]) == (n, "length")


def test_text_is_the_same_with_and_without_speculation_in_exact_mode() -> None:
    arguments = ("-p", LONG_PROMPT, "-n", "80", "--exact")
    plain = as_json(*arguments, "--method", "off")
    draft = ["--method", "draft", "--draft", str(path_of(MODEL)), "--draft-length", "5"]
    for extra in (["--method", "lookup"], ["--method", "lookup", "--draft-length", "6"], draft):
        assert as_json(*arguments, *extra)["text"] == plain["text"]
    assert "off" in plain["stats"]["speculation_off_reason"]
    no_draft = as_json(*arguments, "--draft", str(path_of(MODEL)), "--draft-max", "0")
    assert (no_draft["text"], no_draft["draft"]) == (plain["text"], None)
    assert specd(*arguments)[1].rstrip("\n") == plain["text"].rstrip("\n")


def test_a_seed_makes_a_run_repeatable() -> None:
    """Whatever is drafted, and that depends on the machine: a seed makes text a function of noise and target alone."""
    arguments = ("-p", "Write a story.", "-n", "40", "-t", "1.2", "--method", "lookup", "--exact")
    first = as_json(*arguments, "--seed", "3")
    assert (first["stats"]["seed"], first["stats"]["verify"]) == (3, "coupled")
    assert as_json(*arguments, "--seed", "3", "--draft-length", "4")["text"] == first["text"]
    assert as_json(*arguments, "--seed", "3")["text"] == first["text"]
    assert as_json(*arguments, "--seed", "4")["text"] != first["text"]
    unseeded = as_json(*arguments, "--verify", "coupled")
    assert as_json(*arguments, "--seed", str(unseeded["stats"]["seed"]))["text"] == unseeded["text"]
    assert as_json(*arguments[:-1])["stats"]["verify"] == "block"


def test_coupled_text_depends_on_seed_and_target_only() -> None:
    arguments = ("-p", "Write a story.", "-n", "50", "-t", "0.9", "--seed", "5", "--verify", "coupled", "--exact")
    plain = as_json(*arguments, "--method", "off")
    drafts = ["--method", "draft", "--draft", str(path_of(MODEL)), "--draft-temperature", "0.5"]
    for extra in (["--method", "lookup"], [*drafts, "--draft-length", "3"], [*drafts, "--draft-length", "6"]):
        result = as_json(*arguments, *extra)
        assert result["text"] == plain["text"]
        assert result["stats"]["verify"] == "coupled"


def test_a_bias_reaches_the_model() -> None:
    arguments = ("-p", CAPITAL, "--raw", "-n", "1")
    tokens = smollm2_tokens(" Paris")
    assert "Paris" in as_json(*arguments)["text"]
    assert "Paris" not in as_json(*arguments, "--logit-bias", f"{tokens[0]}=-inf")["text"]


def smollm2_tokens(text: str) -> list[int]:
    from tests.model.conftest import open_engine

    with open_engine(MODEL, n_ctx=256) as engine:
        return engine.vocabulary.tokenize(text, add_special=False, parse_special=False).tolist()


def test_a_prompt_from_a_pipe_and_a_document_behind_it() -> None:
    code, out, _ = specd("-n", "10", "--raw", stdin=CAPITAL.encode())
    assert (code, "Paris" in out) == (0, True)
    with_document = as_json("-n", "5", "-p", "Summarise:", stdin=b"a document " * 50)
    without = as_json("-n", "5", "-p", "Summarise:", "--no-stdin", stdin=b"a document " * 50)
    assert with_document["prompt_tokens"] > without["prompt_tokens"] + 90


def test_system_and_raw_change_what_the_model_sees() -> None:
    plain = as_json("-n", "1", "-p", "hello")["prompt_tokens"]
    assert as_json("-n", "1", "-p", "hello", "--system", "Be brief. " * 20)["prompt_tokens"] > plain + 20
    assert as_json("-n", "1", "-p", "hello", "--raw")["prompt_tokens"] < 5


def test_a_model_without_a_chat_template_continues_text_and_says_so() -> None:
    arguments = ("-n", "5", "-p", "The sun is", "--model", "gemma3-270m")
    code, out, err = specd(*arguments)
    assert code == 0
    assert "no chat template" in err
    assert specd(*arguments, "--raw") == (0, out, "")


def test_a_prompt_that_does_not_fit_is_one_line_with_both_counts() -> None:
    """User case 29."""
    code, out, err = specd("--ctx", "256", "-p", "word " * 2000)
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert "The prompt has 20" in err
    assert "256" in err
    assert "--ctx" in err
    code, _, err = specd("-p", "word " * 20_000)
    assert code == 4
    assert "8192" in err


def test_the_context_grows_with_the_prompt_and_ends_with_length() -> None:
    """User case 28."""
    assert as_json("-n", "3", "-p", "word " * 5000)["prompt_tokens"] > 5000
    result = as_json("--ctx", "256", "-p", LONG_PROMPT + " word" * 190, "-n", "1000", "--method", "lookup")
    assert result["finish_reason"] == "length"
    assert result["prompt_tokens"] + result["completion_tokens"] == 257  # the last token needs no cell


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--model", "smolm2"], 3, "Nearest: smollm2-135m"),
        (["--model", "/nowhere/x.gguf"], 3, "no model file /nowhere/x.gguf"),
        (["--draft-max", "-1"], 2, "--draft-max"),
        (["--max-tokens", "0"], 2, "--max-tokens"),
        (["--method", "best"], 2, "best"),
        (["--bogus"], 2, "--bogus"),
        (["--method", "draft"], 2, "No draft model is known"),
        (["--method", "draft", "--draft", "none"], 2, "needs a draft model"),
        (["--method", "lookup", "--draft", "qwen2.5-coder-0.5b"], 2, "uses no draft model"),
        (["--exact", "--draft-max", "7"], 2, "at most 6"),
        (["--exact", "--draft-length", "7"], 2, "at most 6"),
        (["--draft-length", "0"], 2, "--draft-length"),
        (["--predict-from", "/nowhere.txt"], 2, "--predict-from /nowhere.txt cannot be read"),
        (["--predict-from", "README.md", "--method", "off"], 2, "copies no text"),
        (["--models", "/nowhere.toml"], 2, "no file /nowhere.toml"),
        (["--file", "/nowhere.txt"], 2, "cannot be read"),
        (["--temperature", "-0.5"], 2, "temperature is -0.5; it must be 0 or more"),
        (["--top-p", "0"], 2, "top_p is 0.0; it must be above 0 and at most 1"),
        (["--top-p", "nan"], 2, "above 0 and at most 1"),
        (["--draft-temperature", "-1"], 2, "0 or more"),
        (["--logit-bias", "five"], 2, "give a token id and a number"),
        (["--logit-bias", "99999=1"], 2, "has tokens 0 to 49151"),
        (["--verify", "hope"], 2, "hope"),
        (["--seed", "-1"], 2, "--seed"),
    ],
)
def test_mistakes_are_one_clear_line(arguments: list[str], code: int, words: str) -> None:
    found, out, err = specd("-p", "hello", *arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1
    assert err.startswith("specd: ")


def test_no_prompt_at_all() -> None:
    code, _, err = specd(stdin=b"")
    assert code == 2
    assert "prompt is empty" in err


def broken(tmp_path: Path) -> Path:
    file = tmp_path / "broken.gguf"
    with path_of(MODEL).open("rb") as whole:
        file.write_bytes(whole.read(5_000_000))
    return file


@pytest.mark.parametrize("case", ["broken file", "other vocabulary", "no such file"])
def test_a_draft_that_cannot_be_used_is_told_once_and_lookup_goes_on(case: str, tmp_path: Path) -> None:
    """User cases 18 and 22."""
    draft = {
        "broken file": str(broken(tmp_path)),
        "other vocabulary": "gemma3-270m",
        "no such file": str(tmp_path / "none.gguf"),
    }[case]
    words = {"broken file": "cannot load", "other vocabulary": "cannot draft for", "no such file": "no model file"}[
        case
    ]
    code, out, err = specd(
        *("-p", LONG_PROMPT, "-n", "40", "--draft", draft), "--draft-length", "3", "--format", "json"
    )
    result = json.loads(out)
    assert code == 0
    assert err.count("\n") == 1
    assert err.startswith("specd: warning: ")
    assert words in err
    assert result["draft"] is None
    assert words in result["stats"]["drafters"]["draft"]["yielded"]
    assert result["stats"]["drafters"]["lookup"]["num_draft_tokens"] > 0
    code, out, err = specd("-p", LONG_PROMPT, "-n", "40", "--draft", draft, "--strict")
    assert code != 0
    assert out == ""
    assert words in err


def test_a_projector_is_refused_by_name(tmp_path: Path) -> None:
    """User case 23."""
    import struct

    file = tmp_path / "mmproj.gguf"
    key, value = b"general.architecture", b"clip"
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    file.write_bytes(data + struct.pack("<IQ", 8, len(value)) + value)
    code, _, err = specd("-p", "x", "--model", str(file))
    assert code == 1
    assert "vision or audio side" in err


def test_swapped_models_are_warned_of() -> None:
    """User case 21."""
    code, _, err = specd("-p", "hello", "-n", "2", "--draft", str(path_of(MODEL)))
    assert code == 0
    assert "Are they swapped?" in err


def test_a_reader_that_closes_early_is_no_error() -> None:
    process = subprocess.Popen(
        [SPECD, "generate", "-m", MODEL, *ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(4)
    process.stdout.close()
    with process.stderr as err:
        assert err.read() == b""
    assert process.wait(60) == 141


def endless(number: signal.Signals, handling: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A long `specd generate` that was started with a signal handled by default, or ignored (as under nohup)."""
    script = (
        f"import os, signal, sys; signal.signal({int(number)}, signal.{handling}); os.execv(sys.argv[1], sys.argv[1:])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, SPECD, "generate", "-m", MODEL, *ENDLESS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("format_", ["text", "json"])
def test_a_signal_stops_the_answer_and_keeps_its_text(number: signal.Signals, format_: str) -> None:
    process = endless(number, "SIG_DFL", "--format", format_, "--stats")
    assert process.stdout is not None
    first = process.stdout.read(4) if format_ == "text" else b""
    time.sleep(0.3 if first else 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    if format_ == "json":
        result = json.loads(out)
        assert result["finish_reason"] == "interrupted"
        assert result["completion_tokens"] > 0
    else:
        assert (first + out).endswith(b"\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(number: signal.Signals) -> None:
    process = endless(number, "SIG_IGN", "-n", "100")
    assert process.stdout is not None
    first = process.stdout.read(4)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert len(first + out) > 50  # it went on; how long 100 tokens are, the model decides


def test_an_output_that_is_full_is_told() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [SPECD, "generate", "-m", MODEL, "-p", "hello", "--no-stdin", "-n", "5"],
            stdout=full,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
    assert result.returncode == 1
    assert result.stderr == b"specd: No space left on device.\n"


def test_options_default_to_those_of_the_model(tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text(f'[models."{MODEL}"]\ndefaults = {{ max_tokens = 3, method = "off" }}\n')
    result = as_json("-p", LONG_PROMPT, "--models", str(models))
    assert result["completion_tokens"] == 3
    assert "off" in result["stats"]["speculation_off_reason"]
    assert as_json("-p", LONG_PROMPT, "--models", str(models), "-n", "4")["completion_tokens"] == 4
    models.write_text(f'[models."{MODEL}"]\ndefaults = {{ method = "fast" }}\n')
    code, _, err = specd("-p", "x", "--models", str(models))
    assert (code, "fast" in err) == (2, True)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="macOS has no affinity")
def test_threads_follow_the_affinity() -> None:
    """User case 16, from outside."""
    script = (
        "from specd.llama.devices import usable_cores\n"
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(usable_cores())"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "1\n"


def test_on_a_terminal_the_answer_is_whole_and_a_summary_follows() -> None:
    columns, lines = 60, 24
    arguments = ["generate", "-m", MODEL, "-p", "Name the planets.", "--no-stdin", "-n", "60", "--method", "lookup"]
    child = pexpect.spawn(
        str(SPECD), arguments, dimensions=(lines, columns), timeout=120, env=os.environ | {"TERM": "xterm"}
    )
    output = child.read()
    child.close()
    assert child.exitstatus == 0
    assert b"tokens/s \xc2\xb7" in output  # the status line was there
    screen = pyte.HistoryScreen(columns, lines, history=500)
    pyte.ByteStream(screen).feed(output)
    shown = [line.rstrip() for line in screen.display]
    answer = specd("-p", "Name the planets.", "-n", "60", "--method", "lookup")[1]
    first, *_ = answer.splitlines()
    assert shown[0] == first[:columns]
    assert not any("tokens per pass" in line and "·" in line for line in shown)  # and is gone
    assert any("tokens/s (prompt:" in line for line in shown)


def test_the_command_is_installed_as_the_readme_says() -> None:
    assert shutil.which(str(SPECD))
    version = subprocess.run([SPECD, "--version"], capture_output=True, text=True).stdout
    assert version.startswith("specd 0.")


def test_a_stop_string_ends_the_answer() -> None:
    """User case 35."""
    ask = ("-p", "Tell a story.", "-n", "40")
    whole = as_json(*ask)
    words = whole["text"].split()
    stop = f"{words[5]} {words[6]}"
    cut = as_json(*ask, "--stop", "§", "--stop", stop)
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["finish_reason"] == "stop"
    assert cut["completion_tokens"] < whole["completion_tokens"]
    code, out, err = specd(*ask, "--stop", "")
    assert (code, out) == (2, "")
    assert "--stop is empty" in err
