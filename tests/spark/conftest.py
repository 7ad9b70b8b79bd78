"""One Spark for all tests that share it, and those that need another one first: a process has one Spark at a time."""

from __future__ import annotations

import contextlib

import pytest

from streams import BRIEF

WITH_THEIR_OWN = (
    "test_ground.py",
    "test_own_session.py",
    "test_cluster.py",
    "test_nexmark_cluster.py",
    "test_native.py",
)


def pytest_collection_modifyitems(items):
    """Tests that start and stop a Spark of their own run before the shared one starts."""
    items.sort(key=lambda item: "spark" in item.fixturenames and item.path.name not in WITH_THEIR_OWN)


@pytest.fixture(scope="session")
def spark():
    import meander as me

    session = me.session("local[2]", **BRIEF, spark__sql__shuffle__partitions=2)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _nothing_left_running(request):
    """A test that fails must not leave its query to the next one."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            with contextlib.suppress(Exception):
                query.stop()
