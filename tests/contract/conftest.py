"""Every test of the contract on every runtime; tests of one runtime follow one another and share what it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract import runtimes

FOLDER = Path(__file__).parent


def is_contract(item) -> bool:
    return FOLDER in item.path.parents


def pytest_collection_modifyitems(items):
    """One runtime after the other, and the native engine last: a process has one Spark at a time."""

    def turn(item) -> int:
        name = item.callspec.params.get("runtime") if hasattr(item, "callspec") else None
        return runtimes.ALL.index(name) if name else len(runtimes.ALL)

    mine = sorted((item for item in items if is_contract(item)), key=turn)
    items[:] = [*mine, *(item for item in items if not is_contract(item))]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """After the last test of the contract the place is free for other tests."""
    if nextitem is None or not is_contract(nextitem):
        runtimes.close()


@pytest.fixture(params=runtimes.USUAL)
def runtime(request, tmp_path):
    """A runtime, for the queries of one test."""
    place = runtimes.RUNTIMES[request.param](tmp_path)
    yield place
    place.end()
