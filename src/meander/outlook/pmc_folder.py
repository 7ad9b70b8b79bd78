"""Where an outlook is made: its folder with what is done so far, and tasks on Spark."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.outlook import files
from meander.outlook.outlook import Outlook, fingerprint_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ArrowTask = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


NEEDED = ("meander", "numba", "numpy", "pyarrow")
"""Modules of which a Python that is not ours would lack one."""


class Folder:
    """The folder of one outlook; without a path, one that is removed afterwards.

    What is done so far lies in its `work` and is taken up again by a run with the same inputs. Others are
    refused: a folder holds one outlook.
    """

    def __init__(self, path: str | Path | None, kind: str, inputs: Mapping[str, Any]) -> None:
        if path is not None and ("://" in str(path) or Path(path).is_file()):
            raise InvalidOption(f"path is {str(path)!r}; give a folder on a file system that all executors share")
        self._passing = path is None
        self.path = Path(tempfile.mkdtemp(prefix="meander-pmc-") if path is None else path).resolve()
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
        index = files.read_index(self.path)
        if index is None:
            return None
        if index.get("fingerprint") != self._fingerprint:
            raise self._others(f"an outlook of kind {index.get('kind')!r}", index.get("facts", {}))
        return files.read(self.path)

    def finish(self, outlook: Outlook) -> None:
        """Keep the outlook; what led to it goes."""
        if not self._passing:
            files.write(outlook, self.path)
        shutil.rmtree(self.work, ignore_errors=True)

    def claim(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Take the work directory for these inputs, or refuse; return the settings it was begun with."""
        try:
            record = json.loads((self.work / "inputs.json").read_bytes())
        except FileNotFoundError:
            self.work.mkdir(parents=True, exist_ok=True)
            record = {"fingerprint": self._fingerprint, "settings": dict(settings), "inputs": self._inputs}
            files.put(self.work / "inputs.json", json.dumps(record).encode())
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
        files.put(self.work / f"{name}.npy", data.getvalue())

    def _others(self, what: str, inputs: Mapping[str, Any]) -> InvalidOption:
        differ = [name for name, value in self._inputs.items() if inputs.get(name) != value]
        which = f"for another {' and '.join(differ)}" if differ else "of another kind"
        return InvalidOption(f"{self.path} holds {what} {which}; give another path, or remove it")


def run(spark: SparkSession, tasks: int, task: ArrowTask, schema: str, slices: int | None = None) -> pa.Table:
    """Run tasks 0, 1, 2, ... on Spark, each in a slice of its own unless `slices` is given, and return their rows.

    Raises:
        InvalidOption: the Python of the session's workers lacks Meander or a module that it needs.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return spark.range(0, tasks, 1, min(tasks, slices or tasks)).mapInArrow(task, schema).toArrow()
    except (PySparkException, Py4JJavaError) as error:
        lacks = re.search(rf"No module named '?({'|'.join(NEEDED)})\b", str(error))
        if lacks is None:
            raise
        raise InvalidOption(
            f"the Python workers of this Spark session lack the module {lacks[1]!r}; before Spark starts set "
            f"PYSPARK_PYTHON to a Python that has Meander, such as {sys.executable}, or use me.session()"
        ) from None


def ids(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """The tasks that a call has to do."""
    for batch in batches:
        yield from batch.column(0).to_pylist()
