"""An outlook as a folder: Parquet files and a small outlook.json that names them; or what is done so far of one.

A file is named after its content and outlook.json is renamed into place last, so a reader sees one whole outlook:
the old one or the new one. This module knows of an outlook only its `kind`, `facts` and `to_tables`; each kind lists
itself in `Outlook.kinds`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from meander.errors import Damaged, InvalidOption
from meander.outlook.outlook import Outlook, fingerprint_of
from meander.store.uri import local_path

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


def put(path: Path, data: bytes | memoryview) -> None:
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


class Folder:
    """The folder of one outlook; without a path, one that is removed afterwards.

    What is done so far lies in its `work` and is taken up again by a run with the same inputs. Others are
    refused: a folder holds one outlook.
    """

    def __init__(self, path: str | Path | None, kind: str, inputs: Mapping[str, Any]) -> None:
        self._passing = path is None
        folder = Path(tempfile.mkdtemp(prefix="meander-pmc-") if path is None else local_path("path", path))
        if folder.is_file():
            raise InvalidOption(f"path is {str(path)!r}; give a folder on a file system that all executors share")
        self.path = folder.resolve()
        self.work = self.path / "work"
        self._inputs = dict(inputs)
        self._fingerprint = fingerprint_of(kind, inputs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._passing:
            shutil.rmtree(self.path, ignore_errors=True)

    def finished(self) -> Outlook | None:
        """The outlook of these inputs that the folder holds already; None where it holds none."""
        index = read_index(self.path)
        if index is None:
            return None
        if index.get("fingerprint") != self._fingerprint:
            raise self._others(f"an outlook of kind {index.get('kind')!r}", index.get("facts", {}))
        return read(self.path)

    def finish(self, outlook: Outlook) -> None:
        """Keep the outlook; what led to it goes."""
        if not self._passing:
            write(outlook, self.path)
        shutil.rmtree(self.work, ignore_errors=True)

    def claim(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Take the work directory for these inputs, or refuse; return the settings it was begun with."""
        try:
            record = json.loads((self.work / "inputs.json").read_bytes())
        except FileNotFoundError:
            self.work.mkdir(parents=True, exist_ok=True)
            record = {"fingerprint": self._fingerprint, "settings": dict(settings), "inputs": self._inputs}
            put(self.work / "inputs.json", json.dumps(record).encode())
        if record["fingerprint"] != self._fingerprint:
            raise self._others("an unfinished outlook", record["inputs"])
        return dict(record["settings"])

    def recall(self, name: str) -> NDArray[Any] | None:
        """The array that was kept under a name; None where there is none."""
        try:
            return np.asarray(np.load(self.work / f"{name}.npy", allow_pickle=False))
        except FileNotFoundError:
            return None

    def keep(self, name: str, values: NDArray[Any]) -> None:
        """Keep an array under a name, whole or not at all."""
        data = io.BytesIO()
        np.save(data, values, allow_pickle=False)
        put(self.work / f"{name}.npy", data.getvalue())

    def _others(self, what: str, inputs: Mapping[str, Any]) -> InvalidOption:
        differ = [name for name, value in self._inputs.items() if inputs.get(name) != value]
        which = f"for another {' and '.join(differ)}" if differ else "of another kind"
        return InvalidOption(f"{self.path} holds {what} {which}; give another path, or remove it")
