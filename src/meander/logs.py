"""The logger `meander`, and what its records carry beside their text: query, version and migration.

Every record has all three, None where it is about none, so that a format may name them: "%(query)s %(message)s".
See `docs/log-as-json.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

FIELDS = ("query", "version", "migration")
"""A query's name, or its id where it has none; the number of a version; the number of a migration."""

logger = logging.getLogger("meander")

_SUBJECT: ContextVar[Mapping[str, object]] = ContextVar("_SUBJECT", default=MappingProxyType(dict.fromkeys(FIELDS)))


@contextmanager
def about(**subject: object) -> Iterator[None]:
    """Say what every record that is logged inside, in this thread, is about: `about(query="spend", version=3)`."""
    token = _SUBJECT.set({**_SUBJECT.get(), **subject})
    try:
        yield
    finally:
        _SUBJECT.reset(token)


def _complete(record: logging.LogRecord) -> bool:
    """Add the fields that the call itself has not given."""
    for name, value in _SUBJECT.get().items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True


logger.addFilter(_complete)
