"""Files from the hub, through huggingface_hub: it owns its cache, tokens and resuming.

huggingface_hub takes half a second to import, so this module imports it inside its functions: a model that was
checked before is used without it.
"""

import logging
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from specd.errors import DownloadFailed, GatedError, ModelNotAvailable, NoSuchFile
from specd.models.progress import Progress

REVISION = "main"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class HubFile:
    """What the hub says of a file. sha256: None for files it does not keep by content."""

    repository: str
    revision: str
    name: str
    bytes: int | None
    sha256: str | None


def is_offline() -> bool:
    """Whether the user forbade the network, in huggingface_hub's own way."""
    values = (os.environ.get("HF_HUB_OFFLINE"), os.environ.get("TRANSFORMERS_OFFLINE"))
    return any((value or "").upper() in ("1", "ON", "YES", "TRUE") for value in values)


def cached(repository: str, revision: str | None, name: str) -> Path | None:
    """The file in huggingface_hub's cache, if it is there. No network."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, name, revision=revision or REVISION)
    return Path(found) if isinstance(found, str) else None


def sha256_of_cached(path: Path) -> str | None:
    """huggingface_hub names what it keeps by its sha256, where the hub has one."""
    return _as_sha256(path.resolve().name)


def describe(repository: str, revision: str | None, name: str, *, timeout: float) -> HubFile:
    """Ask the hub about a file: one request, no retries, an answer within `timeout` seconds.

    Raises GatedError, NoSuchFile, or DownloadFailed when the hub cannot be reached.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    revision = revision or REVISION
    url = hf_hub_url(repository, name, revision=revision)

    ask = partial(get_hf_file_metadata, url, timeout=timeout)
    metadata = _translated(partial(_within, timeout, ask), repository, revision, name)
    return HubFile(repository, revision, name, metadata.size, _as_sha256(metadata.etag))


def folder() -> Path:
    """Where huggingface_hub keeps its files."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def download(file: HubFile, progress: Progress) -> Path:
    """Fetch a file into huggingface_hub's cache; what is there already is not fetched again."""
    from huggingface_hub import hf_hub_download

    def get() -> str:
        bar = type("Bar", (_Bar,), {"progress": progress, "what": f"fetching {file.name}"})
        return hf_hub_download(file.repository, file.name, revision=file.revision, tqdm_class=bar)

    return Path(_translated(get, file.repository, file.revision, file.name))


def _as_sha256(text: str | None) -> str | None:
    return text if text and re.fullmatch(r"[0-9a-f]{64}", text) else None


def _translated(action: Callable[[], _Result], repository: str, revision: str, name: str) -> _Result:
    """Run a call of huggingface_hub; its errors become ours. Tokens are never part of a message."""
    from huggingface_hub import errors, get_token

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every retry
    try:
        return action()
    except ModelNotAvailable:
        raise
    except errors.GatedRepoError as error:
        remedy = (
            "the token in use has no access: accept the licence on the repository's page with its account"
            if get_token()
            else "log in with `hf auth login`, or set HF_TOKEN, after accepting the licence on its page"
        )
        raise GatedError(f"{repository} on the hub is gated: {remedy}.") from error
    except errors.RevisionNotFoundError as error:
        raise NoSuchFile(f"{repository} on the hub has no revision {revision}.") from error
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise DownloadFailed(f"The hub broke off while {name} was fetched; run it again to resume.") from error
        raise NoSuchFile(f"{repository} on the hub has no file {name}. Check the spelling on its page.") from error
    except errors.RepositoryNotFoundError as error:
        raise NoSuchFile(
            f"The hub has no repository {repository}, or a private one that needs a token (HF_TOKEN)."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        if status in (401, 403):
            raise GatedError(f"The hub refuses {repository}/{name} (status {status}): check HF_TOKEN.") from error
        raise DownloadFailed(f"The hub answered with status {status} for {repository}/{name}.") from error
    except Exception as error:  # the network stack below raises types of several libraries
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DownloadFailed(f"{repository}/{name} could not be fetched from the hub: {reason}.") from error


def _within(seconds: float, action: Callable[[], _Result]) -> _Result:
    """Give up waiting after `seconds`: looking up a name can block longer than any timeout allows."""
    results: list[_Result] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(action())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise DownloadFailed(f"The hub did not answer within {seconds:g} s.")
    return results[0]


class _Bar:
    """What huggingface_hub takes for a tqdm bar."""

    progress: Progress
    what: str

    def __init__(self, *, total: float | None = None, initial: float = 0, **_: object) -> None:
        self.progress.start(self.what, int(total) if total else None, int(initial))

    def update(self, num_bytes: float | None = 1) -> None:
        self.progress.advance(int(num_bytes or 0))

    def set_description(self, *_: object, **__: object) -> None:
        pass

    def close(self) -> None:
        self.progress.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
