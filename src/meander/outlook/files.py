"""An outlook as a folder: Parquet files and a small outlook.json that names them.

A file is named after its content and outlook.json is renamed into place last, so a reader sees one whole outlook:
the old one or the new one. This module knows of an outlook only its `kind`, `facts` and `to_tables`; each kind lists
itself in `Outlook.kinds`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander.errors import Damaged, InvalidOption
from meander.outlook.outlook import Outlook

FORMAT = 1
INDEX = "outlook.json"


def write(outlook: Outlook, folder: str | Path) -> None:
    """Write an outlook into a folder, over an older one if there is one."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    named = {}
    for name, columns in outlook.to_tables().items():
        data = _to_parquet(columns)
        named[name] = f"{name}-{hashlib.sha256(data).hexdigest()[:32]}.parquet"
        put(folder / named[name], data)
    index = {
        "format": FORMAT,
        "kind": outlook.kind,
        "fingerprint": outlook.fingerprint,
        "tables": named,
        "facts": outlook.facts(),
    }
    put(folder / INDEX, json.dumps(index, indent=1).encode())
    for path in folder.glob("*.parquet"):
        if path.name not in named.values():
            path.unlink(missing_ok=True)


def read(folder: str | Path) -> Outlook:
    """Return the outlook in a folder.

    Raises:
        InvalidOption: there is none, or one of a kind that is not known here.
        Damaged: a file of it is missing or is not what was written.
    """
    folder = Path(folder)
    index = read_index(folder)
    if index is None:
        raise InvalidOption(f"{folder} holds no finished outlook; make one with me.pmc(..., path={str(folder)!r})")
    kinds = Outlook.kinds
    if index.get("kind") not in kinds:
        raise InvalidOption(f"{folder} holds an outlook of kind {index.get('kind')!r}; known are {', '.join(kinds)}")
    try:
        tables = {name: _from_parquet(folder / file) for name, file in index["tables"].items()}
        outlook = kinds[index["kind"]].from_tables(index["facts"], tables)
        intact = outlook.fingerprint == index["fingerprint"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder, str(error)) from None
    if not intact:
        raise _damaged(folder, "its inputs are not those it was made from")
    return outlook


def read_index(folder: Path) -> dict[str, Any] | None:
    """What outlook.json says; None where there is none."""
    try:
        index = json.loads((folder / INDEX).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise _damaged(folder, f"{INDEX} is no JSON ({error})") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InvalidOption(f"{folder / INDEX} is not of format {FORMAT}; make the outlook again with this Meander")
    return index


def put(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _damaged(folder: Path, why: str) -> Damaged:
    return Damaged(f"the outlook in {folder} is damaged: {why}; remove it and make it again")


def _to_parquet(columns: Mapping[str, NDArray[Any]]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = {
        name: pa.array(column)
        if column.ndim == 1
        else pa.FixedSizeListArray.from_arrays(pa.array(column.ravel()), column.shape[1])
        for name, column in columns.items()
    }
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    return bytes(sink.getvalue())


def _from_parquet(path: Path) -> dict[str, NDArray[Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        data = path.read_bytes()
    except OSError:
        raise _damaged(path.parent, f"{path.name} is missing") from None
    if hashlib.sha256(data).hexdigest()[:32] != path.stem[-32:]:
        raise _damaged(path.parent, f"{path.name} is not what was written")
    table = parquet.read_table(pa.BufferReader(data))
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        whole = column.combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            columns[name] = np.asarray(whole.flatten()).reshape(-1, column.type.list_size)
        else:
            columns[name] = np.asarray(whole)
    return columns
