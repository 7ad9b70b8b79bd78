"""The operators of the NEXMark queries over small random events, against plain Python that looks at all of them."""

import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.errors import InvalidOption
from meander.operators.custom import Custom, paired
from meander.route.schema import schema
from meander_lab.nexmark.queries import QUERIES, Options, named, q5, q6, q7, q8
from meander_lab.nexmark.queries.groups import firsts, largest, numbered
from meander_lab.nexmark.queries.joining import joining
from meander_lab.nexmark.queries.lines import lines, shared
from meander_lab.nexmark.queries.passing import passing
from meander_lab.nexmark.queries.winning import winning
from naive import Engine, RealState, listed

LATENESS = 4
LATENESS_S = LATENESS * 1e-6
SIZE = 10
END = 10_000_000

ids, times, prices = st.integers(0, 3), st.integers(0, 45), st.integers(1, 4)


def table(ddl, rows):
    kinds = schema(ddl)
    columns = list(zip(*rows, strict=True)) or [[]] * len(kinds)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, kinds, strict=True)], schema=kinds)


def plain(rows):
    """Rows with times as microseconds."""
    kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in rows.schema]
    return pa.table([column.cast(kind) for column, kind in zip(rows.columns, kinds, strict=True)], rows.column_names)


class Chain:
    """Operators one behind the other: what the first emits in a version, the next takes in the same."""

    def __init__(self, root, *operators, parts=1):
        self.operators = operators
        self.engines = [
            Engine(
                operator,
                RealState(operator, Path(root) / str(at)),
                parts,
                ["key"] if len(operator.keyed) == 2 else None,
            )
            for at, operator in enumerate(operators)
        ]
        self.emitted = []

    def batch(self, *sides):
        """One version of these rows: a list for each input of the first operator."""
        operator = self.operators[0]
        rows = table(operator.operator.input, sides[0]) if len(sides) == 1 else self._paired(operator, sides)
        for engine, after in zip(self.engines, [*self.operators[1:], None], strict=True):
            out = engine.batch(rows).rows
            if after is not None:
                rows = after.input.empty_table() if out is None else out.select(after.input.names)
        self.emitted.append(listed(None if out is None else plain(out)))

    @staticmethod
    def _paired(operator, sides):
        kinds = pa.schema([*paired(*operator.declared), ("key", pa.int64())])
        left, right = (len(each) for each in operator.declared)
        every = [(0, *row, *[None] * right, row[0]) for row in sides[0]]
        every += [(1, *[None] * left, *row, row[0]) for row in sides[1]]
        columns = list(zip(*every, strict=True)) or [[]] * len(kinds)
        return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, kinds, strict=True)], schema=kinds)

    def end(self):
        """Let event time be over, and return everything that was emitted, by version."""
        sides = len(self.operators[0].declared)
        self.engines[0].newest = END
        self.batch(*[[]] * sides)
        self.batch(*[[]] * sides)
        return self.emitted

    def left_over(self):
        """How many rows each table of the first operator still has."""
        every = self.engines[0].state.holding.extract(range(8))
        return {name: rows.num_rows for name, rows in every.items() if rows.num_rows}


def custom(operator, key):
    texts = operator.input
    if isinstance(texts, tuple):
        return Custom(operator, tuple(map(schema, texts)), ([key], [key]))
    return Custom(operator, schema(texts), [key])


def run(operators, kinds, cuts, parts=1):
    """All that the operators emit over events of each kind, which come in time, out of order within lateness.

    Events are (jitter, row, its time); `cuts` says behind which of them a batch ends.
    """
    every = [(time + jitter, kind, row) for kind, rows in enumerate(kinds) for jitter, row, time in rows]
    every.sort(key=lambda each: each[0])
    with tempfile.TemporaryDirectory() as root:
        chain = Chain(root, *operators, parts=parts)
        ends = sorted({min(cut, len(every)) for cut in cuts} | {len(every)})
        for low, high in zip([0, *ends], ends, strict=False):
            chain.batch(*([row for _, of, row in every[low:high] if of == kind] for kind in range(len(kinds))))
        emitted, left = chain.end(), chain.left_over()
        for engine in chain.engines:
            engine.state.holding.close()
    return emitted, left


def flat(emitted):
    return Counter(row for version in emitted for row in version)


def newest(emitted, key):
    """For each key the rows of the newest version that has it."""
    found = {}
    for version in emitted:
        now = defaultdict(list)
        for row in version:
            now[row[:key]].append(row)
        found.update(now)
    return {row for rows in found.values() for row in rows}


def events(rows, time_at):
    """Rows with the jitter with which they come."""
    return st.lists(st.tuples(st.integers(0, LATENESS), rows)).map(
        lambda found: [(jitter, row, row[time_at]) for jitter, row in found]
    )


cuts = st.lists(st.integers(0, 40), max_size=5)
bid_rows = st.tuples(ids, prices, times, st.integers(0, 2))
auction_rows = st.tuples(ids, times, st.integers(0, 15), st.integers(10, 11), st.integers(0, 1)).map(
    lambda row: (row[0], row[1], row[1] + row[2], row[3], row[4])
)


few, soon = st.integers(0, 1), st.integers(0, 12)
"""So few ids and times that bids meet their auction, at both its ends and before it comes."""

early_or_late = st.sampled_from([0, LATENESS])
dense_bids = st.lists(st.tuples(early_or_late, st.tuples(few, prices, soon, st.integers(0, 2))), min_size=3).map(
    lambda every: [(jitter, row, row[2]) for jitter, row in every]
)
dense_auctions = st.lists(
    st.tuples(early_or_late, st.tuples(few, soon, st.integers(0, 6), st.integers(10, 11), st.integers(0, 1))),
    min_size=1,
    max_size=2,
    unique_by=lambda each: each[1][0],
).map(lambda every: [(j, (row[0], row[1], row[1] + row[2], *row[3:]), row[1]) for j, row in every])


def sold(auctions, bids, group):
    """SQL's join of auctions and bids, and the best row of each group: price down, time up, bidder up."""
    pairs = [
        (*auction, *bid[1:])
        for _, auction, _ in auctions
        for _, bid, _ in bids
        if auction[0] == bid[0] and auction[1] <= bid[2] <= auction[2]
    ]
    best = {}
    for row in sorted(pairs, key=lambda row: (-row[5], row[6], row[7], row[1:5])):
        best.setdefault(tuple(row[at] for at in group), row)
    return sorted(best.values())


def winners(group):
    return custom(winning(", category bigint, seller bigint", ", bidder bigint", group, LATENESS_S), "id")


@examples(40)
@given(dense_auctions, dense_bids, st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(1, 2))
def test_winning_bids(auctions, bids, cuts, parts):
    emitted, left = run([winners([])], [auctions, bids], cuts, parts)
    assert sorted(flat(emitted).elements()) == sold(auctions, bids, [0])
    # What is left are bids that wait for an auction; the next rows would sweep them away.
    assert set(left) <= {"early", "early-heads"}


@examples(25)
@given(st.data(), st.lists(auction_rows, max_size=4), st.lists(bid_rows), cuts)
def test_auctions_of_one_id_that_are_open_together_are_one(data, auctions, bids, cuts):
    """The auctions are there before the bids, and all stay open until the end."""
    group = data.draw(st.sampled_from([[], ["category"], ["seller"]]))
    with tempfile.TemporaryDirectory() as root:
        operator = winning(", category bigint, seller bigint", ", bidder bigint", group, 1.0)
        chain = Chain(root, custom(operator, "id"))
        chain.batch(auctions, [])
        ends = sorted({min(cut, len(bids)) for cut in cuts} | {len(bids)})
        for low, high in zip([0, *ends], ends, strict=False):
            chain.batch([], bids[low:high])
        found = sorted(flat(chain.end()).elements())
        assert set(chain.left_over()) <= {"early", "early-heads"}
        chain.engines[0].state.holding.close()
    at = [0] + [{"category": 3, "seller": 4}[name] for name in group]
    assert found == sold([(0, row, 0) for row in auctions], [(0, row, 0) for row in bids], at)


def test_an_auction_closes_when_no_bid_at_its_end_can_come_any_more(tmp_path):
    chain = Chain(tmp_path, winners([]))
    chain.batch([(1, 0, 20, 10, 0)], [(1, 3, 20, 0), (1, 9, 21, 0)])
    chain.batch([(3, 24, 50, 10, 0)], [(2, 1, 24, 0)])
    chain.batch([], [(1, 4, 20, 1)])  # the frontier is 20: it is in time
    chain.batch([(4, 25, 50, 10, 0)], [(2, 1, 25, 0)])
    assert chain.emitted == [[], [], [], []]
    chain.batch([], [(1, 5, 20, 2)])  # the frontier is 21: too late
    assert chain.emitted[-1] == [(1, 0, 20, 10, 0, 4, 20, 1)]


def test_bids_wait_for_their_auction_until_the_frontier_is_past_them(tmp_path):
    chain = Chain(tmp_path, winners([]))
    chain.batch([], [(1, 5, 10, 0), (1, 4, 12, 0), (2, 7, 10, 0)])
    assert chain.left_over()["early"] == 3
    chain.batch([(1, 11, 30, 10, 0), (4, 16, 50, 10, 0)], [(9, 1, 16, 0)])
    chain.batch([(3, 40, 50, 10, 0)], [])
    assert chain.left_over()["early"] == 2  # the frontier was 12: those at 10 are gone, those at 12 and 16 not yet
    assert flat(chain.end()) == Counter([(1, 11, 30, 10, 0, 4, 12, 0)])


@examples(25)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60), st.integers(0, 1), prices)), max_size=5),
    st.integers(1, 2),
)
def test_the_mean_of_the_last_ten(batches, parts):
    with tempfile.TemporaryDirectory() as root:
        chain = Chain(root, Custom(q6.LastSold, schema(q6.LastSold.input), ["seller"]), parts=parts)
        for batch in batches:
            chain.batch(batch)
        emitted = chain.emitted
        kept = chain.left_over().get("sold", 0)
        chain.engines[0].state.holding.close()
    every = defaultdict(list)
    for batch in batches:
        for number, expires, seller, price in batch:
            every[seller].append((expires, number, price))
    last = {seller: [price for *_, price in sorted(sold)[-10:]] for seller, sold in every.items()}
    assert newest(emitted, 1) == {(seller, sum(found) / len(found)) for seller, found in last.items()}
    assert kept == sum(map(len, last.values()))


@examples(25)
@given(st.lists(st.lists(st.tuples(ids, st.integers(0, 3), st.just(0), st.integers(1, 3))), max_size=3))
def test_the_hottest_of_each_window(batches):
    operator = Custom(q5.Hottest, schema(q5.Hottest.input), ["window_start"])
    with tempfile.TemporaryDirectory() as root:
        chain = Chain(root, operator, parts=2)
        for batch in batches:
            chain.batch(batch)
        chain.engines[0].state.holding.close()
    for batch, found in zip(batches, chain.emitted, strict=True):
        most = {start: max(row[3] for row in batch if row[1] == start) for _, start, *_ in batch}
        assert Counter(found) == Counter(row for row in batch if row[3] == most[row[1]])


highest_rows = st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 2), prices, times, st.none())


@examples(50)
@given(events(highest_rows.filter(lambda row: row[4] % 5 == 0 or row[4] % 7 == 0), 4), cuts, st.integers(1, 2))
def test_the_highest_bids(bids, cuts, parts):
    operators = [custom(q7.highest(SIZE, LATENESS_S), "part"), custom(q7.HighestOfAll, "start")]
    emitted, left = run(operators, [bids], cuts, parts)
    rows = [row for _, row, _ in bids]
    wanted = Counter()
    for start in {row[4] - row[4] % SIZE for row in rows}:
        top = max(row[3] for row in rows if start <= row[4] < start + SIZE)
        wanted.update(row[1:] for row in rows if row[3] == top and start <= row[4] <= start + SIZE)
    assert flat(emitted) == wanted
    assert not left


def test_a_bid_after_its_window_has_closed_is_lost_and_does_not_open_it_again(tmp_path):
    chain = Chain(tmp_path, custom(q7.highest(SIZE, LATENESS_S), "part"), custom(q7.HighestOfAll, "start"))
    chain.batch([(0, 1, 1, 5, 3, None), (0, 1, 1, 1, 15, None)])
    chain.batch([(0, 2, 1, 5, 9, None)])  # the frontier is 11, the first window closed
    chain.batch([(0, 3, 1, 5, 10, None)])  # at its end, but the one it begins is open
    found = chain.end()
    assert [[(row[0], row[2], row[3]) for row in version] for version in found] == [
        [], [(1, 5, 3)], [], [(3, 5, 10)], [],
    ]  # fmt: skip


def test_a_bid_at_the_end_of_a_window_is_in_time_for_it_while_the_frontier_is_there(tmp_path):
    chain = Chain(tmp_path, custom(q7.highest(SIZE, LATENESS_S), "part"), custom(q7.HighestOfAll, "start"))
    chain.batch([(0, 1, 1, 5, 3, None), (0, 1, 1, 1, 14, None)])
    chain.batch([(0, 2, 1, 5, 10, None)])  # the frontier is 10
    found = flat(chain.end())
    assert found == Counter({(1, 1, 5, 3, None): 1, (2, 1, 5, 10, None): 2})


person_rows = st.tuples(ids, st.sampled_from(["ann", "bob", None]), times)


@examples(40)
@given(events(person_rows, 2), events(st.tuples(ids, times), 1), cuts, st.integers(1, 2))
def test_new_sellers(people, auctions, cuts, parts):
    emitted, left = run([custom(q8.new_sellers(SIZE, LATENESS_S), "id")], [people, auctions], cuts, parts)
    sellers = {(row[0], row[1] - row[1] % SIZE) for _, row, _ in auctions}
    came = {(row[0], row[1], row[2] - row[2] % SIZE) for _, row, _ in people}
    wanted = {row for row in came if (row[0], row[2]) in sellers}
    assert flat(emitted) == Counter(wanted)
    assert not left


def test_a_window_of_new_sellers_closes_at_its_end(tmp_path):
    chain = Chain(tmp_path, custom(q8.new_sellers(SIZE, LATENESS_S), "id"))
    chain.batch([(1, "ann", 3), (5, "eve", 13)], [(7, 13)])
    chain.batch([], [(1, 9)])  # the frontier is 9: in time
    chain.batch([(6, "fay", 14)], [(7, 14)])
    assert chain.emitted == [[], [], []]
    chain.batch([], [(1, 9)])  # the frontier is 10: the window is closed, and stays so
    assert [row[:2] for row in chain.emitted[-1]] == [(1, "ann")]
    chain.batch([(2, "bob", 9)], [(2, 9)])
    assert flat(chain.end()).total() == 1


@examples(25)
@given(
    st.lists(st.tuples(st.lists(st.tuples(ids, st.text("ab", max_size=2))), st.lists(st.tuples(ids, times)))),
    st.integers(1, 2),
)
def test_joins_have_every_pair_once(batches, parts):
    operator = joining(
        "id bigint", left="name string", right="item bigint", shown="item bigint, id bigint, name string"
    )
    with tempfile.TemporaryDirectory() as root:
        chain = Chain(root, custom(operator, "id"), parts=parts)
        for left, right in batches:
            chain.batch(left, right)
        chain.engines[0].state.holding.close()
    every = [[row for batch in batches for row in batch[side]] for side in (0, 1)]
    wanted = Counter((item, mine, name) for mine, name in every[0] for other, item in every[1] if mine == other)
    assert flat(chain.emitted) == wanted


def test_passing_keeps_nothing_and_lets_everything_through(tmp_path):
    chain = Chain(tmp_path, custom(passing("auction bigint, price bigint"), "auction"), parts=2)
    chain.batch([(1, 2), (1, 2), (3, 4)])
    chain.batch([(1, 2)])
    assert flat(chain.emitted) == Counter({(1, 2): 3, (3, 4): 1})
    assert not chain.left_over()


@given(st.lists(st.tuples(st.none() | ids, st.sampled_from(["a", "b", None]), st.integers(-3, 3), st.integers(0, 2))))
def test_groups(rows):
    found = table("k bigint, s string, v bigint, t bigint", rows)
    group = numbered(found, ["k", "s"])
    values = [row[2] for row in rows]
    for at, row in enumerate(rows):
        mine = [other for other in range(len(rows)) if rows[other][:2] == row[:2]]
        assert [other for other in range(len(rows)) if group[other] == group[at]] == mine
        assert largest(found["v"].to_numpy(), group)[at] == max(values[other] for other in mine)
    assert set(group) == set(range(len({row[:2] for row in rows})))
    best = {}
    for row in sorted(rows, key=lambda row: (-row[2], row[3])):
        best.setdefault(row[:2], row)
    got = firsts(found, ["k", "s"], [("v", "descending"), ("t", "ascending")])
    assert Counter(listed(got)) == Counter(best.values())


def test_the_registry_tells_what_each_query_is():
    wanted = [*(f"q{n}" for n in range(10)), "q11", "q17", "q18", "q19", "q20"]
    assert list(QUERIES) == wanted
    for name, asked in QUERIES.items():
        assert asked.name == name
        assert asked.title
        assert not asked.title.endswith(".")
        assert len(set(asked.columns)) == len(asked.columns)
        assert asked.key is None or set(asked.key) <= set(asked.columns)
        assert asked.text.startswith(asked.title)
        assert all(column in asked.text for column in asked.columns), f"{name} does not say what its columns are"
        assert asked.dialects[0] == "flink"
        assert 0 < asked.lines < 80
    with pytest.raises(InvalidOption, match="there is no query 'q10'; there are: q0, q1"):
        named("q10")


def test_lines_are_those_that_do_something(tmp_path):
    written = tmp_path / "q4.py"
    written.write_text(
        '"""Doc.\n\nMore."""\n\nimport os\nfrom meander_lab.nexmark.queries.winning import winning\n\n# why\n'
        'def f(a,\n      b):\n    """Doc."""\n    x = """text\n    more"""\n    return x  # so\n'
        '\nN = 1\n"""What N is."""\n'
    )
    assert lines(written) == 8
    (tmp_path / "winning.py").write_text("from meander_lab.nexmark.queries.groups import firsts\n")
    (tmp_path / "groups.py").write_text("x = 1\n")
    assert [path.name for path in shared(written)] == ["groups.py", "winning.py"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"window_s": 0}, "window_s is 0"),
        ({"slide_s": -1}, "slide_s is -1"),
        ({"lateness_s": -1}, "lateness_s is -1"),
        ({"dialect": "sql"}, "there is no dialect 'sql'; there are: flink, beam"),
    ],
)
def test_options_are_checked(given, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        Options(**given)


def test_a_dialect_that_a_query_does_not_have_is_refused_before_anything_is_built():
    for asked in QUERIES.values():
        if "beam" not in asked.dialects:
            with pytest.raises(InvalidOption, match=f"{asked.name} cannot be asked in the dialect 'beam'"):
                asked.build(None, Options(dialect="beam"))
