"""Where models lie, on devices that are not here."""

from pathlib import Path

import pytest

from specd.cli.offload import fitting_layers, parse_layers, placement_of, usable_gpus, with_fewer
from specd.cli.settings import Settings
from specd.errors import EngineError, UsageError
from specd.llama import devices
from specd.llama.devices import Device
from specd.llama.runtime import Placement, Runtime
from specd.models.registry import Model
from tests.model.tiny import experts

GB = 10**9
CPU = Device("CPU", "a processor", "cpu", 8 * GB, 16 * GB)
GPUS = [Device(f"CUDA{i}", "a GPU", "gpu", 4 * GB, 8 * GB) for i in range(2)]


def settings(**given: object) -> Settings:
    return Settings.of(Model("m", "m.gguf"), given)


def test_layers_are_auto_all_or_a_number() -> None:
    assert [parse_layers(text, "--gpu-layers") for text in ("auto", "all", "0", "17")] == [None, -1, 0, 17]
    for text in ("-1", "many", "", "1.5"):
        with pytest.raises(UsageError, match="--gpu-layers must be auto, all or a number of layers"):
            parse_layers(text, "--gpu-layers")
        with pytest.raises(UsageError, match="--draft-gpu-layers must be auto"):
            settings(draft_gpu_layers=text)


def test_defaults_of_a_model_may_name_them_as_a_number() -> None:
    assert Settings.of(Model("m", "m.gguf", defaults={"gpu_layers": 7, "mmap": False}), {}).gpu_layers == "7"


def test_what_is_asked_for_reaches_the_engine() -> None:
    asked = settings(device="CUDA0,CUDA1", tensor_split="3,1", mmap=False, mlock=True)
    assert placement_of(asked, 9) == Placement(9, ("CUDA0", "CUDA1"), (3.0, 1.0), False, True)
    assert placement_of(settings(), -1) == Placement()
    assert placement_of(settings(device="none"), -1).devices == ()
    with pytest.raises(UsageError, match="--tensor-split must be numbers"):
        placement_of(settings(tensor_split="a,b"), -1)


def test_only_gpus_that_may_be_used_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices", lambda: [*GPUS, CPU])
    assert usable_gpus(settings()) == GPUS
    assert usable_gpus(settings(device="CUDA1")) == GPUS[1:]
    assert usable_gpus(settings(device="none")) == []


def test_a_draft_is_thought_of_before_the_target_is_loaded(tmp_path: Path) -> None:
    experts(tmp_path / "m.gguf")
    layers, found = fitting_layers(GPUS, Runtime(), tmp_path / "m.gguf", tmp_path / "m.gguf", 512, 8)
    assert (layers, found.target_of, found.draft) == (5, 5, 5)
    full = [Device("CUDA0", "a GPU", "gpu", GB // 10, GB)]
    layers, found = fitting_layers(full, Runtime(), tmp_path / "m.gguf", None, 512, 8)
    assert (layers, str(found)) == (0, "layers on the GPU: target 0 of 5")


def test_where_an_estimate_was_too_high_fewer_layers_are_tried() -> None:
    tried, notes = [], []

    def load(placement: Placement) -> str:
        tried.append(placement.gpu_layers)
        if placement.gpu_layers > 10:
            raise EngineError("out of memory.")
        return "loaded"

    assert with_fewer(load, Placement(33, ("CUDA0",)), notes.append) == "loaded"
    assert tried == [33, 24, 18, 13, 9]
    assert notes[0] == "out of memory. Trying 24 layers on the GPU."
    tried.clear()

    def never(placement: Placement) -> str:
        tried.append(placement.gpu_layers)
        raise EngineError("no.")

    with pytest.raises(EngineError, match=r"^no\.$"):
        with_fewer(never, Placement(3), notes.append)
    assert tried == [3, 2, 1, 0]


def test_a_draft_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []
    monkeypatch.setattr("specd.llama.servers.reach", reached.extend)
    monkeypatch.setattr(devices, "devices", lambda: [Device("RPC0", "a:1", "gpu", 4 * GB, 8 * GB), *GPUS, CPU])
    asked = settings(rpc="a:1,b:2")
    assert [gpu.name for gpu in usable_gpus(asked)] == ["RPC0", "CUDA0", "CUDA1"]
    assert placement_of(asked, -1) == Placement(servers=("a:1", "b:2"))
    assert [gpu.name for gpu in usable_gpus(asked, is_draft=True)] == ["CUDA0", "CUDA1"]
    assert placement_of(asked, -1, is_draft=True) == Placement(devices=("CUDA0", "CUDA1"))
    assert reached[:2] == ["a:1", "b:2"]
