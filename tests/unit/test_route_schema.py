"""Schemas from text: what the words mean, and what is said about words that mean nothing."""

import pyarrow as pa
import pytest

from meander import InvalidOption
from meander.route.schema import schema


@pytest.mark.parametrize(
    ("word", "type_"),
    [
        ("boolean", pa.bool_()), ("tinyint", pa.int8()), ("byte", pa.int8()), ("smallint", pa.int16()),
        ("short", pa.int16()), ("int", pa.int32()), ("INTEGER", pa.int32()), ("BigInt", pa.int64()),
        ("long", pa.int64()), ("float", pa.float32()), ("real", pa.float32()), ("double", pa.float64()),
        ("String", pa.string()), ("binary", pa.binary()), ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")), ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)), ("decimal(7)", pa.decimal128(7, 0)),
        ("DECIMAL ( 38 , 38 )", pa.decimal128(38, 38)),
        ("array<int>", pa.list_(pa.field("element", pa.int32()))),
        ("map<string, array<date>>", pa.map_(pa.string(), pa.list_(pa.field("element", pa.date32())))),
        ("struct<a:int,`b c`: struct<d string not null>>", pa.struct([
            pa.field("a", pa.int32()), pa.field("b c", pa.struct([pa.field("d", pa.string(), nullable=False)])),
        ])),
        ("struct<>", pa.struct([])),
    ],
)  # fmt: skip
def test_types(word, type_):
    assert schema(f"x {word}") == pa.schema([pa.field("x", type_)])
    assert schema(f"\n x:{word}  NOT  NULL ") == pa.schema([pa.field("x", type_, nullable=False)])


def test_names():
    assert schema("User string, `a b` int,`c``d` int, größe int, int int").names == [
        "User", "a b", "c`d", "größe", "int",
    ]  # fmt: skip
    assert schema("  ") == pa.schema([])


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("user strnig", "'strnig' in the schema 'user strnig' is no type; the types are boolean, "),
        ("user", "ends too early, after 'user'"),
        ("user string,", "ends too early, after ','"),
        ("a array<int", "ends too early, after 'int'"),
        ("user, ts timestamp", "',' in the schema .* stands where the type of 'user' was expected"),
        ("user not null", "'not' in the schema .* stands where the type of 'user' was expected"),
        ("user string not", "ends too early, after 'not'"),
        ("user string not ts", "'ts' in the schema .* stands where 'null' after 'not' was expected"),
        ("user string ts timestamp", "'ts' in the schema .* was not expected; separate columns by commas"),
        ("user string, user int", "'user' in the schema .* is there twice"),
        ("a struct<b:int,b:int>", "'b' in the schema .* is there twice"),
        (", a int", "',' in the schema .* stands where a name was expected"),
        ("a array int", "'int' in the schema .* stands where '<' after 'array' was expected"),
        ("a array<>", "'>' in the schema .* stands where a type was expected"),
        ("a map<int>", "'>' in the schema .* stands where ',' after the key's type was expected"),
        ("a decimal(39)", "'39' in the schema .* is no precision of a decimal; it must be from 1 to 38"),
        ("a decimal(5,6)", "'6' in the schema .* is no scale of a decimal; it must be from 0 to 5"),
        ("a decimal(x)", "'x' in the schema .* is no precision"),
        ("a decimal(5,2", "ends too early, after '2'"),
        ("a-b int", "'-b' in the schema 'a-b int' cannot be read; put names with such signs in backquotes"),
        ("`a int", "'`a' in the schema .* cannot be read; close the backquote"),
        ("a " + "array<" * 60 + "int" + ">" * 60, "'array' in the schema .* stands more than 50 types deep"),
    ],
)
def test_words_that_mean_nothing_are_named(ddl, words):
    with pytest.raises(InvalidOption, match=words):
        schema(ddl)


def test_only_a_text_is_a_schema():
    with pytest.raises(InvalidOption, match="a schema is a text such as"):
        schema(["user string"])
