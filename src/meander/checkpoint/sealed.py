"""Small JSON files with a checksum: the last field covers all bytes before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from meander.errors import Damaged
from meander.route.hashing import checksum

_BEFORE = b',"checksum":"'
_AFTER = b'"}\n'
_LENGTH = len(_BEFORE) + 16 + len(_AFTER)


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return an object as JSON with its checksum.

    >>> seal({"bins": 256})
    b'{"bins":256,"checksum":"e2260e3416b36e39"}\\n'
    """
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return body + _BEFORE + f"{checksum(body):016x}".encode() + _AFTER


def seal_of(data: bytes) -> str:
    """The checksum at the end of a sealed file, as 16 hexadecimal digits."""
    return data[-_LENGTH + len(_BEFORE) : -len(_AFTER)].decode("ascii", "replace")


def unseal(data: bytes, name: str) -> dict[str, Any]:
    """Return the object of a sealed file, without its checksum; Damaged, naming the file, where a byte has changed."""
    body, tail = data[:-_LENGTH], data[-_LENGTH:]
    if len(tail) != _LENGTH or tail != _BEFORE + f"{checksum(body):016x}".encode() + _AFTER:
        raise Damaged(f"{name} is torn or has been changed: its checksum does not match; restore it from a copy")
    try:
        return cast(dict[str, Any], json.loads(body + b"}"))
    except ValueError:
        raise Damaged(f"{name} is no JSON although its checksum matches; restore it from a copy") from None
