"""Layers on another machine, which here is this one: an RPC server of llama.cpp in a process of its own."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.llama.library import C
from tests.model.test_generate import ENDLESS, MODEL, SPECD, specd

pytestmark = pytest.mark.skipif(not C.llama_supports_rpc(), reason="this build of llama.cpp has no RPC")
ONE_CORE = ("--threads", "1", "--no-stdin")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [sys.executable, "-m", "tests.model.rpc_server", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"127.0.0.1:{port}", process
        process.kill()


def test_layers_on_a_server_say_the_same_with_every_method(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, _ = server
    prompt = ("-p", "List the days of the week, twice.", "-n", "48", "--exact", *ONE_CORE)
    here = specd(*prompt, "--method", "off")
    assert here[0] == 0
    for how in (["--method", "off"], ["--method", "lookup"], ["--draft", MODEL, "--draft-length", "3"]):
        there = specd(*prompt, *how, "--rpc", address)
        assert there[:2] == here[:2], there


def test_the_layers_do_lie_there(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    def peak() -> int:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))  # kilobytes

    address, process = server
    before = peak()
    assert specd("-p", "Hello", "-n", "4", "--rpc", address, *ONE_CORE)[0] == 0
    assert peak() - before > 60_000  # the file has 98 000


def test_a_server_that_dies_ends_the_answer_with_one_line(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, process = server
    command = [str(SPECD), "generate", "-m", MODEL, *ENDLESS, "--threads", "1", "--rpc", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.read(20)
        process.kill()
        _, complaint = client.communicate(timeout=30)
    assert client.returncode == 1
    assert complaint.decode().startswith("specd: llama.cpp gave up: Remote RPC server crashed")
    assert complaint.count(b"\n") == 1


@pytest.mark.parametrize("address", ["localhost", "host:port", ":50052", "1.2.3.4:99999", "a b:1", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    code, _, said = specd("-p", "Hello", "--rpc", f"127.0.0.1:1,{address}", *ONE_CORE)
    assert code == 2
    assert said.startswith("specd: --rpc must be HOST:PORT")
    assert said.count("\n") == 1


def test_nobody_there_is_told_with_what_to_start() -> None:
    code, _, said = specd("-p", "Hello", "--rpc", f"127.0.0.1:{free_port()}", *ONE_CORE)
    assert code == 1
    assert "No RPC server is at 127.0.0.1:" in said
    assert "rpc-server --host" in said


def test_a_program_that_is_no_rpc_server_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        command = [str(SPECD), "generate", "-m", MODEL, "-p", "Hello", *ONE_CORE, "--rpc", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
            for _ in range(2):  # the first connection only looks whether anybody is there
                visitor, _ = other.accept()
                visitor.close()
            _, complaint = client.communicate(timeout=30)
    assert client.returncode == 1
    assert b"does not speak as this build's RPC servers do" in complaint
    assert complaint.count(b"\n") == 1
