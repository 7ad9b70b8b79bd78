"""What must hold at the end of every cell: the sink's rows, the state, the late rows, and nothing left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from fault.matrix.rows import UTC
from fault.matrix.workloads import Batch, Rows, Workload
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.retention import sweep
from meander.store.verify import verify
from streams import side_of, state_of


def rows_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Rows:
    """These columns of rows, with how often each row is there."""
    return Counter(tuple(row[name] for name in columns) for row in rows)


def check(root: Path, workload: Workload, batches: Sequence[Batch], sink: str) -> dict[str, Any]:
    """Compare everything with a recount, and return how much was compared."""
    expected = workload.expect(batches)
    versions = VERSIONS[sink](root / "out", workload.columns)
    _compare(workload, versions, expected.output)
    checkpoint = root / "ck" / "q"
    for (operator, table), columns in workload.state.items():
        found, wanted = rows_of(state_of(checkpoint, operator, table), columns), expected.states[operator, table]
        assert found == wanted, f"state of operator {operator}: {difference(found, wanted)}"
    late = len(side_of(checkpoint, "late"))
    assert late == expected.late, f"{late} rows are late, and {expected.late} came late"
    check_disk(root, checkpoint)
    return {"batches": len(batches), "updates": sum(sum(each.values()) for each in versions.values()), "late": late}


def _compare(workload: Workload, versions: Mapping[int, Rows], expected: Sequence[Rows]) -> None:
    """The rows that the sink holds are those of the recount, each as often as there."""
    if workload.is_by_batch:
        found = [versions[number] for number in sorted(versions) if versions[number]]
        wanted = [each for each in expected if each]
        for at, (mine, theirs) in enumerate(zip(found, wanted, strict=False)):
            assert mine == theirs, f"sink, batch {at}: {difference(mine, theirs)}"
        assert len(found) == len(wanted), f"the sink has rows of {len(found)} batches, and {len(wanted)} emitted any"
    total, recount = sum(versions.values(), Counter()), sum(expected, Counter())
    assert total == recount, f"sink: {difference(total, recount)}"


def difference(found: Rows, wanted: Rows) -> str:
    """What one has and the other has not, in a few words."""
    lost, more = wanted - found, found - wanted
    some = [f"{rows.most_common(1)[0]}" for rows in (lost, more) if rows]
    return f"{lost.total()} rows are missing, {more.total()} are too many: {', '.join(some)}"


def check_disk(root: Path, checkpoint: Path) -> None:
    """Every file of the checkpoint is whole and needed, and the sink's folder holds nothing unfinished."""
    location = Location.of(str(checkpoint))
    sweep(location, Log.open(location), keep=1)
    findings = verify(location)
    assert not findings.damaged, findings.damaged
    assert not findings.unnamed, f"{findings.unnamed} files of the checkpoint are of no version"
    left = [each for each in (root / "out").glob("*") if each.name[0] in "._"]
    left = [each for each in left if each.is_file() or any(each.iterdir())]
    assert not left, f"the sink's folder still has {[str(each.relative_to(root)) for each in left]}"


def in_folders(out: Path, columns: Sequence[str]) -> dict[int, Rows]:
    """What a plain reader of a folder sees, by version."""
    versions: dict[int, Rows] = {}
    for folder in out.glob("batch=*"):
        versions[int(folder.name[6:])] = Counter()
    for file in ds.dataset(out, format="parquet").files if versions else ():
        version = int(Path(file).parent.name[6:])
        versions[version] += in_file(file, columns)
    return versions


def in_file(file: str | Path, columns: Sequence[str]) -> Rows:
    """The rows of one file of Spark's."""
    return rows_of(in_utc(pq.ParquetFile(file).read()).to_pylist(), columns)


def in_utc(rows: pa.Table) -> pa.Table:
    """Rows whose times are in UTC: Spark writes nanoseconds without a zone."""
    for at, each in enumerate(rows.schema):
        if pa.types.is_timestamp(each.type):
            rows = rows.set_column(at, each.name, rows[at].cast(pa.timestamp("us")).cast(UTC))
    return rows


def by_number(out: Path, columns: Sequence[str]) -> dict[int, Rows]:
    """What a function has kept, by version."""
    return {
        int(file.stem): rows_of(in_utc(pq.read_table(file)).to_pylist(), columns) for file in out.glob("[0-9]*.parquet")
    }


VERSIONS = {"files": in_folders, "callable": by_number}
"""How to read each sink."""
