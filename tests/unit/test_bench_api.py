"""./dev bench api: the functions that are measured, without Spark, against the recount that every system is held to."""

import pyarrow.parquet as pq
import pytest

import meander as me
from meander_lab.benchmarks import api

SIZES = api.ApiSizes(rows=600, keys=40, batches=3, rounds=1)
STREAMS = {
    "plain": lambda keyed: keyed.map_with_state(api.plain, api.STATE, api.OUTPUT, rows="plain"),
    "pandas": lambda keyed: keyed.map_with_state(api.in_pandas, api.STATE, api.OUTPUT, rows="pandas"),
    "arrow": lambda keyed: keyed.map_with_state(api.in_arrow, api.STATE, api.OUTPUT, rows="arrow"),
    "fold": lambda keyed: keyed.fold(api.folded, api.STATE, api.OUTPUT),
}


@pytest.mark.parametrize("form", STREAMS)
def test_every_form_that_is_measured_gives_what_the_recount_gives(form, tmp_path):
    expected = api.write(tmp_path, SIZES)
    assert sum(n for _, n, _ in expected) == SIZES.rows
    source = me.stream(me.testing.source("user string, price bigint")).key_by("user")
    with me.testing.harness(STREAMS[form](source)) as h:
        for number in range(SIZES.batches):
            h.batch(pq.read_table(tmp_path / f"{number}.parquet"))
        assert {(row["user"], row["n"], row["total"]) for row in h.latest("user")} == expected
