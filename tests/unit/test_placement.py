"""Which worker is on which executor: who stays, who moves in, and who comes first where there are too few."""

from pathlib import Path

import numpy as np
import pytest

from meander.clock import ManualClock
from meander.engine.driver.placement import MAX_LEFT, Placement, occupied, place_workers
from meander.engine.driver.ports import Place
from meander.errors import InvalidOption
from meander.migration.ledger import Holdings
from meander.testing.inprocess import InProcessCluster


def place(name, cores=1):
    return Place(name, f"executor_h_{name}", f"h:{name}:1", cores)


@pytest.fixture
def cluster(tmp_path):
    return InProcessCluster(tmp_path, 2)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def placement(cluster, clock):
    return Placement(cluster, Holdings(), "run", clock)


def executors(placement):
    return {worker: place.executor for worker, place in placement.places.items()}


# --- who goes where ------------------------------------------------------------------------------


def test_workers_that_can_stay_stay_and_the_others_spread():
    a, b, c = place("a", 2), place("b", 2), place("c", 2)
    first = place_workers([0, 1, 2, 3], [a, b], {})
    assert sorted(found.executor for found in first.values()) == ["a", "a", "b", "b"]
    later = place_workers([0, 1, 2, 3], [a, c], first)
    assert {w: p for w, p in later.items() if first[w] == a} == {w: p for w, p in first.items() if p == a}
    assert all(later[w] == c for w in first if first[w] == b)


def test_executors_with_more_cores_get_more_workers():
    placed = place_workers(range(6), [place("a", 4), place("b", 2)], {})
    assert sorted(found.executor for found in placed.values()) == ["a"] * 4 + ["b"] * 2


def test_more_workers_than_cores_are_refused():
    with pytest.raises(InvalidOption, match="3 workers need as many cores and the executors have 2"):
        place_workers([0, 1, 2], [place("a"), place("b")], {})


# --- settling ------------------------------------------------------------------------------------


def test_everyone_gets_a_place_and_keeps_it(placement, cluster):
    assert placement.settle([0, 1], 0.0) == []
    first, homes = dict(placement.places), [placement.home(0), placement.home(1)]
    assert placement.settle([0, 1], 0.0) == []
    cluster.request(3)
    assert placement.settle([0, 1, 2], 0.0) == []
    assert {worker: placement.places[worker] for worker in (0, 1)} == first
    assert [placement.home(0), placement.home(1)] == homes
    assert len({*homes, placement.home(2)}) == 3
    assert placement.cores == 3
    assert placement.processes == ("inprocess:1", "inprocess:2", "inprocess:3")


def test_where_there_are_too_few_owners_come_first(placement, cluster, clock):
    assert placement.settle([0, 1, 2, 3], 5.0, owners=[2, 3]) == [0, 1]
    assert sorted(placement.places) == [2, 3]
    assert 5.0 <= clock.now_s() < 6.0, "it was waited for them"
    cluster.request(3)
    assert placement.settle([0, 1, 2, 3], 0.0, owners=[2, 3]) == [1]


def test_of_owners_those_come_first_that_can_stay(placement, cluster):
    cluster.request(3)
    placement.settle([0, 1, 2], 0.0, owners=[0, 1, 2])
    cluster.lose(placement.places[0].executor)
    placement.forget_lost()
    assert placement.settle([0, 1, 2], 0.0, owners=[0, 1, 2]) == [0]


def test_executors_that_come_in_time_are_waited_for(placement, cluster, clock, monkeypatch):
    def sleep(seconds):
        clock.advance(seconds)
        if clock.now_s() > 1.0:
            cluster.request(3)

    monkeypatch.setattr(clock, "sleep", sleep)
    assert placement.settle([0, 1, 2], 60.0) == []
    assert clock.now_s() < 2.0


def test_in_local_mode_all_share_one_place(clock):
    class Local(InProcessCluster):
        is_local = True

    placement = Placement(Local(Path("/nonexistent"), 1), Holdings(), "run", clock)
    assert placement.settle(range(5), 0.0) == []
    assert len(set(placement.places.values())) == 1
    assert len({placement.home(worker) for worker in range(5)}) == 5


def test_whoever_moves_in_begins_anew(placement, cluster):
    placement.settle([0, 1], 0.0)
    before = placement.home(0), placement.home(1)
    for worker in (0, 1):
        placement.holdings.report(0, worker, np.ones(4, np.bool_))
    cluster.lose(placement.places[0].executor, replace=True)
    assert placement.lost() == {"1"}
    placement.forget_lost()
    assert executors(placement) == {1: "2"}
    placement.settle([0, 1], 0.0)
    assert executors(placement) == {0: "3", 1: "2"}
    assert placement.home(0) != before[0]
    assert placement.home(1) == before[1]
    assert placement.holdings.of(0, 0) is None, "what it held is gone with its executor"
    assert placement.holdings.of(0, 1).all()


def test_a_worker_whose_task_ran_elsewhere_gets_a_place_anew(placement):
    placement.settle([0, 1], 0.0)
    before = placement.home(0)
    placement.misplaced(0)
    assert sorted(placement.places) == [1]
    placement.settle([0, 1], 0.0)
    assert placement.home(0) != before


# --- going ---------------------------------------------------------------------------------------


def test_whoever_is_dismissed_leaves_its_folder_behind(placement):
    placement.settle([0, 1], 0.0)
    placement.holdings.report(0, 1, np.ones(4, np.bool_))
    assert placement.dismiss({1, 7}) == {placement.home(1): "2"}
    assert sorted(placement.places) == [0]
    assert placement.holdings.of(0, 1) is None


def test_an_executor_is_unused_only_if_no_query_has_a_worker_there(placement, cluster, clock):
    other = Placement(cluster, Holdings(), "other", clock)
    placement.settle([0, 1], 0.0)
    other.settle([0], 0.0)
    placement.dismiss({0, 1})
    assert placement.unused(["1", "2"]) == ["2"]
    other.leave()
    assert placement.unused(["2", "1"]) == ["1", "2"]
    assert occupied(cluster) == set()


def test_leaving_removes_every_folder_there_ever_was(placement, cluster, tmp_path):
    placement.settle([0, 1], 0.0)
    folders = [cluster.host(placement.places[worker]).folder / placement.home(worker) for worker in (0, 1)]
    for folder in folders:
        folder.mkdir(parents=True)
    placement.dismiss({1})
    placement.leave()
    assert not any(folder.exists() for folder in folders)
    assert placement.places == {}


def test_folders_that_workers_left_are_removed_and_forgotten(cluster, placement, tmp_path):
    for _ in range(3 * MAX_LEFT):
        placement.settle([0, 1], 1.0)
        for worker in (0, 1):
            cluster.host(placement.places[worker]).home(placement.home(worker))
        placement.misplaced(0)  # its executor is there still, and the folder with it
    folders = [*tmp_path.glob("*/meander-run-*")]
    assert 2 <= len(folders) <= MAX_LEFT + 2
    placement.settle([0, 1, 2], 1.0)
    placement.dismiss({0, 1})
    placement.leave()
    assert not [path for path in tmp_path.glob("*/meander-run-*") if placement.run in path.name and path not in folders]
