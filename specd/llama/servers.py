"""RPC servers of llama.cpp on other machines: their devices take layers as if they were here.

llama.cpp ends the process when a server does not answer as it should, so a server is first spoken to in a process of
its own.

As a program: python -m specd.llama.servers HOST:PORT
"""

import ctypes
import re
import socket
import subprocess
import sys
from collections.abc import Sequence

from specd.errors import EngineError, UsageError
from specd.llama.library import C

_ENDPOINT = re.compile(r"([\w.-]+):(\d{1,5})")
_SECONDS_TO_CONNECT, _SECONDS_TO_ANSWER = 5.0, 20.0


def reach(servers: Sequence[str]) -> None:
    """Make the devices of these servers, each "host:port", known to llama.cpp.

    Raises UsageError for what is no such address, EngineError where this build has no RPC or a server does not answer.
    """
    for server in servers:
        if (address := _ENDPOINT.fullmatch(server)) is None or int(address[2]) > 65535:
            raise UsageError(f"--rpc must be HOST:PORT, as in 192.168.1.7:50052, not {server!r}.")
    if not C.llama_supports_rpc():
        raise EngineError(
            "This build of llama.cpp has no RPC, which --rpc needs: build it again with make clean && make setup, "
            "or with CMAKE_ARGS=-DGGML_RPC=on pip install --force-reinstall --no-cache-dir llama-cpp-python."
        )
    for server in servers:
        if server not in _connected:
            _require_answer(server)
            _connect(server)


_connected: set[str] = set()


def _require_answer(server: str) -> None:
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_CONNECT).close()
    except OSError as error:
        reason = "it does not answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise EngineError(
            f"No RPC server is at {server} ({reason}). Start llama.cpp's there: rpc-server --host ADDRESS --port {port}"
        ) from error
    command = [sys.executable, "-m", "specd.llama.servers", server]
    nothing = subprocess.DEVNULL
    try:
        code = subprocess.run(
            command, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_SECONDS_TO_ANSWER, check=False
        ).returncode
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"{server} accepts connections and says nothing: it is no RPC server of llama.cpp, or is busy with another "
            "program, as it serves one at a time."
        ) from error
    if code:
        raise EngineError(
            f"{server} does not speak as this build's RPC servers do: it is none, or of another version of llama.cpp. "
            "Both sides must be built from the same."
        )


def _connect(server: str) -> None:
    library = C._lib
    library.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    library.ggml_backend_reg_get_proc_address.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    library.ggml_backend_register.argtypes = [ctypes.c_void_p]
    rpc = library.ggml_backend_reg_by_name(b"RPC")
    add = library.ggml_backend_reg_get_proc_address(rpc, b"ggml_backend_rpc_add_server")
    found = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(add)(server.encode())
    if not found:
        raise EngineError(f"The RPC server at {server} offers no device.")
    library.ggml_backend_register(found)
    _connected.add(server)


if __name__ == "__main__":
    _connect(sys.argv[1])
