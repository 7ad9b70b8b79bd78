"""A SparkSession that suits us, and which settings of another one would break exactly-once, by name."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from meander.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUIRED = {
    # A task is never run again by Spark alone: the whole batch is, with a new token.
    "spark.task.maxFailures": ("1", "4"),
    "spark.stage.maxConsecutiveAttempts": ("1", "4"),
    "spark.stage.ignoreDecommissionFetchFailure": ("false", "true"),
    "spark.speculation": ("false", "false"),
    "spark.dynamicAllocation.enabled": ("false", "false"),
    # Tasks go where their state is, not where shuffle files happen to be.
    "spark.shuffle.reduceLocality.enabled": ("false", "true"),
    # Python processes stay, with what they have loaded.
    "spark.python.worker.reuse": ("true", "true"),
}
"""Setting: the value it must have, and Spark's default."""

LOCAL_DOES_NOT_NEED = {"spark.task.maxFailures", "spark.shuffle.reduceLocality.enabled"}

CHOSEN = {
    "spark.locality.wait": "20s",
    # A barrier stage starts when offers for all its slots come at once, which Spark makes only this often.
    "spark.scheduler.revive.interval": "10ms",
    "spark.python.daemon.module": "meander.engine.spark.daemon",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
}
"""What suits our queries; yours wins."""


def session(master: str | None = None, app: str = "meander", **settings: object) -> SparkSession:
    """Return a SparkSession with everything set as Meander needs it.

    Args:
        master: Spark's master, by default two threads of this process: `local[2]`.
        app: the application's name.
        settings: further settings of Spark, with `__` for the dots: `spark__executor__memory="2g"`.
    """
    from pyspark.sql import SparkSession

    from meander.datasource import register

    builder = SparkSession.builder.appName(app).master(master or os.environ.get("MEANDER_MASTER", "local[2]"))
    chosen = {**CHOSEN, **{name: value for name, (value, _) in REQUIRED.items()}}
    # Python workers are started with this Python; without it, with whatever python3 is first on their path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in settings.items():
        setting = name.replace("__", ".")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if setting in REQUIRED and text != REQUIRED[setting][0]:
            raise InvalidOption(f"{setting} must be {REQUIRED[setting][0]}, not {text}; leave it out")
        chosen[setting] = text
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    check(spark)
    return register(spark)


def check(spark: SparkSession) -> None:
    """Refuse a session whose settings would break exactly-once, naming each with the value it must have."""
    from pyspark.sql import is_remote

    if is_remote() or not hasattr(spark, "sparkContext"):
        raise InvalidOption("Meander needs a classic Spark session, and this one is Spark Connect; see me.session")
    context = spark.sparkContext
    local = str(context.master).partition("[")[0] == "local"
    conf = context.getConf()
    wrong = []
    for name, (needed, default) in REQUIRED.items():
        if local and name in LOCAL_DOES_NOT_NEED:
            continue
        value = conf.get(name, default)
        if value != needed:
            wrong.append(f"{name} must be {needed}, not {value}")
    if wrong:
        raise InvalidOption(
            f"this Spark session cannot run Meander safely: {'; '.join(wrong)}; set them before Spark starts, "
            "or use me.session()"
        )
    version = spark.version
    if not version.startswith("4.3"):
        raise InvalidOption(f"Meander was made for Spark 4.3 and this is {version}; install pyspark 4.3")
