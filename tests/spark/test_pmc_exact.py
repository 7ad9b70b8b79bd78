"""Exact outlooks on Spark: the same answer as in one process, in one go or in several, on threads or on executors."""

from __future__ import annotations

import numpy as np
import pytest

import meander as me
from meander.errors import InvalidOption, TooLarge
from meander.outlook import files, pmc_exact
from meander.outlook.exact import Case
from meander.outlook.pmc_exact import enumerated
from meander.outlook.transitions import Transitions
from outlooks import solve

pytestmark = pytest.mark.spark

PAPER = Transitions.given([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]], lo=2)
SMALL = {"few": 0, "block": 64}
"""Through Spark, in several blocks, also where the driver alone would do."""


class KilledError(Exception):
    pass


def exact(spark, load, state, transitions, tau=0.2, gamma=0.8, path=None, epsilon=None, **options):
    return pmc_exact.exact(spark, Case.of(load, state, transitions, tau, gamma, epsilon), path, **options)


@pytest.fixture
def bins():
    rng = np.random.default_rng(11)
    return rng.uniform(0.5, 2, 24), rng.uniform(1, 9, 24)


@pytest.fixture
def cluster():
    # Spark's own daemon: ours would load all that a stream needs first.
    settings = {"spark__executor__memory": "1g", "spark__python__daemon__module": "pyspark.daemon"}
    session = me.session("local-cluster[2,1,1024]", **settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def same(a, b):
    assert a.fingerprint == b.fingerprint
    assert a.taus == b.taus
    assert np.array_equal(a.ends, b.ends)
    assert np.array_equal(a.projected, b.projected, equal_nan=True)
    return True


@pytest.mark.slow
def test_executors_find_what_one_process_finds(cluster, bins, tmp_path):
    outlook = exact(cluster, *bins, PAPER, tau=0.4, gamma=0.5, path=tmp_path, **SMALL)
    assert same(outlook, solve(*bins, PAPER, tau=0.4, gamma=0.5))
    assert same(outlook, files.read(tmp_path))


def test_the_known_counts_are_found_on_spark(spark, monkeypatch):
    monkeypatch.setattr(pmc_exact, "SLICE", 300)
    case = Case.of([1] * 100, [1] * 100, PAPER, tau=0.2)
    table = enumerated(spark, case)
    assert case.feasible(table).sum(axis=1).tolist() == [21, 231, 1771]
    assert np.array_equal(table, case.table(0, 2023))


@pytest.mark.parametrize(("gamma", "epsilon"), [(0, 1e-6), (0.8, 1e-6), (0.95, 1e-9)])
def test_spark_finds_what_one_process_finds(spark, bins, gamma, epsilon):
    told = []
    outlook = exact(
        spark, *bins, PAPER, tau=0.4, gamma=gamma, epsilon=epsilon, tell=lambda *each: told.append(each), **SMALL
    )
    assert same(outlook, solve(*bins, PAPER, tau=0.4, gamma=gamma, epsilon=epsilon))
    whats = list(dict.fromkeys(what for _, _, what in told))
    assert whats == ["partitionings", "blocks of pairs", "sweeps"]
    last = {what: (done, total) for done, total, what in told}
    assert last["partitionings"] == (len(outlook.ends),) * 2
    assert last["blocks of pairs"][0] == last["blocks of pairs"][1] > 1
    assert last["sweeps"][1] is None


def test_killed_at_any_point_it_goes_on_where_it_was(spark, bins, tmp_path, monkeypatch):
    monkeypatch.setattr(pmc_exact, "ROUND", 2)
    inputs = (*bins, PAPER, 0.4, 0.9, tmp_path)
    work = tmp_path / "work"
    computed = []
    computing = pmc_exact._computing
    monkeypatch.setattr(pmc_exact, "_computing", lambda s, which: computed.extend(which) or computing(s, which))

    def until(what, at_least):
        def tell(done, total, now):
            if now == what and done >= at_least:
                raise KilledError

        return tell

    for what, at_least in [("partitionings", 0), ("partitionings", 1), ("blocks of pairs", 3), ("sweeps", 2)]:
        with pytest.raises(KilledError):
            exact(spark, *inputs, tell=until(what, at_least), **SMALL)
        assert not (tmp_path / files.INDEX).exists()
    (kept,) = work.glob("values-*.npy")
    assert kept.stem == "values-000002"
    sweeps = []
    # Blocks of another size are not begun: those that are there count.
    outlook = exact(spark, *inputs, tell=lambda done, _, what: sweeps.append((what, done)), few=0, block=32)
    assert next(done for what, done in sweeps if what == "sweeps") == 2
    assert same(outlook, solve(*bins, PAPER, 0.4, 0.9))
    assert outlook.sweeps == solve(*bins, PAPER, 0.4, 0.9).sweeps
    assert len(computed) == len(set(computed))
    assert not work.exists()
    assert same(exact(None, *inputs), outlook)


def test_a_torn_block_is_computed_again(spark, bins, tmp_path):
    def tell(done, total, what):
        if what == "sweeps":
            raise KilledError

    with pytest.raises(KilledError):
        exact(spark, *bins, PAPER, 0.4, path=tmp_path, tell=tell, **SMALL)
    block = sorted((tmp_path / "work").glob("costs-*"))[0]
    block.write_bytes(block.read_bytes()[:100])
    assert same(exact(spark, *bins, PAPER, 0.4, path=tmp_path, **SMALL), solve(*bins, PAPER, 0.4))


def test_a_folder_of_other_inputs_is_refused_and_left_alone(spark, bins, tmp_path):
    def tell(*_):
        raise KilledError

    with pytest.raises(KilledError):
        exact(spark, *bins, PAPER, 0.4, path=tmp_path, tell=tell, **SMALL)
    with pytest.raises(InvalidOption, match="holds an unfinished outlook for another gamma; give another path"):
        exact(spark, *bins, PAPER, 0.4, 0.5, path=tmp_path, **SMALL)
    done = exact(spark, *bins, PAPER, 0.4, path=tmp_path, **SMALL)
    with pytest.raises(InvalidOption, match="an outlook of kind 'exact' for another state and tau; give another"):
        exact(spark, bins[0], bins[1] + 1, PAPER, 0.45, path=tmp_path)
    assert same(files.read(tmp_path), done)


def test_what_is_small_is_done_in_the_driver_and_kept_all_the_same(bins, tmp_path):
    outlook = exact(None, *bins, PAPER, 0.4, path=tmp_path)
    assert same(outlook, solve(*bins, PAPER, 0.4))
    assert same(files.read(tmp_path), outlook)


def test_what_is_too_large_leaves_no_trace(bins, tmp_path, monkeypatch):
    many = Transitions.given(np.full((9, 9), 1 / 9).tolist(), lo=8)
    with pytest.raises(TooLarge, match="more than 60000 partitionings of 64 bins"):
        exact(None, [1] * 64, [1] * 64, many, tau=1.2, path=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_costs_that_do_not_fit_are_refused_before_they_are_computed(spark, bins, tmp_path, monkeypatch):
    monkeypatch.setattr(pmc_exact, "MOST_BYTES", 1000)
    with pytest.raises(TooLarge, match="partitionings take 0.0 GB and there is room for 0.0; use a learned outlook"):
        exact(spark, *bins, PAPER, 0.4, path=tmp_path, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_executors_do_not_see_is_refused(spark, bins, tmp_path, monkeypatch):
    monkeypatch.setattr(pmc_exact, "run", _blind(pmc_exact.run))
    with pytest.raises(InvalidOption, match="the executors do not see .*; give a path"):
        exact(spark, *bins, PAPER, 0.4, path=tmp_path, **SMALL)
    with pytest.raises(InvalidOption, match="path is hdfs://there/it/is, and hdfs: cannot be used yet; give a folder"):
        exact(spark, *bins, PAPER, path="hdfs://there/it/is")


def _blind(run):
    """Spark whose tasks end well and leave nothing in the folder."""
    return lambda spark, tasks, task, schema: None if schema.startswith("block") else run(spark, tasks, task, schema)
