"""A start of Spark without the warnings that it gives on every machine: what is left out, and what is not."""

import os
import subprocess
import sys

from meander.cli.quiet import without_start_up_warnings

SAYS = """
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/18 20:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel).
26/11/18 20:00:01 ERROR SparkContext: no WARN is an error
java.lang.IllegalStateException: WARNING
"""
KEPT = "".join(line + "\n" for line in SAYS.splitlines()[-2:])
CODE = f"""
import subprocess, sys
from meander.cli.quiet import without_start_up_warnings
with without_start_up_warnings():
    late = subprocess.Popen(["sh", "-c", "read line; printf %s \\"$1\\" >&2", "sh", {SAYS!r}], stdin=subprocess.PIPE)
print("26/11/18 20:00:00 WARN of this process", file=sys.stderr, flush=True)
late.communicate(b"go on\\n")
import threading
[each.join() for each in threading.enumerate() if each.name == "spark-errors"]
"""


def test_warnings_of_what_starts_inside_are_left_out_as_long_as_it_runs_and_errors_are_not():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stderr == "26/11/18 20:00:00 WARN of this process\n" + KEPT


def test_it_gives_standard_error_back_also_after_a_failure(capfd):
    try:
        with without_start_up_warnings():
            raise ValueError
    except ValueError:
        os.write(2, b"WARNING: Using incubator modules, says this process\n")
    assert capfd.readouterr().err == "WARNING: Using incubator modules, says this process\n"
