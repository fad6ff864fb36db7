"""What this build of llama.cpp is and sees, looked at in a process of its own: a broken one may crash.

As a program: python -m specd.llama.survey
"""

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from specd.errors import EngineError, SpecdError
from specd.llama.devices import Device, devices

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Survey:
    """version: of the bindings; features: of the processor that the build uses; offloads: whether it can use a GPU."""

    version: str
    features: tuple[str, ...]
    offloads: bool
    devices: tuple[Device, ...]


def survey() -> Survey:
    """Raises EngineError, with the reason, when the library is missing, broken, or crashes."""
    command = [sys.executable, "-m", "specd.llama.survey"]
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"llama.cpp did not start within {_SECONDS:.0f} s.") from error
    if result.returncode < 0:
        name = signal.Signals(-result.returncode).name
        raise EngineError(f"llama.cpp crashes when it is loaded, by {name}: it was built for another processor.")
    if result.returncode:
        raise EngineError((result.stderr.strip().splitlines() or ["llama.cpp does not load, without a reason."])[-1])
    found = json.loads(result.stdout)
    listed = tuple(Device(**device) for device in found["devices"])
    return Survey(found["version"], tuple(found["features"]), found["offloads"], listed)


def _look() -> dict[str, Any]:
    from specd.llama import library

    version, _, info = library.build().partition(" ")
    features = [part.split()[0] for part in info.partition(":")[2].split("|") if part.strip().endswith("= 1")]
    offloads = bool(library.C.llama_supports_gpu_offload())
    return asdict(Survey(version, tuple(features), offloads, tuple(devices())))


if __name__ == "__main__":
    try:
        print(json.dumps(_look()))
    except SpecdError as error:
        sys.exit(" ".join(str(error).split()))
