"""The house rules that a reader could not see broken from one file."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import meander
from meander.kernel import Kernel

ROOT = Path(meander.__file__).parents[2]

PUBLIC = {
    "Assignment", "BinId", "CheckpointError", "Infeasible", "InvalidOption", "InvalidPlan", "InvalidProblem",
    "KeyedTable", "MeanderError", "MigrationFailed", "Move", "Multimap", "Operator", "Plan", "Problem", "Query",
    "QueryFailed", "Timers", "TooLarge", "Transitions", "WorkerId", "attach", "check", "plan", "planners", "pmc",
    "schedule", "schedules", "session", "sinks", "stream",
}  # fmt: skip


def fresh(code: str) -> str:
    """What a new Python process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_public_names_are_exactly_these():
    assert set(meander.__all__) == PUBLIC
    assert all(getattr(meander, name).__doc__ for name in PUBLIC - {"BinId", "WorkerId"})


def test_importing_meander_stays_light():
    heavy = ["pyspark", "pyarrow", "numba", "scipy", "pandas", "rich", "typer"]
    assert fresh(f"import sys, meander; print([m for m in {heavy} if m in sys.modules])") == "[]"


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
    assert found == {"spark/gateway.py", "native/internals.py"}
