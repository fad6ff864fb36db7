"""For all tests."""

import signal
from collections.abc import Iterator

import pytest

# A shell that starts the tests in the background has them ignore these, and so would every process that they start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests learn about this machine stays with them, and what was learned before does not sway them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECD_STATE", str(tmp_path_factory.mktemp("state")))
        yield
