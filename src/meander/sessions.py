"""A SparkSession that suits us, and which settings of another one would break exactly-once, by name."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from meander.errors import InvalidOption
from meander.warmth import warm_beside

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
    "spark.ui.showConsoleProgress": "false",
}
"""What suits our queries; yours wins."""


def session(master: str | None = None, app: str = "meander", **settings: object) -> SparkSession:
    """Return a SparkSession with everything set as Meander needs it.

    Args:
        master: Spark's master, by default two threads of this process: `local[2]`.
        app: the application's name.
        settings: further settings of Spark, with `__` for the dots: `spark__executor__memory="2g"`.

    Returns:
        The session that runs already, where there is one and it is fit; otherwise a new one.

    Raises:
        InvalidOption: there is no Java, a setting is one that must be otherwise, or a session runs already that cannot
            run Meander safely.

    Example:
        >>> spark = me.session(app="words")
        >>> spark.range(3).count()
        3
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise InvalidOption(
            "PySpark is not installed here: pip install 'meander[spark]', or run where your platform brings Spark 4.3"
        ) from None

    running = SparkSession.getActiveSession()
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
    if running is None:
        check_java()
        warm_beside()  # while the JVM starts
    else:
        check(running, "a Spark session runs already, and it", "stop it (spark.stop()) and call me.session() again")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    check(spark)
    return spark


def check_java() -> None:
    """Say so in one sentence where there is no Java to start Spark with."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java")
    if java is None or (home and not os.access(java, os.X_OK)):
        missing = f"JAVA_HOME is {home}, and no Java is there" if home else "there is no Java here"
        raise InvalidOption(
            f"Spark needs Java 17 or newer, and {missing}: install it (Debian, Ubuntu: apt-get install "
            "openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME to one"
        )


def check(
    spark: SparkSession,
    who: str = "this Spark session",
    remedy: str = "set them before Spark starts, or start it with me.session()",
) -> None:
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
        raise InvalidOption(f"{who} cannot run Meander safely: {'; '.join(wrong)}; {remedy}")
    version = spark.version
    if not version.startswith("4.3"):
        raise InvalidOption(f"Meander was made for Spark 4.3 and this is {version}; install pyspark 4.3")
