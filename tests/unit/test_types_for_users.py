"""What a user's type checker sees: a program that uses the public names passes mypy --strict, and a slip does not."""

import subprocess
import sys

import pytest

PROGRAM = """
import meander as me


def heaviest(loads: me.Loads) -> me.BinId:
    return me.BinId(max(range(len(loads.rows)), key=loads.rows.__getitem__))


def grow(query: me.Query, options: me.MoveOptions) -> me.Report:
    proposal: me.Proposal = query.plan_rescale(len(query.workers) + 1, options)
    migration: me.Migration = query.rescale(len(proposal.workers), options, at="02:00")
    progress: me.Progress = migration.progress
    print(progress.bins, proposal.bytes, [worker + 1 for worker in query.workers])
    return migration.report


def separate(query: me.Query, worker: me.WorkerId) -> me.Migration:
    return query.move({heaviest(query.loads["0:count"]): worker})


def listen(query: me.Query) -> None:
    def listener(event: me.Event) -> None:
        print(event.name, event.version, event.facts.get("workers"), event.to_dict())

    query.on_event(listener)
    last: me.VersionProgress | None = query.last_progress
    if last is not None:
        print(last.rows, last.took_ms, [part.state_rows for part in last.workers])
    balancer = query.keep_balanced(alpha=0.5)
    decision: me.Decision | None = balancer.decision
    print(decision and decision.reason)


def look(attached: me.Attached) -> me.Observation:
    attached.plan_spread().steps
    return attached.observe()


words: me.Stream = me.stream(me.testing.source("word string"))
keyed: me.KeyedStream = words.key_by("word")
counts: me.Stream = keyed.count()
"""


def mypy(folder, text):
    """What mypy says of a program in a folder of its own."""
    (folder / "program.py").write_text(text)
    asked = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(folder / "cache"),
             "--config-file", "", "program.py"]  # fmt: skip
    done = subprocess.run(asked, cwd=folder, capture_output=True, text=True)
    return done.stdout


@pytest.mark.slow
def test_a_users_program_is_checked_strictly(tmp_path):
    assert mypy(tmp_path, PROGRAM) == ""
    slips = {"progress.bins": "progress.bin", "event.name": "event.nam", "query.workers]": "query.wokers]",
             "query.last_progress": "query.lastProgress", "me.stream(": "me.straem("}  # fmt: skip
    text = PROGRAM
    for right, wrong in slips.items():
        assert right in text
        text = text.replace(right, wrong, 1)
    lines = mypy(tmp_path, text).splitlines()
    for wrong in slips.values():
        name = wrong.rpartition(".")[2].strip("]()")
        assert any("has no attribute" in line and f'"{name}"' in line for line in lines), (name, lines)
