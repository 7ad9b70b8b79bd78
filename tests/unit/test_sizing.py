"""How many workers a query has when nobody says: executors that are still to come are waited for."""

from __future__ import annotations

import logging

import pytest

from meander.engine.spark.gateway import Executor
from meander.engine.spark.sizing import configured_cores, default_workers

STARTED_MS = 1_000_000


class SlowCluster:
    """An application whose executors register one after the other; it is its own clock."""

    started_ms = STARTED_MS

    def __init__(self, settings: dict[str, str], come_after_s: list[float], cores: int = 1, age_s: float = 0.0) -> None:
        self._settings, self._come_after_s, self._cores = settings, come_after_s, cores
        self.age_s = age_s
        self.looks = 0

    def settings(self) -> dict[str, str]:
        return self._settings

    def executors(self) -> list[Executor]:
        self.looks += 1
        here = [at for at, after_s in enumerate(self._come_after_s) if after_s <= self.age_s]
        return [Executor(str(at), "host", self._cores, True) for at in here]

    def now_s(self) -> float:
        return self.age_s

    def wall_ms(self) -> int:
        return int(STARTED_MS + self.age_s * 1000)

    def sleep(self, seconds: float) -> None:
        self.age_s += seconds


def workers_of(cluster: SlowCluster, within_s: float = 60.0) -> int:
    return default_workers(cluster, within_s, cluster)


LOCAL_CLUSTER = {"spark.master": "local-cluster[3,2,1024]"}


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({"spark.master": "local[4]"}, None),
        ({"spark.master": "local[*]", "spark.executor.instances": "7"}, None),
        (LOCAL_CLUSTER, 6),
        ({**LOCAL_CLUSTER, "spark.cores.max": "4"}, 4),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "12"}, 12),
        ({"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "4"}, 20),
        ({"spark.master": "k8s://https://host:443", "spark.executor.instances": "5"}, 5),
        ({"spark.master": "yarn"}, 2),
        ({}, None),
    ],
)
def test_settings_say_how_many_cores_there_will_be(settings, cores):
    assert configured_cores(settings) == cores


def test_executors_that_register_late_are_waited_for(caplog):
    cluster = SlowCluster(LOCAL_CLUSTER, [0.0, 1.0, 7.5], cores=2)
    assert workers_of(cluster) == 6
    assert 7.5 <= cluster.age_s < 8
    assert caplog.records == []


def test_nobody_waits_where_all_are_there_or_the_settings_do_not_say():
    for settings in (LOCAL_CLUSTER, {"spark.master": "local[2]"}, {"spark.master": "spark://host:7077"}):
        cluster = SlowCluster(settings, [0.0, 0.0, 0.0], cores=2)
        assert (workers_of(cluster), cluster.looks, cluster.age_s) == (6, 1, 0.0)


def test_a_first_executor_is_waited_for_even_where_the_settings_do_not_say():
    assert workers_of(SlowCluster({"spark.master": "spark://host:7077"}, [3.0])) == 1


def test_who_does_not_come_in_time_is_done_without_and_that_is_said(caplog):
    cluster = SlowCluster(LOCAL_CLUSTER, [0.0, 1.0], cores=2)
    with caplog.at_level(logging.WARNING, "meander"):
        assert workers_of(cluster, within_s=20) == 4
    assert 20 <= cluster.age_s < 20.5
    assert [record.getMessage() for record in caplog.records] == [
        "the executors were to have 6 cores and have 4 after 20 s: the query starts with as many workers; rescale it "
        "when the others have come"
    ]


def test_an_application_that_is_older_has_lost_them_or_let_them_go(caplog):
    cluster = SlowCluster(LOCAL_CLUSTER, [0.0], cores=2, age_s=61.0)
    assert (workers_of(cluster), cluster.looks) == (2, 1)
    assert caplog.records == []
