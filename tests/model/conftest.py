"""Real GGUF files. `make test` fetches them; here they are only looked up or fetched once more."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from specd.llama.devices import usable_cores
from specd.llama.engine import Engine
from specd.models.fetch import fetch
from specd.models.registry import load_registry
from specd.models.store import Store


def path_of(name: str) -> Path:
    """The file of a known model, or of a path."""
    return fetch(load_registry().model(name), Store())


def open_engine(name: str, *, n_ctx: int = 1024, max_rows: int = 8, exact: bool = False) -> Engine:
    engine = Engine(path_of(name), threads=usable_cores(), max_rows=max_rows, exact=exact)
    engine.allocate(n_ctx)
    return engine


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Engine]:
    with open_engine("smollm2-135m", n_ctx=2048) as engine:
        yield engine


@pytest.fixture(scope="module")
def engines() -> Iterator[ExitStack]:
    """Engines of one test module, closed at its end: the models are large."""
    with ExitStack() as stack:
        yield stack
