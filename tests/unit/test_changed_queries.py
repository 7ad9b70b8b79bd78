"""Which changes of a query are harmless, which add to its state and which are refused: for every option, a case."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import meander as me
import meander.operators
from meander.errors import ChangedQuery, InvalidOption
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.custom import Custom
from meander.operators.dedup import Dedup
from meander.operators.flat_map import FlatMap
from meander.operators.fold import Fold
from meander.operators.join import Join
from meander.operators.map_state import MapWithState
from meander.operators.operator import BinnedOperator
from meander.operators.sessions import Sessions
from meander.operators.top_k import TopK
from meander.operators.window import Window
from meander.store.design import Design
from meander.store.evolution import Evolution, judge
from meander.store.identity import Identity

ROWS = pa.schema(
    [
        ("user", pa.string()),
        ("price", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("then", pa.timestamp("us", tz="UTC")),
    ]
)


def identities(*operators):
    return Identity.of(4, [each.fingerprint for each in operators]).operators


def judged(then, now, evolve=None, renames=None, defaults=None):
    """What becomes of a checkpoint of one operator or several."""
    then, now = ([*each] if isinstance(each, list) else [each] for each in (then, now))
    evolution = Evolution.of(evolve, renames, defaults)
    return judge(Design.first(identities(*then)), identities(*now), evolution, [each.rules for each in now], before=7)


def function(*arguments):
    return None


def other_function(*arguments):
    return None


def two(rows, state):
    return None


class Seen(me.Operator):
    input = "user string, at timestamp, then timestamp"
    output = "user string"
    state: ClassVar = {"last": me.KeyedTable(key="user string", value="at timestamp")}
    time = "at"

    def on_batch(self, rows, state, now):
        return None


class Silent(Seen):
    def on_time(self, due, state, now):
        return None


TIMED = {**Seen.state, "new": me.Timers(key="user string")}


def seen(**changed):
    return Custom(type("Seen", (Seen,), changed), ROWS, ["user"])


OF = {
    Count: lambda **options: Count(ROWS, ["user"], **options),
    Aggregate: lambda **options: Aggregate(ROWS, ["user"], **{"named": {"n": "count"}, **options}),
    Window: lambda **options: Window(ROWS, ["user"], **{"time": "at", "size": "10s", **options}),
    Sessions: lambda **options: Sessions(ROWS, ["user"], **{"time": "at", "gap": "10s", **options}),
    Dedup: lambda **options: Dedup(ROWS, ["user"], **options),
    TopK: lambda **options: TopK(ROWS, ["user"], **{"k": 3, "by": "price", **options}),
    Join: lambda **options: Join((ROWS, ROWS), (["user"], ["user"]), **{"time": "at", "within": "9s", **options})
    if "window" not in options
    else Join((ROWS, ROWS), (["user"], ["user"]), **{"time": "at", **options}),
    MapWithState: lambda **options: MapWithState(
        ROWS, ["user"], **{"function": function, "state": "n long", "output": "n long", "time": "at", **options}
    ),
    Fold: lambda **options: Fold(
        ROWS, ["user"], **{"function": two, "state": "n long", "output": "n long", **options}
    ),
    FlatMap: lambda **options: FlatMap(ROWS, ["user"], **{"function": function, "output": "n long", **options}),
    Custom: seen,
}  # fmt: skip
"""How an operator is built of options."""

FREE, EVOLVES, REFUSED, CODE = "free", "evolves", "refused", "code"
"""Allowed and said; asks for `evolve`; refused; the user's own code, which nobody can compare."""

LAST = {"a": ("last", "price")}
LIST = ("collect_list", "price", {"limit": 3})

CASES = [
    (Count, "name", {}, {"name": "visits"}, REFUSED),
    (Aggregate, "named", {}, {"named": {"n": "count", "top": ("max", "price")}}, EVOLVES),
    (Aggregate, "named", {}, {"named": {"n": ("count", "price")}}, REFUSED),
    (Aggregate, "named", {}, {"named": {"top": ("max", "price")}}, REFUSED),
    (Aggregate, "named", {"named": {"m": LIST}}, {"named": {"m": (*LIST[:2], {"limit": 9})}}, REFUSED),
    (
        Aggregate, "named", {"named": {"d": ("count_distinct", "price")}},
        {"named": {"d": ("count_distinct", "price", {"limit": 9})}}, FREE,
    ),
    (
        Aggregate, "named", {"named": {"a": ("last", "price")}, "by": "at"},
        {"named": {"a": ("last", "price"), "b": ("last", "then")}, "by": "at"}, REFUSED,
    ),
    (Aggregate, "by", {"named": LAST, "by": "at"}, {"named": LAST, "by": "then"}, REFUSED),
    (Aggregate, "by", {}, {"named": {"n": "count", "a": ("last", "price")}, "by": "at"}, EVOLVES),
    (Aggregate, "by", {"named": {"l": LIST}}, {"named": {"l": LIST, **LAST}, "by": "at"}, REFUSED),
    (Window, "time", {}, {"time": "then"}, REFUSED),
    (Window, "size", {}, {"size": "20s"}, REFUSED),
    (Window, "slide", {}, {"slide": "5s"}, REFUSED),
    (Window, "lateness", {}, {"lateness": "5s"}, FREE),
    (Window, "lateness", {"lateness": "5s"}, {}, FREE),
    (Window, "emit", {}, {"emit": "final"}, FREE),
    (Window, "emit", {"emit": "final"}, {}, REFUSED),
    (Window, "named", {}, {"named": {"count": "count", "top": ("max", "price")}}, EVOLVES),
    (Window, "by", {}, {"named": {"count": "count", "a": ("last", "price")}, "by": "at"}, EVOLVES),
    (Sessions, "time", {}, {"time": "then"}, REFUSED),
    (Sessions, "gap", {}, {"gap": "20s"}, REFUSED),
    (Sessions, "lateness", {}, {"lateness": "5s"}, FREE),
    (Sessions, "emit", {"emit": "update"}, {}, FREE),
    (Sessions, "emit", {}, {"emit": "update"}, REFUSED),
    (Sessions, "named", {}, {"named": {"count": "count", "top": ("max", "price")}}, EVOLVES),
    (Sessions, "by", {}, {"named": {"count": "count", "a": ("first", "price")}, "by": "at"}, EVOLVES),
    (Dedup, "time", {}, {"time": "at"}, REFUSED),
    (Dedup, "within", {"time": "at", "within": "9s"}, {"time": "at", "within": "5s"}, FREE),
    (Dedup, "within", {"time": "at", "within": "9s"}, {"time": "at", "within": "10s"}, REFUSED),
    (Dedup, "within", {"time": "at"}, {"time": "at", "within": "10s"}, REFUSED),
    (TopK, "k", {}, {"k": 4}, REFUSED),
    (TopK, "k", {}, {"k": 2}, REFUSED),
    (TopK, "by", {}, {"by": "at"}, REFUSED),
    (TopK, "largest", {}, {"largest": False}, REFUSED),
    (TopK, "identity", {}, {"identity": ["then"]}, REFUSED),
    (TopK, "time", {"identity": ["then"]}, {"identity": ["then"], "time": "at"}, REFUSED),
    (TopK, "rank", {}, {"rank": "place"}, FREE),
    (Join, "within", {}, {"within": "8s"}, REFUSED),
    (Join, "window", {}, {"window": "8s"}, REFUSED),
    (Join, "how", {}, {"how": "left"}, REFUSED),
    (Join, "how", {"how": "left"}, {}, REFUSED),
    (Join, "where", {}, {"where": pc.field("price") > 3}, CODE),
    (Join, "time", {}, {"time": ("at", "then")}, REFUSED),
    (Join, "lateness", {}, {"lateness": "5s"}, FREE),
    (MapWithState, "function", {}, {"function": other_function}, CODE),
    (MapWithState, "rows", {}, {"rows": "pandas"}, CODE),
    (MapWithState, "state", {}, {"state": "n long, m long"}, EVOLVES),
    (MapWithState, "state", {}, {"state": "n string"}, REFUSED),
    (MapWithState, "state", {"state": "n long, m long"}, {}, REFUSED),
    (MapWithState, "state", {"state": "n long, m long"}, {"state": "m long, n long"}, FREE),
    (MapWithState, "output", {}, {"output": "n long, m long"}, FREE),
    (MapWithState, "time", {}, {"time": "then"}, REFUSED),
    (MapWithState, "time", {}, {"time": None}, REFUSED),
    (MapWithState, "timeout", {"timeout": "9s"}, {"timeout": "5s"}, FREE),
    (MapWithState, "timeout", {}, {"timeout": "5s"}, REFUSED),
    (MapWithState, "timeout", {"timeout": "5s"}, {}, REFUSED),
    (MapWithState, "lateness", {}, {"lateness": "5s"}, FREE),
    (Fold, "function", {}, {"function": lambda rows, state: None}, CODE),
    (Fold, "rows", {}, {"rows": "pandas"}, CODE),
    (Fold, "state", {}, {"state": "n long, m string"}, EVOLVES),
    (Fold, "state", {}, {"state": "n double"}, REFUSED),
    (Fold, "output", {}, {"output": "n long, m long"}, FREE),
    (Fold, "time", {}, {"time": "at"}, FREE),
    (FlatMap, "function", {}, {"function": other_function}, CODE),
    (FlatMap, "output", {}, {"output": "n string"}, FREE),
    (Custom, "input", {}, {"input": "user string, at timestamp"}, CODE),
    (Custom, "output", {}, {"output": "user string, n int"}, FREE),
    (Custom, "state", {}, {"state": TIMED, "on_time": Silent.on_time}, EVOLVES),
    (Custom, "state", {}, {"state": {"last": me.KeyedTable("user string", "at timestamp, n int")}}, EVOLVES),
    (Custom, "state", {}, {"state": {"other": Seen.state["last"]}}, REFUSED),
    (Custom, "state", {}, {"state": {"last": me.KeyedTable("user string, price long", "at timestamp")}}, REFUSED),
    (Custom, "state", {}, {"state": {}}, REFUSED),
    (Custom, "time", {}, {"time": "then"}, REFUSED),
    (Custom, "lateness", {}, {"lateness": "5s"}, FREE),
    (Custom, "ordered", {}, {"ordered": False}, CODE),
    (Custom, "rows", {}, {"rows": "pandas"}, CODE),
]  # fmt: skip


def options_of(operator):
    if operator is Custom:
        return {*me.Operator.__annotations__}
    return {*inspect.signature(operator.__init__).parameters} - {"self", "input", "key"}


def test_every_option_of_every_operator_has_a_case():
    for module in pkgutil.iter_modules(meander.operators.__path__, "meander.operators."):
        importlib.import_module(module.name)
    known, waiting = set(), [BinnedOperator]
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        known |= {each} if each.__module__.startswith("meander.operators.") and "name" in vars(each) else set()
    assert known | {Custom} == {*OF}
    for operator in OF:
        assert options_of(operator) == {name for of, name, *_ in CASES if of is operator}, operator.__name__


@pytest.mark.parametrize(
    ("operator", "option", "then", "now", "verdict"), CASES,
    ids=[f"{of.__name__}-{name}-{how}" for of, name, _, _, how in CASES],
)  # fmt: skip
def test_a_change_of_an_option(operator, option, then, now, verdict):
    before, after = OF[operator](**then), OF[operator](**now)
    if verdict == CODE:
        answer = judged(before, after)
        assert not answer.is_new
        assert not answer.notes
    elif verdict == FREE:
        answer = judged(before, after)
        assert answer.is_new, "or going back would be judged by what was before"
        [note] = answer.notes
        assert note.startswith(f"operator 0 ({before.name}) ")
        assert "\n" not in note
    else:
        with pytest.raises(
            ChangedQuery, match=rf"^operator 0 \({before.name}\) (had|has|was) .*; .*start with"
        ) as caught:
            judged(before, after)
        assert ('evolve="add" it begins empty' in str(caught.value)) == (verdict == EVOLVES)
        assert "\n" not in str(caught.value)
        if verdict == EVOLVES:
            assert judged(before, after, "add").notes
        else:
            with pytest.raises(ChangedQuery):
                judged(before, after, "add")


def test_a_way_back_is_judged_by_what_the_query_is_now():
    """A window that has become final, with rows in it that never came out, may not become one of updates."""
    update, final = OF[Window](), OF[Window](emit="final")
    there = judged(update, final)
    with pytest.raises(ChangedQuery, match='had emit="final" and now has emit="update": windows that have had all'):
        judge(there.design, identities(update), Evolution(), [update.rules])


def test_operators_are_added_at_the_end_alone():
    count, top = OF[Count](), OF[TopK]()
    with pytest.raises(ChangedQuery, match=r'count, the query has count -> top_k; with evolve="add" the further ones'):
        judged(count, [count, top])
    answer = judged(count, [count, top], "add")
    assert answer.notes == ("operator 1 (top_k) is new and begins empty",)
    assert answer.design.numbers == [0, 0]
    for now in ([top, count], [count]):
        with pytest.raises(ChangedQuery, match=r"; start with a new|was count and is now top_k"):
            judged([count, top], now, "add")


# --- renames --------------------------------------------------------------------------------------


def sources(answer, operator=0):
    """Where the columns of each table come from, in the newest layout."""
    return {
        name: (each.table, dict(each.columns)) for name, each in answer.design.layouts[operator][-1].sources.items()
    }


def test_an_aggregate_is_renamed_with_all_its_state():
    then = OF[Aggregate](named={"paid": ("mean", "price"), "paid.sum2": ("sum", "price")})
    now = OF[Aggregate](named={"paid.sum2": ("sum", "price"), "spent": ("avg", "price"), "n": "count"})
    with pytest.raises(
        ChangedQuery,
        match='had the aggregate \'paid\' and has it no more; say evolve="add" and renames={"paid": "spent"}',
    ):
        judged(then, now, "add")
    answer = judged(then, now, "add", {"paid": "spent"})
    columns = {"paid.sum2": "paid.sum2", **{f"spent.{part}": f"paid.{part}" for part in ("sum", "sum.rest", "count")}}
    assert sources(answer) == {"aggregate": ("aggregate", columns)}
    assert any("'spent' was called 'paid'" in note for note in answer.notes)
    again = judge(answer.design, identities(now), Evolution.of("add", {"paid": "spent"}), [now.rules])
    assert not again.is_new, "the program may stay as it is"


def test_columns_tables_keys_and_operators_are_renamed():
    then = seen(state={**Seen.state, "more": me.KeyedTable("user string", "at timestamp, n int")})
    now = Custom(
        type("Met", (Seen,), {
            "input": "who string, at timestamp",
            "state": {"latest": me.KeyedTable("who string", "at timestamp"),
                      "more": me.KeyedTable("who string", "n int, moment timestamp")},
        }),
        ROWS.set(0, pa.field("who", pa.string())), ["who"],
    )  # fmt: skip
    renames = {"user": "who", "last": "latest", "more.at": "moment", "seen": "met"}
    assert sources(judged(then, now, "add", renames)) == {
        "latest": ("last", {"at": "at"}), "more": ("more", {"n": "n", "moment": "at"})
    }  # fmt: skip
    for missing in renames:
        with pytest.raises(ChangedQuery):
            judged(then, now, "add", {old: new for old, new in renames.items() if old != missing})


def test_columns_of_the_input_and_of_the_operator_before_are_renamed():
    rows = ROWS.set(1, pa.field("cost", pa.int64())).set(2, pa.field("ts", ROWS.field("at").type))
    then = OF[Window](named={"n": ("sum", "price")})
    now = Window(rows, ["user"], time="ts", size="10s", named={"n": ("sum", "cost")})
    with pytest.raises(ChangedQuery, match=r"had the aggregate n=\[\"sum\", \"price\"\] and now has n="):
        judged(then, now, "add", {"at": "ts"})
    with pytest.raises(ChangedQuery, match='had time="at" and now has time="ts"'):
        judged(then, now, "add", {"price": "cost"})
    assert judged(then, now, "add", {"price": "cost", "at": "ts"}).is_new
    then, now = OF[TopK](), TopK(rows, ["user"], 3, "cost")
    answer = judged(then, now, "add", {"price": "cost", "at": "ts"})
    assert sources(answer)["top"] == ("top", {"cost": "price", "ts": "at", "then": "then"})


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"evolve": "ad"}, "evolve is 'ad'; it is \"add\", a function"),
        ({"evolve": {}}, "evolve is {}"),
        ({"evolve": {"fold": "add"}}, "evolve is "),
        ({"renames": {"n": "m"}}, 'give evolve="add" too'),
        ({"evolve": "add", "renames": ["n"]}, r"renames is \['n'\]; give a dictionary"),
        ({"evolve": "add", "renames": {"n": "m", "m": "n"}}, "a name is both old and new"),
        ({"evolve": "add", "renames": {"x": "y"}}, "the checkpoint has no 'x', or the query no 'y'"),
        ({"evolve": "add", "defaults": {"x": 1}}, "defaults names 'x', which is not in the state; there are: m, n"),
        ({"evolve": {"x": function}}, "evolve names 'x', which is not in the state; there are: fold"),
        ({"evolve": "add", "defaults": {"m": "many"}}, "the default of 'm' is 'many', which is no int64"),
    ],
)
def test_what_is_said_of_changes_is_checked(said, sentence):
    with pytest.raises(InvalidOption, match=sentence) as caught:
        judged(OF[Fold](), OF[Fold](state="n long, m long"), **{"evolve": None, **said})
    assert "\n" not in str(caught.value)


def test_one_function_is_for_one_table():
    def state(kind):
        return {name: me.KeyedTable("user string", f"n {kind}") for name in ("a", "b")}

    then, now = seen(state=state("int")), seen(state=state("string"))
    with pytest.raises(
        InvalidOption, match=r"the tables a, b have changed; give functions .* evolve={\"a\": function}"
    ):
        judged(then, now, function)
    answer = judged(then, now, {"a": function, "b": function})
    assert answer.design.layouts[0][-1].functions == ["a", "b"]
    with pytest.raises(ChangedQuery, match=r"in the table 'b' and now has .*; a function given as evolve= can convert"):
        judged(then, now, {"a": function})


def test_a_checkpoint_of_the_format_before_takes_options_as_they_are_now():
    """It did not note lateness, emit and what is emitted."""
    now = OF[Window](lateness="5s", emit="final")
    then = {**now.fingerprint, "options": {k: v for k, v in now.options.items() if k not in ("lateness_us", "emit")}}
    del then["output"]
    old = Identity("id", 4, (then,), 2).completed(Identity.of(4, [now.fingerprint]))
    assert old.operators == identities(now)
