"""`specd doctor`: what is here, what is wrong, and the command that mends it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from specd import __version__
from specd.errors import EngineError, SpecdError
from specd.llama.devices import describe, usable_cores
from specd.llama.survey import Survey, survey
from specd.models import hub
from specd.models.fetch import locate
from specd.models.folders import cache_folder, config_folder, state_folder
from specd.models.registry import FILE_NAME, Registry, load_registry
from specd.models.store import Store
from specd.terminal.progress import TransferProgress

_BUILD_AGAIN = "make clean && make setup, or pip install --force-reinstall --no-cache-dir llama-cpp-python"
_LITTLE_SPACE = 2e9  # bytes
_BUSY = 1.5  # processes that want to run, per core


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and what to do about it. is_grave: specd, or a part of it, cannot work."""

    what: str
    mend: str
    is_grave: bool = True


@dataclass(slots=True)
class Diagnosis:
    """All that was found; `as_json` is the object of --json."""

    python: Mapping[str, str]
    machine: Mapping[str, Any]
    llama_cpp: Survey | None = None
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Names as in the README."""
        return {"specd": __version__, **asdict(self)}


def command(
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> int:
    """Say what is here, what is wrong, and the command that mends it. Exit code 1 when something is gravely wrong."""
    diagnosis = examine()
    if json_:
        print(json.dumps(diagnosis.as_json(), ensure_ascii=False, indent=1))
    else:
        print("\n".join(_told(diagnosis)))
    return 1 if any(problem.is_grave for problem in diagnosis.problems) else 0


def examine() -> Diagnosis:
    """Look at everything. Nothing that is broken stops it."""
    diagnosis = Diagnosis(
        python={"version": platform.python_version(), "executable": sys.executable},
        machine={**describe(), "cores": os.cpu_count() or 1, "usable_cores": usable_cores()},
    )
    problems = diagnosis.problems
    try:
        diagnosis.llama_cpp = survey()
        problems += _of_the_build(diagnosis.llama_cpp)
    except EngineError as error:
        problems.append(Problem(str(error), _BUILD_AGAIN))
    for name, folder in {"cache": cache_folder(), "config": config_folder(), "state": state_folder()}.items():
        diagnosis.folders[name] = _folder(folder)
        problems += _of_the_folder(name, diagnosis.folders[name])
    try:
        registry = load_registry()
        problems += _of_the_models(registry, diagnosis)
    except SpecdError as error:
        problems.append(Problem(str(error), f"correct {config_folder() / FILE_NAME}"))
    problems += _of_the_load()
    return diagnosis


def _of_the_build(found: Survey) -> Iterator[Problem]:
    if shutil.which("nvidia-smi") and not found.offloads:
        yield Problem(
            "There is an NVIDIA driver here, and llama.cpp was built without CUDA: it computes on the CPU only.",
            "make setup BACKEND=cuda (with the CUDA compiler, nvcc, on the path)",
            is_grave=False,
        )
    if any(feature.startswith("AMX") for feature in found.features):
        yield Problem(
            "llama.cpp was built with AMX, with which models crash in many builds.",
            f"{_BUILD_AGAIN} (make leaves AMX out)",
        )


def _folder(folder: Path) -> dict[str, Any]:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return {
        "path": str(folder),
        "exists": folder.is_dir(),
        "writable": existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
        "free_bytes": shutil.disk_usage(existing).free,
    }


def _of_the_folder(name: str, folder: Mapping[str, Any]) -> Iterator[Problem]:
    variable = f"SPECD_{name.upper()}"
    if not folder["writable"]:
        yield Problem(f"The {name} folder {folder['path']} cannot be written.", f"give another with {variable}")
    elif name == "cache" and folder["free_bytes"] < _LITTLE_SPACE:
        free = folder["free_bytes"] / 1e9
        yield Problem(
            f"The disk of the cache {folder['path']} has {free:.1f} GB free, too little for most models.",
            f"make room, or give another folder with {variable}",
            is_grave=False,
        )


def _of_the_models(registry: Registry, diagnosis: Diagnosis) -> Iterator[Problem]:
    store, progress = Store(), TransferProgress(sys.stderr)
    for model in registry.models.values():
        try:
            path = locate(model, store, progress)
        except SpecdError as error:
            yield Problem(
                str(error), f"correct its entry in {config_folder() / FILE_NAME}, or bring the file back", False
            )
            continue
        if path is not None:
            size = path.stat().st_size
            checked = model.sha256 is not None or store.recall(model) is not None
            diagnosis.models.append({"name": model.name, "path": str(path), "bytes": size, "checked": checked})
    here = {entry["name"] for entry in diagnosis.models}
    wanted = [model for model in (registry.target(None), registry.draft_for(None)) if model is not None]
    missing = [model.name for model in wanted if model.name not in here]
    if missing:
        offline = ", after HF_HUB_OFFLINE was unset" if hub.is_offline() else ""
        names, verb = " and ".join(missing), "is" if len(missing) == 1 else "are"
        yield Problem(
            f"Of the default {registry.default}, {names} {verb} not here.", f"specd models pull{offline}", False
        )


def _of_the_load() -> Iterator[Problem]:
    load, cores = os.getloadavg()[0], usable_cores()
    if load > _BUSY * cores:
        yield Problem(
            f"The machine is busy ({load:.1f} programs want to run, on {cores} usable cores): llama.cpp's threads then "
            "wait for each other, and everything gets many times slower.",
            "stop them, or leave cores free with --threads",
            is_grave=False,
        )


def _told(diagnosis: Diagnosis) -> Iterator[str]:
    """As lines for people."""
    machine, llama = diagnosis.machine, diagnosis.llama_cpp
    yield f"specd      {__version__}, Python {diagnosis.python['version']} ({diagnosis.python['executable']})"
    yield f"machine    {machine['system']}, {machine['processor']}"
    yield (
        f"           {machine['usable_cores']} of {machine['cores']} cores may be used, "
        f"{machine['memory_bytes'] / 1e9:.1f} GB of memory"
    )
    if llama is None:
        yield "llama.cpp  does not load"
    else:
        yield f"llama.cpp  {llama.version}, {' '.join(llama.features)}"
        for device in llama.devices:
            free, total = device.free_bytes / 1e9, device.total_bytes / 1e9
            yield f"           {device.name}: {device.description}, {free:.1f} of {total:.1f} GB free"
    for name, folder in diagnosis.folders.items():
        state = f"{folder['free_bytes'] / 1e9:.0f} GB free" if folder["exists"] else "not there yet"
        yield f"{name:<10} {folder['path']} ({state})"
    for i, model in enumerate(diagnosis.models):
        checked = "checked" if model["checked"] else "no checksum known"
        yield f"{'models' if not i else '':<10} {model['name']}: {model['bytes'] / 1e9:.2f} GB, {checked}"
    if not diagnosis.models:
        yield "models     none is here"
    yield ""
    for problem in sorted(diagnosis.problems, key=lambda problem: not problem.is_grave):
        yield f"{'WRONG' if problem.is_grave else 'NOTE '}  {problem.what}"
        yield f"       To mend it: {problem.mend}"
    if not diagnosis.problems:
        yield "Nothing is wrong."
