"""Another number of bins: the same state, old or new wherever it is killed, and a replay gives the recounted output."""

import datetime as dt
import json
import shutil
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import meander as me
from count_case import Case
from kills import Killed, changes
from meander.cli import main
from meander.errors import ChangedQuery
from meander.route.keys import KeyType
from meander.route.schema import schema
from meander.store.identity import Identity
from meander.store.location import Location
from meander.store.reader import Reader

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Visits(me.Operator):
    """Keeps all rows of a user, a count, and timers."""

    input = "user string, at timestamp, v long"
    output = "user string, n long"
    state = {  # noqa: RUF012
        "all": me.Multimap(key="user string", value="at timestamp, v long", time="at"),
        "count": me.KeyedTable(key="user string", value="n long"),
        "wake": me.Timers(key="user string", payload="v long"),
    }
    time = "at"

    def on_batch(self, rows, state, now):
        counts = pa.table({"user": rows["user"]}).group_by("user").aggregate([([], "count_all")])
        users = counts["user"].combine_chunks()
        before = state["count"].get(users)["n"].fill_null(0)
        state["count"].put(users, pc.add(before, counts["count_all"].combine_chunks()))
        state["all"].append(rows["user"], rows.select(["at", "v"]))
        state["wake"].set(rows["at"].cast(pa.int64()), rows["user"], rows)

    def on_time(self, due, state, now):
        users = due["wake"]["user"]
        return pa.table({"user": users, "n": state["all"].counts(users)})


def source(columns="user string, at timestamp, v long"):
    return me.stream(me.testing.source(columns)).key_by("user")


def joined():
    right = me.stream(me.testing.source("user string, at timestamp, w long"))
    return me.stream(me.testing.source("user string, at timestamp, v long")).join(
        right, on="user", within="30 seconds", how="left"
    )


STREAMS = {
    "count": lambda: source().count(),
    "window": lambda: source().window("at", "10 seconds").aggregate(n="count", top=("max", "v")),
    "session": lambda: source().window("at", gap="10 seconds").count(),
    "operator": lambda: source().process(Visits),
    "map_with_state": lambda: source().map_with_state(
        lambda user, rows, state: state.update(n=(state.n or 0) + len(rows)) or [(user, state.n)],
        "n long", "user string, n long", timeout="20 seconds",
    ),
    "chain": lambda: source().count().key_by("count").count("users"),
    "join": joined,
}  # fmt: skip


def rows_of(number, user_count=40):
    return [
        {"user": f"u{(7 * number + at) % user_count}", "at": START + dt.timedelta(seconds=5 * number), "v": at}
        for at in range(23)
    ]


def put(h, name, number):
    rows = rows_of(number)
    if name != "join":
        h.batch(rows)
    elif number % 2:
        h.batch(right=[{"user": row["user"], "at": row["at"], "w": row["v"]} for row in rows])
    else:
        h.batch(left=rows)


def outcome(h):
    h.end()
    return [
        Counter(map(repr, h.state(at, spec.name)))
        for at, operator in enumerate(h.driver.operators)
        for spec in operator.tables
    ]


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("bins", [2, 128])
def test_the_query_goes_on_as_if_it_had_always_had_so_many_bins(tmp_path, name, bins):
    with me.testing.harness(STREAMS[name](), bins=8) as h:
        for number in range(8):
            put(h, name, number)
        expected, output = outcome(h), Counter(map(repr, h.output()))
    emitted = Counter()
    with me.testing.harness(STREAMS[name](), bins=8, checkpoint=tmp_path / "ck") as h:
        for number in range(5):
            put(h, name, number)
        emitted.update(map(repr, h.output()))
    done = me.checkpoint(tmp_path / "ck").rebin(bins, take_over=True)
    assert (done.before, done.bins) == (8, bins)
    with me.testing.harness(STREAMS[name](), bins=bins, checkpoint=tmp_path / "ck") as h:
        for owners in h.query.assignment.values():
            assert Counter(owners) == {0: bins // 2, 1: bins // 2}
        for number in range(5, 8):
            put(h, name, number)
            if number == 5:
                h.rescale(1 + bins // 64)
            h.restart()
        assert outcome(h) == expected
        emitted.update(map(repr, h.output()))
    assert emitted == output
    checkpoint = me.checkpoint(tmp_path / "ck")
    assert not checkpoint.verify().damaged
    if name == "count":
        frame = checkpoint.to_arrow("count")
        keys = KeyType.of(schema("user string")).encode([frame["user"]])
        assert frame["bin"].to_pylist() == keys.bins(bins).tolist()
        assert checkpoint.to_arrow("count", where="user = 'u3'").num_rows == 1


def test_state_that_is_larger_than_a_piece_is_written_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("meander.store.rebin.GROUP_BYTES", 1000)
    heard = []
    with me.testing.harness(STREAMS["count"](), bins=8, checkpoint=tmp_path) as h:
        put(h, "count", 0)
    planned = me.checkpoint(tmp_path).rebin(32, dry_run=True)
    assert planned.groups > 1
    done = me.checkpoint(tmp_path).rebin(32, take_over=True, progress=lambda count, of: heard.append((count, of)))
    assert heard == [(count, planned.groups) for count in range(1, planned.groups + 1)]
    assert (done.number, done.groups) == (planned.number, planned.groups)
    assert me.checkpoint(tmp_path).to_arrow("count").num_rows == 23


def with_five_versions(folder):
    case = Case(folder).start().put(4)
    case.sink.dies_in = "prepare"  # the sink has heard of number 4
    with pytest.raises(Killed):
        case.put()
    return case


def rebinned(case, bins=64):
    return me.checkpoint(case.checkpoint).rebin(bins, take_over=True)


def test_a_kill_at_every_point_leaves_the_old_bins_or_the_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("meander.store.rebin.GROUP_BYTES", 400)
    monkeypatch.setattr("meander.store.rebin.INLINE_BYTES", 0)
    with_five_versions(tmp_path / "case")
    shutil.copytree(tmp_path / "case", tmp_path / "copy")
    outcomes = []
    for point in range(100):
        shutil.rmtree(tmp_path / "case")
        shutil.copytree(tmp_path / "copy", tmp_path / "case")
        case = Case(tmp_path / "case")
        with monkeypatch.context() as patch:
            changes(patch, until=point)
            try:
                rebinned(case)
            except Killed:
                pass
            else:
                break
        bins = Identity.load(Location.of(case.checkpoint)).bins
        outcomes.append(bins)
        assert case.state() == case.recount(4)
        assert {len(commit.owner) for commit in Reader.open(case.checkpoint).log.last.operators} == {bins}
        assert not me.checkpoint(case.checkpoint).verify().damaged
        case.settings["bins"] = bins
        case.start().put(3)
        assert b"rebin" not in (case.checkpoint / "meander.json").read_bytes()
        case.check(7)
    assert point > 10
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {8, 64}


def test_a_number_that_a_sink_has_heard_of_is_undone_and_never_used_again(tmp_path):
    case = with_five_versions(tmp_path)
    assert rebinned(case).number == 5
    versions = me.checkpoint(case.checkpoint).versions()
    assert [(version.number, version.kind, version.undoes) for version in versions[-2:]] == [
        (3, "batch", None), (5, "rebin", (4, 4)),
    ]  # fmt: skip
    assert [version.is_restorable for version in versions] == [False] * 4 + [True]
    with pytest.raises(
        me.CheckpointError, match="cannot go back to version 3: it has 8 bins and the checkpoint has 64"
    ):
        case.rollback(3)
    with pytest.raises(ChangedQuery, match="has 64 bins, not 8; give bins=64, or none, or change them with"):
        case.start()
    case.settings["bins"] = 64
    case.start().put(3)
    assert sorted(case.sink.calls) == [0, 1, 2, 3, 4, 6, 7, 8]
    case.check(7)
    case.rollback(6)
    case.start().put(2)
    case.check(7)


def test_a_rollback_that_no_sink_has_heard_of_yet_is_not_forgotten(tmp_path):
    case = Case(tmp_path).start().put(5)
    case.rollback(2)
    assert rebinned(case).number == 6
    heard = []
    case.sink.undo = lambda first, last, tokens: heard.append((first, last))
    case.settings["bins"] = 64
    case.start()
    assert heard == [(3, 5)]
    case.put(4)
    case.check(7)


def test_a_query_that_has_changed_keeps_its_design(tmp_path):
    """Some state is in the old layout when it is rewritten, and is in the newest one then."""
    bare = source().aggregate(n="count")
    more = source().aggregate(n="count", total=("sum", "v"))
    with me.testing.harness(bare, bins=8, checkpoint=tmp_path) as h:
        put(h, "", 0)
        h.restart(more, evolve="add")
        h.batch(rows_of(0)[:3])
        before = Counter(map(repr, h.state()))
    me.checkpoint(tmp_path).rebin(32, take_over=True)
    with me.testing.harness(more, bins=32, checkpoint=tmp_path) as h:
        assert Counter(map(repr, h.state())) == before
        (row,) = h.batch(rows_of(0)[:1])
        assert (row["n"], row["total"]) == (3, 0)
        h.batch(rows_of(0)[4:5])
        assert {row["user"]: row["total"] for row in h.output()}["u4"] == 4
    assert not me.checkpoint(tmp_path).verify().damaged


def test_refusals(tmp_path):
    def refused(sentence, stream, bins, batches=1, error=me.InvalidOption, **options):
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        with me.testing.harness(stream, bins=8, checkpoint=folder, **options) as h:
            for number in range(batches):
                put(h, "", number)
        with pytest.raises(error, match=sentence):
            me.checkpoint(folder).rebin(bins, take_over=True)

    counts = STREAMS["count"]()
    refused("bins is 100; it must be a power of two", counts, 100)
    refused("the checkpoint has 8 bins already", counts, 8)
    refused("4 workers cannot share 2 bins", counts, 2, workers=4)
    refused("nothing is committed in", counts, 16, batches=0)
    unkeyed = me.stream(me.testing.source("user string, at timestamp, v long")).key_by().count()
    refused("the stream has no key", unkeyed, 16)
    with me.testing.harness(counts, bins=8, checkpoint=tmp_path / "runs") as h:
        put(h, "", 0)
        with pytest.raises(me.CheckpointError, match="a query of this process runs on"):
            me.checkpoint(tmp_path / "runs").rebin(16)


def test_the_command(tmp_path, capsys):
    with me.testing.harness(STREAMS["count"](), bins=8, checkpoint=tmp_path) as h:
        put(h, "count", 0)
    (tmp_path / "outlook" / "0").mkdir(parents=True)
    (tmp_path / "outlook" / "0" / "index.json").write_text("over 8 bins")
    assert main(["rebin", str(tmp_path), "--bins", "32", "--dry-run", "--format", "table"]) == 0
    assert capsys.readouterr().out.startswith("Would be done: version 1 has 32 bins instead of 8: ")
    assert Identity.load(Location.of(tmp_path)).bins == 8
    assert main(["rebin", str(tmp_path), "--bins", "32", "--take-over", "--format", "json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["before"], done["bins"], done["number"], done["dry_run"]) == (8, 32, 1, False)
    assert done["written_bytes"] > 0
    assert Identity.load(Location.of(tmp_path)).bins == 32
    assert not [*(tmp_path / "outlook" / "0").iterdir()]
    assert main(["rebin", str(tmp_path), "--bins", "32"]) == 2
