"""For all tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests learn about this machine stays with them, and what was learned before does not sway them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECD_STATE", str(tmp_path_factory.mktemp("state")))
        yield
