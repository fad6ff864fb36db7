"""Where specd keeps things: outside any checkout, movable by environment variables."""

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Models and what was computed about them; `SPECD_CACHE` overrides it. Safe to delete."""
    return Path(os.environ.get("SPECD_CACHE") or platformdirs.user_cache_dir("specd"))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that others find the old one or the new one, never a part. Raises OSError.

    A link stays one; what is not a file (a pipe, a terminal) is written to as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:  # a full disk, an interrupt
        temporary.unlink(missing_ok=True)
        raise


def config_folder() -> Path:
    """The user's models.toml; `SPECD_CONFIG` overrides it."""
    return Path(os.environ.get("SPECD_CONFIG") or platformdirs.user_config_dir("specd"))


def state_folder() -> Path:
    """What was measured and learned on this machine; `SPECD_STATE` overrides it. Safe to delete."""
    return Path(os.environ.get("SPECD_STATE") or platformdirs.user_state_dir("specd"))
