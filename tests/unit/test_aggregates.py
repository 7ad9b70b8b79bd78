"""Aggregates by Spark's names: what they refuse, what they keep, and what happens at their bounds."""

import json
import math
import random
import statistics

import numpy as np
import pyarrow as pa
import pytest

import meander as me
from in_process import fed
from meander.errors import InvalidOption
from meander.operators.aggregate import Aggregate
from meander.operators.moments import product
from meander.operators.sketch import BITS, HIGHEST, REGISTERS
from meander.route.hashing import xxhash64
from meander.route.schema import schema
from naive import Engine, listed
from streams import cut

INPUT = schema("user string, ts timestamp, price bigint, x double, tags array<string>, yes boolean")


def aggregate(*wanted, by=None):
    return Aggregate(INPUT, ["user"], {"a": wanted}, by)


REFUSALS = {
    "the aggregate 'a', collect_list, needs a limit: how many values a key keeps at most, as in":
        lambda: aggregate("collect_list", "x"),
    '("collect_set", "page", {"limit": 100})': lambda: aggregate("collect_set", "x"),
    "limit of the aggregate 'a' is 0; it must be a whole number from 1 to 1000000":
        lambda: aggregate("collect_set", "x", {"limit": 0}),
    "limit of the aggregate 'a' is 2000000": lambda: aggregate("count_distinct", "x", {"limit": 2_000_000}),
    """has the options {'most': 3}; it takes {"limit": 100}""": lambda: aggregate("collect_set", "x", {"most": 3}),
    """has the options 3; it takes {"limit": 100}""": lambda: aggregate("count_distinct", "x", 3),
    "the aggregate 'a', sum, has the options {'limit': 3}; it takes a column alone":
        lambda: aggregate("sum", "x", {"limit": 3}),
    "the functions are sum, min, max, mean, stddev, stddev_pop, var, var_pop, count, count_distinct, "
    "approx_count_distinct, any, all, first, last, collect_list, collect_set": lambda: aggregate("median", "x"),
    "the aggregate 'a' is ('count_distinct',); write a function and a column": lambda: aggregate("count_distinct"),
    "the aggregate 'a' cannot take any of 'x' of type double; it needs booleans": lambda: aggregate("any", "x"),
    "the aggregate 'a' cannot take all of 'user' of type string": lambda: aggregate("every", "user"),
    "cannot take the stddev of 'user' of type string; it needs numbers": lambda: aggregate("stddev_samp", "user"),
    "cannot take the var_pop of 'yes'": lambda: aggregate("var_pop", "yes"),
    "cannot take the collect_list of 'tags'": lambda: aggregate("collect_list", "tags", {"limit": 3}),
    "cannot take the approx_count_distinct of 'tags'": lambda: aggregate("approx_count_distinct", "tags"),
    "by names the column 'x' of type double; it needs":
        lambda: aggregate("collect_list", "price", {"limit": 3}, by="x"),
    "by='ts' is for first, last and collect_list": lambda: aggregate("collect_set", "x", {"limit": 3}, by="ts"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_makes_no_sense_is_refused_in_one_sentence(sentence):
    with pytest.raises(InvalidOption) as refused:
        REFUSALS[sentence]()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_of_sparks_names_of_a_function_are_one_state():
    for name, names in {
        "mean": ["avg"], "stddev": ["stddev_samp"], "var": ["variance", "var_samp"],
    }.items():  # fmt: skip
        assert all(aggregate(each, "x").fingerprint == aggregate(name, "x").fingerprint for each in names)
    for name, names in {"any": ["bool_or", "some"], "all": ["bool_and", "every"]}.items():
        assert all(aggregate(each, "yes").fingerprint == aggregate(name, "yes").fingerprint for each in names)
    assert aggregate("sum", "x").options == {"aggregates": {"a": ["sum", "x"]}, "by": None}, "as in older checkpoints"


def test_state_that_means_something_else_has_another_fingerprint():
    operators = [
        *(aggregate(name, "x") for name in ("var", "var_pop", "stddev", "stddev_pop", "mean", "count_distinct")),
        aggregate("approx_count_distinct", "x"),
        *(aggregate(name, "x", {"limit": limit}) for name in ("collect_list", "collect_set") for limit in (3, 4)),
        aggregate("collect_list", "x", {"limit": 3}, by="ts"),
    ]
    assert len({json.dumps(each.fingerprint, sort_keys=True) for each in operators}) == len(operators)
    more, usual = (aggregate("count_distinct", "x", *limit).options for limit in ([{"limit": 20_000}], []))
    assert more["aggregates"] == usual["aggregates"], "a higher limit keeps what is there"


def test_result_types_are_those_of_spark():
    named = {
        "v": ("var", "price"), "m": ("avg", "price"), "yes": ("any", "yes"), "n": ("count_distinct", "x"),
        "about": ("approx_count_distinct", "user"), "l": ("collect_list", "ts", {"limit": 1}),
    }  # fmt: skip
    found = Aggregate(INPUT, ["user"], named).output
    assert [found.field(name).type for name in ("v", "m", "yes")] == [pa.float64(), pa.float64(), pa.bool_()]
    assert found.field("n").type == found.field("about").type == pa.int64()
    assert found.field("l").type == pa.list_(pa.field("element", INPUT.field("ts").type))


def test_products_are_exact():
    from fractions import Fraction

    rng = np.random.default_rng(5)
    one, other = (rng.standard_normal(300) * 10.0 ** rng.integers(-60, 60, 300) for _ in range(2))
    whole, rest = product(one, other)
    for each in zip(one, other, whole, rest, strict=True):
        a, b, product_, left = map(Fraction, each)
        assert a * b == product_ + left


def test_a_variance_of_large_numbers_is_that_of_their_differences():
    """With sums of plain doubles nothing would be left: the squares are 1e18, their differences below 1."""
    rng = random.Random(4)
    values = [1e9 + rng.random() for _ in range(500)]
    engine = Engine(Aggregate(schema("k int, x double"), ["k"], {"v": ("var", "x"), "d": ("stddev_pop", "x")}))
    for part in cut(pa.table({"k": pa.array([1] * 500, pa.int32()), "x": values}), 4, rng):
        out = engine.batch(part)
    ((_, var, deviation),) = listed(out.rows)
    assert var == pytest.approx(statistics.variance(values), rel=1e-12)
    assert deviation == pytest.approx(statistics.pstdev(values), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([], (None, None)), ([5.0], (None, 0.0)), ([5.0, None], (None, 0.0)), ([5.0, 5.0], (0.0, 0.0)),
        ([1.0, 3.0], (2.0, 1.0)), ([math.nan], (None, math.nan)), ([1.0, math.inf], (math.nan, math.nan)),
        ([0.1] * 7, (0.0, 0.0)), ([1e200, 2e200], (math.nan, math.nan)),
    ],
)  # fmt: skip
def test_the_edges_of_variances(values, wanted):
    kinds = schema("k int, x double")
    engine = Engine(Aggregate(kinds, ["k"], {"v": ("var", "x"), "p": ("var_pop", "x")}))
    given = [*values, None]
    out = engine.batch(pa.table({"k": pa.array([1] * len(given), pa.int32()), "x": pa.array(given, pa.float64())}))
    assert repr(listed(out.rows)[0][1:]) == repr(wanted)


def source(ddl):
    return me.stream(me.testing.source(ddl))


def test_rows_that_bring_too_many_distinct_values_are_dead_letters_and_the_rest_goes_on():
    stream = source("user string, page int").key_by("user")
    stream = stream.aggregate(pages=("count_distinct", "page", {"limit": 3}), n="count")
    with me.testing.harness(stream) as h:
        h.batch([{"user": "ann", "page": page} for page in (1, 2, 2)] + [{"user": "bob", "page": 1}])
        out = h.batch([{"user": "ann", "page": page} for page in (3, 4)] + [{"user": "bob", "page": 2}])
        assert out == [{"user": "bob", "pages": 2, "n": 2}]
        (first, _) = h.dead()
        assert first["reason"].startswith(
            "the count 'pages' has more than 3 distinct values of column 'page' for the key 'ann' in bin "
        )
        assert first["reason"].endswith('; take ("approx_count_distinct", ..), or a higher limit')
        assert h.batch([{"user": "ann", "page": 3}]) == [{"user": "ann", "pages": 3, "n": 4}], "as if it had not come"


def test_lists_go_by_time_then_by_value_and_end_at_their_limit():
    stream = source("user string, at int, page string").key_by("user")
    pages = ("collect_list", "page", {"limit": 4})
    with me.testing.harness(stream.aggregate(pages=pages, by="at")) as h:
        rows = [("c", 5), ("a", 5), (None, 1), ("z", 2), ("nowhen", None)]
        (first,) = h.batch([{"user": "ann", "at": at, "page": page} for page, at in rows])
        assert first["pages"] == ["z", "a", "c", "nowhen"], "a row without a time comes last"
        (second,) = h.batch([{"user": "ann", "at": 3, "page": "late"}])
        assert second["pages"] == ["z", "late", "a", "c"]
    with me.testing.harness(stream.aggregate(pages=pages)) as h:
        (row,) = h.batch([{"user": "ann", "at": at, "page": page} for page, at in rows])
        assert row["pages"] == ["a", "c", "nowhen", "z"], "without by, in order of the values"


def test_collections_move_with_their_bins_and_outlive_a_restart():
    rng = random.Random(3)
    rows = pa.table(
        {"user": [f"u{rng.randrange(9)}" for _ in range(300)], "page": [rng.randrange(50) for _ in range(300)]}
    )
    stream = source(rows.schema).key_by("user").aggregate(
        pages=("collect_set", "page", {"limit": 10}), n=("count_distinct", "page"), v=("var", "page"),
        every=("collect_list", "page", {"limit": 500}), about=("approx_count_distinct", "page"),
    )  # fmt: skip
    with me.testing.harness(stream) as h:
        for number, batch in enumerate(cut(rows, 4, rng)):
            h.batch(batch)
            if number == 1:
                h.rescale(4)
            if number == 2:
                h.restart()
        found = {row.pop("user"): row for row in h.latest("user")}
    for user in {*rows["user"].to_pylist()}:
        pages = [row["page"] for row in rows.to_pylist() if row["user"] == user]
        wanted = {"pages": sorted({*pages})[:10], "n": len({*pages}), "every": sorted(pages)}
        assert {name: found[user][name] for name in wanted} == wanted
        assert found[user]["v"] == pytest.approx(statistics.variance(pages), rel=1e-14)
        assert abs(found[user]["about"] - len({*pages})) <= 1


# --- the sketch ------------------------------------------------------------------------------------


def sketched(batches):
    """The estimates after each batch of whole numbers, and the sketch that is kept in the end."""
    engine = Engine(Aggregate(schema("k int, x bigint"), ["k"], {"n": ("approx_count_distinct", "x")}))
    found = []
    for values in batches:
        rows = pa.table({"k": pa.array(np.ones(len(values), np.int32)), "x": pa.array(values, pa.int64())})
        found.append(engine.batch(rows).rows["n"][0].as_py())
    return found, engine.state.committed["aggregate"][1,][0]


def test_the_estimate_of_many_values_is_within_three_standard_errors():
    values = np.arange(200_000)
    steps = [0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 200_000]
    found, _ = sketched([values[: step + 1] for step in steps])
    for estimate, step in zip(found, steps, strict=True):
        assert abs(estimate / (step + 1) - 1) <= 3 * 1.04 / math.sqrt(REGISTERS), step + 1
    assert found[:4] == [1, 2, 4, 11], "few are counted exactly"


def test_the_standard_error_is_that_of_the_paper():
    """Over 60 keys with 20,000 values each."""
    keys, count = 60, 20_000
    engine = Engine(Aggregate(schema("k int, x bigint"), ["k"], {"n": ("approx_count_distinct", "x")}))
    rows = pa.table({"k": pa.array(np.repeat(np.arange(keys), count), pa.int32()), "x": np.arange(keys * count)})
    errors = engine.batch(rows).rows["n"].to_numpy() / count - 1
    deviation = math.sqrt(float(np.mean(errors**2)))
    assert 0.8 * 0.01625 < deviation < 1.2 * 0.01625


@pytest.mark.parametrize("count", [5, 900, 1500, 6000])
def test_a_sketch_has_the_registers_of_a_plain_recount(count):
    """Also where it goes from a few registers to all of them, in one batch or in several."""
    values = np.random.default_rng(count).integers(-(2**63), 2**63 - 1, count)
    registers = [0] * REGISTERS
    for hash_ in map(int, xxhash64([pa.array(values)])):
        bits = f"{hash_:064b}"
        rest = bits[BITS:]
        rank = HIGHEST if "1" not in rest else rest.index("1") + 1
        registers[int(bits[:BITS], 2)] = max(registers[int(bits[:BITS], 2)], rank)
    few = b"".join((index << 8 | rank).to_bytes(4, "little") for index, rank in enumerate(registers) if rank)
    wanted = few if len(few) < REGISTERS else bytes(registers)
    assert sketched([values])[1] == wanted
    assert sketched([values[: count // 3], values[count // 4 :]])[1] == wanted
    assert (len(wanted) == REGISTERS) == (count > 1024)


def test_equal_values_are_one_for_a_sketch_whatever_their_bits():
    engine = Engine(Aggregate(schema("k int, x double"), ["k"], {"n": ("approx_count_distinct", "x")}))
    values = [0.0, -0.0, math.nan, -math.nan, 1.0, None]
    out = engine.batch(pa.table({"k": pa.array([1] * 6, pa.int32()), "x": pa.array(values, pa.float64())}))
    assert listed(out.rows) == [(1, 3)]


def test_windows_have_them_too():
    rows = pa.table({
        "user": ["a"] * 5, "ts": pa.array([1, 2, 3, 11, 12], pa.timestamp("s", "UTC")).cast(INPUT.field("ts").type),
        "x": [1.0, 2.0, 2.0, 5.0, None],
    })  # fmt: skip
    stream = source(rows.schema).key_by("user").window("ts", "10s").aggregate(
        n=("count_distinct", "x"), xs=("collect_list", "x", {"limit": 9}), v=("variance", "x"), by="ts"
    )  # fmt: skip
    with fed(stream, [rows]) as h:
        found = sorted((row["n"], row["xs"], row["v"]) for row in h.output())
    assert found == [(1, [5.0], None), (2, [1.0, 2.0, 2.0], pytest.approx(1 / 3))]
