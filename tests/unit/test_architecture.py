"""The house rules that a reader could not see broken from one file."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import meander
from meander.kernel import Kernel

ROOT = Path(meander.__file__).parents[2]

PUBLIC = {
    "Assignment", "Attached", "BinId", "CheckpointError", "Decision", "Event", "Infeasible", "InvalidOption",
    "InvalidPlan", "InvalidProblem", "KeyState", "KeyedStream", "KeyedTable", "Loads", "MeanderError", "Migration",
    "MigrationFailed", "Move", "MoveOptions", "Multimap", "Observation", "Operator", "OperatorId", "Plan", "Problem",
    "Progress", "Proposal", "Query", "QueryFailed", "Report", "Stream", "Timers", "TooLarge", "Transitions",
    "VersionProgress", "WorkerId", "attach", "check", "checkpoint", "plan", "planners", "pmc", "schedule",
    "schedules", "session", "sinks", "stream", "testing",
}  # fmt: skip

JVM_MODULES = {"engine/spark/gateway.py", "native/internals.py"}
"""The modules that reach into the JVM beyond PySpark's public API."""


def fresh(code: str) -> str:
    """What a new Python process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_public_names_are_exactly_these():
    assert set(meander.__all__) == PUBLIC
    assert all(getattr(meander, name).__doc__ for name in PUBLIC - {"BinId", "OperatorId", "WorkerId"})
    given = {name for name, value in vars(meander).items() if not isinstance(value, ModuleType)}
    assert {name for name in given if not name.startswith("_")} <= PUBLIC, "nothing else may leak"
    assert set(dir(meander)) == PUBLIC


def test_importing_meander_stays_light():
    heavy = ["pyspark", "pyarrow", "numba", "scipy", "pandas", "rich", "typer"]
    assert fresh(f"import sys, meander; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_driver_worker_and_harness_run_where_there_is_no_spark():
    modules = [
        "meander.engine.worker.task", "meander.engine.driver.driver", "meander.testing", "meander.testing.simulation",
    ]  # fmt: skip
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        "    print(module, [m for m in ('pyspark', 'py4j') if m in sys.modules])"
    )
    assert fresh(code).splitlines() == [f"{module} []" for module in modules]


def test_planning_and_scheduling_never_import_spark():
    code = (
        "import sys, meander as me\n"
        "p = me.Problem([3, 1, 1, 1], [1, 2, 3, 4], [0, 0, 1, 1], 3, 1.0)\n"
        "for name in me.planners(): me.schedule(p.owner, me.plan(p, name).owner, 'fluid')\n"
        "print('pyspark' in sys.modules)"
    )
    assert fresh(code) == "False"


def test_kernels_call_only_kernels_of_their_own_module():
    """Numba's cache on disk notices a change in a kernel's own file, not in a file that it calls into."""
    for path in (ROOT / "src").rglob("*.py"):
        if path.name == "__main__.py":
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
        for each in vars(module).values():
            if isinstance(each, Kernel) and each.__module__ == module.__name__:
                called = [module.__dict__.get(name) for name in each.function.__code__.co_names]
                assert {k.__module__ for k in called if isinstance(k, Kernel)} <= {module.__name__}, each.__name__


def test_no_module_is_too_long_and_none_uses_pickle():
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 500, f"{path} has become more than one room"
        assert "import pickle" not in text, path
        assert text.startswith('"""'), f"{path} does not say what it is for"


def test_the_jvm_is_reached_into_from_two_modules_only():
    reach = re.compile(r"\._j(?:vm|sc|sq|df|c|sparkSession)\b|gateway\.(?:jvm|jsc)\b")
    found = {
        str(path.relative_to(ROOT / "src/meander"))
        for path in (ROOT / "src").rglob("*.py")
        if reach.search(path.read_text())
    }
    assert found == JVM_MODULES


# --- packages ------------------------------------------------------------------------------------

PACKAGES = [name for _, name, is_package in pkgutil.walk_packages(meander.__path__, "meander.") if is_package]
INNER = ["engine"]
"""Packages that the list of all does not name by themselves: what only holds others."""


def test_the_list_of_packages_is_complete():
    text = meander.__doc__
    listed = text[text.index("The packages, inner ones first") :]
    short = {name.removeprefix("meander.") for name in PACKAGES} - set(INNER)
    modules = {path.stem for path in (ROOT / "src/meander").glob("*.py")} - {"__init__", "__main__"}
    missing = {name for name in short | modules if not re.search(rf"\b{re.escape(name)}\b", listed)}
    assert not missing


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_says_what_it_is_for_and_what_may_not_enter(name):
    text = importlib.import_module(name).__doc__ or ""
    assert text.splitlines()[0].endswith("."), "a sentence first"
    bounds = r"may (not )?enter|enters|[Nn]ever import|[Nn]o Spark|depends on no|Nothing (here|in .*) knows|Only"
    assert re.search(bounds, text), f"{name} does not say what may not enter"


# --- private things ------------------------------------------------------------------------------

OF_THE_LANGUAGE = {"_repr_html_", "_replace", "_asdict", "_fields", "_make", "_exit", "_getframe"}
"""Names with an underscore that are public: of named tuples, of os and of sys."""

OF_SPARK = {"_jvm", "_jsc", "_jdf", "_jc", "_jsq", "_jsparkSession", "_gateway", "_active_spark_context"}
"""Fields of PySpark that lead into the JVM."""

EXCEPTIONS = {
    "src/meander/kernel.py": {"_numba_type_"},  # Numba asks for it by this name
    "src/meander/kernel_cache.py": {"_cache"},  # Numba has no other place for it
    # Programs on plain Spark that Meander is compared with, and what a cluster is looked at with.
    "lab/src/meander_lab/benchmarks/engine_peers.py": OF_SPARK,
    "lab/src/meander_lab/benchmarks/migrate.py": {"_ActionType"},
    "lab/src/meander_lab/benchmarks/migrate_native.py": {"_streamingCheckpointManager"},
    "lab/src/meander_lab/benchmarks/native_case.py": OF_SPARK,
    "lab/src/meander_lab/benchmarks/native_phases.py": {"_streamingCheckpointManager"},
    "lab/src/meander_lab/benchmarks/nexmark_peers.py": OF_SPARK,
    "tests/contract/runtimes.py": OF_SPARK,
    "tests/spark/test_operators.py": OF_SPARK,
    "tests/spark/test_pmc.py": {"_everywhere"},  # killed in the middle of it
    "tests/spark/test_pmc_exact.py": {"_computing"},
} | {f"src/meander/{module}": OF_SPARK for module in JVM_MODULES}


def foreign_private(path):
    """The private names that a file uses of something that is neither `self` nor `cls` nor `super()`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super")):
                yield node.attr, node.lineno


def test_nothing_private_is_touched_from_outside():
    found, used = [], {path: set() for path in EXCEPTIONS}
    for folder in ("src", "lab/src", "tests", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            short = str(path.relative_to(ROOT))
            for name, line in foreign_private(path):
                if name in EXCEPTIONS.get(short, ()):
                    used[short].add(name)
                elif name not in OF_THE_LANGUAGE:
                    found.append(f"{short}:{line}: {name}")
    assert not found, "\n".join(found)
    assert all(used.values()), f"no exception any more: {[path for path, names in used.items() if not names]}"
