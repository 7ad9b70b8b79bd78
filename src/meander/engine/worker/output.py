"""In which form a sink wants the output of a version: as rows, as files that workers write for it, or not at all.

A worker writes files of its own for each attempt, under a folder that only this attempt has. The sink takes those that
the reports of the attempt name, and shows them when the version is committed; what other attempts wrote is swept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from meander.errors import MeanderError


class OutputForm(NamedTuple):
    """What a sink wants of the workers.

    Args:
        is_nothing: it looks at no row.
        folder: where workers write Parquet files for it; None where it wants rows.
        compression: of these files, as Arrow calls it.
        columns: the columns of the output that it wants; None for all.
        inline: a worker's rows of at most so many bytes travel in its report instead.
    """

    is_nothing: bool = False
    folder: str | None = None
    compression: str = "snappy"
    columns: tuple[str, ...] | None = None
    inline: int = 1 << 20

    @classmethod
    def from_json(cls, fields: list[Any]) -> OutputForm:
        """Read a form as it travels."""
        form = cls(*fields)
        return form if form.columns is None else form._replace(columns=tuple(form.columns))

    def write(self, rows: pa.Table, attempt: str, slot: int, fsync: bool) -> str:
        """Write a worker's rows into the folder of an attempt, and return the path of the file."""
        assert self.folder is not None, "this sink wants rows"
        folder = Path(self.folder) / attempt
        try:
            make_folder(folder, fsync)
            return str(self.write_part(rows, folder, f"{attempt}-{slot:05}", fsync))
        except OSError as problem:
            raise MeanderError(f"the sink's folder {folder.parent.parent} cannot be written to: {problem}") from problem

    def write_part(self, rows: pa.Table, folder: Path, name: str, fsync: bool) -> Path:
        """Write a Parquet file that Spark, pandas and Arrow read with the types that the rows have here."""
        path = folder / f"part-{name}.{self.compression}.parquet"
        with path.open("xb") as file:
            pq.write_table(rows, file, compression=self.compression, store_schema=False)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        return path


ROWS = OutputForm()


def make_folder(folder: Path, fsync: bool) -> None:
    """Make a folder and those above it that are not there; with `fsync` they are there after a loss of power too."""
    if not folder.is_dir():
        make_folder(folder.parent, fsync)
        folder.mkdir(exist_ok=True)
        if fsync:
            sync(folder.parent)


def sync(path: Path) -> None:
    """Have a file or a folder on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_parquet(kind: pa.DataType) -> bool:
    """Whether Parquet has this type as Spark has it."""
    is_of = pa.types
    if is_of.is_list(kind) or is_of.is_map(kind) or is_of.is_struct(kind):
        return kind.num_fields > 0 and all(is_parquet(kind.field(at).type) for at in range(kind.num_fields))
    tests = (
        is_of.is_signed_integer, is_of.is_float32, is_of.is_float64, is_of.is_boolean, is_of.is_string, is_of.is_binary,
        is_of.is_date32, is_of.is_decimal128,
    )  # fmt: skip
    return any(test(kind) for test in tests) or (is_of.is_timestamp(kind) and kind.unit == "us")
