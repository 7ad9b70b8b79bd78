"""What holds for all tests: how hard Hypothesis tries, see `effort`, and that no thread of a test outlives it."""

import threading

import pytest

import effort

effort.register()

PATIENCE_S = 10


@pytest.fixture(autouse=True)
def _no_thread_goes_on(request):
    """A thread that follows a clock of a test which nobody advances takes the interpreter from all tests after it."""
    before = set(threading.enumerate())
    yield
    if request.path.parent.name not in ("unit", "property"):
        return
    mine = [each for each in threading.enumerate() if each not in before and each.name.startswith("meander-")]
    for each in mine:
        each.join(PATIENCE_S)
    assert not [each.name for each in mine if each.is_alive()], "a thread goes on after its test"
