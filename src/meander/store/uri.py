"""What users name as a folder: a path or a file: URI. Every other scheme is refused by name, and secrets are masked."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from meander.errors import InvalidOption

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=[/\\])|(file):", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/\s@]*@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?]*)\?[^\s'\"]+")


def scheme_of(text: str) -> str | None:
    """The scheme that a text begins with, None where it is a path.

    >>> scheme_of("dbfs:/x"), scheme_of("S3A://bucket/x"), scheme_of("data/run:7")
    ('dbfs', 's3a', None)
    """
    match = _SCHEME.match(text)
    return (match[1] or match[2]).lower() if match else None


def local_path(what: str, place: str | os.PathLike[str]) -> str:
    """The absolute path of a folder of this machine, from a path or a file: URI; others are refused in one sentence.

    In a path every character stands for itself, but for a `~` at its beginning; in a URI `%20` is a space.

    Args:
        what: what the folder is for, as the beginning of a sentence.
        place: what the user gave.
    """
    text = os.fspath(place)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidOption(f"{what} is {place!r}; give a folder")
    scheme = scheme_of(text)
    if scheme is None:
        try:
            return os.path.abspath(Path(text).expanduser())  # noqa: PTH100 (resolve would follow links)
        except RuntimeError:
            raise InvalidOption(f"{what} is {text}, and there is no such home folder; give the whole path") from None
    if len(scheme) == 1:
        raise InvalidOption(f"{what} is {text}, a path of Windows; give one such as /data/folder")
    if scheme != "file":
        raise InvalidOption(
            f"{what} is {masked(text)}, and {scheme}: cannot be used yet; give a folder that the driver and all "
            "executors share: a path, or a URI such as file:///data/folder"
        )
    return _path_of_uri(what, text)


def _path_of_uri(what: str, uri: str) -> str:
    rest = uri[len("file:") :]
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", *rest.partition("/")[1:])
    if not slash or not rest.startswith("/"):
        raise InvalidOption(f"{what} is {masked(uri)}; a URI of a local folder is file:///path, with three slashes")
    if host not in ("", "localhost"):
        raise InvalidOption(
            f"{what} is {masked(uri)}, which names a host; a URI of a local folder is file:///path, with three slashes"
        )
    return os.path.abspath("/" + unquote(path))  # noqa: PTH100


def masked(text: str) -> str:
    """A text in which no URI shows who uses it, with which secret.

    >>> masked("cannot write s3a://key:secret@bucket/x?token=7: denied")
    'cannot write s3a://***@bucket/x?*** denied'
    """
    return _QUERY.sub(r"\1?***", _USER.sub("***@", text))
