"""models.toml: the models and pairs that have names."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import specd
from specd.errors import UnknownModel, UsageError
from specd.models.folders import config_folder, write_whole

FILE_NAME = "models.toml"
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "hub": str,
    "revision": str,
    "file": str,
    "path": str,
    "sha256": str,
    "bytes": int,
    "license": str,
    "wheels": list,
    "member": str,
    "defaults": dict,
}
_NUMBER = (int, float)
_DEFAULTS: Mapping[str, type | tuple[type, ...]] = {
    "temperature": _NUMBER,
    "top_k": int,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "repeat_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "penalty_window": int,
    "draft_temperature": _NUMBER,
    "verify": str,
    "ctx": int,
    "threads": int,
    "max_tokens": int,
    "draft_max": int,
    "draft_length": int,
    "system": str,
    "method": str,
    "kv_type": str,
    "flash_attn": str,
    "batch_size": int,
    "micro_batch_size": int,
    "gpu_layers": (str, int),
    "draft_gpu_layers": (str, int),
    "device": str,
    "tensor_split": str,
    "rpc": str,
    "mmap": bool,
    "mlock": bool,
}
_AT_LEAST = {
    "ctx": 1,
    "threads": 1,
    "max_tokens": 1,
    "draft_max": 0,
    "draft_length": 1,
    "batch_size": 32,
    "micro_batch_size": 32,
}


@dataclass(frozen=True, slots=True)
class Model:
    """One model: where its file comes from, and what it must be.

    bytes, sha256:  None when not known; then the hub's own are used
    path:           a local file; the other sources do not apply
    """

    name: str
    file: str
    hub: str | None = None
    revision: str | None = None
    path: Path | None = None
    sha256: str | None = None
    bytes: int | None = None
    license: str | None = None
    wheels: tuple[str, ...] = ()
    member: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Registry:
    """All names, from the packaged models.toml, the user's, and any named on the command line."""

    default: str
    models: Mapping[str, Model]
    pairs: Mapping[str, tuple[str, str]]  # name -> (target, draft)

    def target(self, name: str | None) -> Model:
        """The model of a name (a model, a pair's target, a path, hub:owner/repo/file); None is the default.

        Raises UnknownModel with the nearest names.
        """
        name = name or self.default
        if name in self.pairs:
            return self.model(self.pairs[name][0])
        return self.model(name)

    def draft_for(self, name: str | None) -> Model | None:
        """The draft that belongs to a pair, or to the first pair with this target."""
        name = name or self.default
        if name in self.pairs:
            return self.model(self.pairs[name][1])
        drafts = [draft for target, draft in self.pairs.values() if target == name]
        return self.model(drafts[0]) if drafts else None

    def model(self, name: str) -> Model:
        """The model of a name that is not a pair."""
        if name in self.models:
            return self.models[name]
        if name.startswith("hub:"):
            return _hub_model(name)
        path = Path(name).expanduser()
        if path.suffix == ".gguf" or path.exists() or "/" in name:
            return Model(name=path.name, file=path.name, path=path)
        known = [*self.models, *self.pairs]
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"Nearest: {', '.join(nearest)}" if nearest else f"Known: {', '.join(sorted(known))}"
        raise UnknownModel(
            f"There is no model or pair named {name!r}. {hint}. "
            "A file is named by its path, one on the hub as hub:owner/repo/file.gguf."
        )


def load_registry(extra: Path | None = None) -> Registry:
    """Read the packaged models.toml, the user's if there is one, and `extra`; later ones override.

    Raises UsageError naming file, entry and key when one of them is wrong.
    """
    files = [_packaged_file()]
    own = config_folder() / FILE_NAME
    if own.is_file():
        files.append(own)
    if extra is not None:
        if not extra.is_file():
            raise UsageError(f"There is no file {extra} (--models).")
        files.append(extra)
    return _merged([(file, _read(file)) for file in files])


def add_model(name: str, entry: Mapping[str, str | int], *, replaces: bool = False) -> Path:
    """Write a model into the user's models.toml, behind what is there, of which nothing changes; the file's path.

    replaces:  these keys of an entry of that name, where there is one

    Raises UsageError when the name is taken there, or the file cannot be written.
    """
    file = config_folder() / FILE_NAME
    if replaces and file.is_file() and name in _read(file).get("models", {}):
        return _save(("models", name), entry)
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if name in (_read(file).get("models", {}) if text else {}):
            raise UsageError(f"{file} has a model {name!r} already: take another name with --name.")
        lines = [f"[models.{json.dumps(name)}]", *(f"{key} = {_toml(value)}" for key, value in entry.items())]
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        write_whole(file, text + gap + "\n".join(lines) + "\n")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}.") from error
    return file


def save_defaults(name: str, values: Mapping[str, str | int]) -> Path:
    """Write defaults of a model into the user's models.toml; nothing else in it changes, comments included.

    Raises UsageError when the file cannot be read or written.
    """
    return _save(("models", name, "defaults"), values)


def _save(place: Sequence[str], values: Mapping[str, str | int]) -> Path:
    """Put values into a table of the user's models.toml."""
    import tomlkit

    file = config_folder() / FILE_NAME
    try:
        document = tomlkit.parse(file.read_text(encoding="utf-8") if file.is_file() else "")
        table: Any = document
        for key in place:
            if key not in table:
                table[key] = tomlkit.table(is_super_table=key == "models")
            table = table[key]
        table.update(values)
        write_whole(file, tomlkit.dumps(document))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be written: {error}.") from error
    except tomlkit.exceptions.TOMLKitError as error:
        raise UsageError(f"{file} is not valid TOML: {error}.") from error
    return file


def _toml(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)  # such a string is one in TOML too


def _packaged_file() -> Path:
    package = Path(specd.__file__).parent
    inside = package / FILE_NAME  # in a wheel
    return inside if inside.is_file() else package.parent / FILE_NAME


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line_number = re.search(r"line (\d+)", str(error))
        line = text.splitlines()[int(line_number[1]) - 1] if line_number else text
        hint = " Write backslashes in 'single quotes', or / instead." if "\\" in line else ""
        raise UsageError(f"{file} is not valid TOML: {error}.{hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error


def _merged(tables: Iterable[tuple[Path, dict[str, Any]]]) -> Registry:
    default = ""
    models: dict[str, dict[str, Any]] = {}
    pairs: dict[str, tuple[str, str]] = {}
    for file, table in tables:
        _check_keys(table, {"default": str, "pairs": dict, "models": dict}, f"{file}")
        default = table.get("default", default)
        for name, entry in table.get("models", {}).items():
            where = f"{file}: models.{name}"
            _check_keys(entry, _FIELDS, where)
            check_options(entry.get("defaults", {}), f"{where}.defaults")
            _check_path(entry.get("path", ""), where)
            known = models.setdefault(name, {})
            defaults = known.get("defaults", {}) | entry.get("defaults", {})
            known.update(entry | {"defaults": defaults})
        for name, entry in table.get("pairs", {}).items():
            where = f"{file}: pairs.{name}"
            _check_keys(entry, {"target": str, "draft": str}, where)
            if len(entry) < 2:
                raise UsageError(f"{where} needs both a target and a draft.")
            pairs[name] = (entry["target"], entry["draft"])
    return Registry(default, {name: _model(name, entry) for name, entry in models.items()}, pairs)


def _check_keys(table: object, allowed: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table, not {table!r}.")
    for key, value in table.items():
        if key not in allowed:
            nearest = difflib.get_close_matches(key, allowed, n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else f"Known: {', '.join(allowed)}."
            raise UsageError(f"{where} has an unknown key {key!r}. {hint}")
        if not isinstance(value, allowed[key]) or (isinstance(value, bool) and allowed[key] is not bool):
            raise UsageError(f"{where}: {key} is {value!r}, which is of the wrong type.")


def check_options(values: object, where: str) -> None:
    """Raises UsageError, with the place, for options of models that do not exist, or are of a wrong kind."""
    _check_keys(values, _DEFAULTS, where)
    assert isinstance(values, dict)
    for key, least in _AT_LEAST.items():
        if key in values and values[key] < least:
            raise UsageError(f"{where}: {key} is {values[key]}, which is too small.")


def _check_path(path: str, where: str) -> None:
    if any(ord(character) < 32 for character in path):
        raise UsageError(f"{where}: path {path!r} has control characters. Write backslashes in 'single quotes'.")


def _model(name: str, entry: dict[str, Any]) -> Model:
    path = Path(entry["path"]).expanduser() if "path" in entry else None
    file = entry.get("file") or (path.name if path else None)
    if not file:
        raise UsageError(f"models.{name} in {FILE_NAME} needs a file or a path.")
    fields = {key: entry[key] for key in entry if key not in ("path", "file", "wheels")}
    return Model(name=name, file=file, path=path, wheels=tuple(entry.get("wheels", ())), **fields)


def _hub_model(name: str) -> Model:
    match = re.fullmatch(r"hub:([^/\s]+/[^/\s]+)/(\S+\.gguf)", name)
    if not match:
        raise UnknownModel(f"{name!r} does not name a file on the hub: hub:owner/repo/file.gguf is the form.")
    return Model(name=name, file=match[2], hub=match[1])
