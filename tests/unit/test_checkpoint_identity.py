"""Which query a checkpoint belongs to, and what is said to another one."""

import copy
import json
from base64 import b64encode
from dataclasses import replace

import pytest

import meander as me
from meander.errors import ChangedQuery, CheckpointError, Damaged, InvalidOption
from meander.store import bitmap
from meander.store.files import seal
from meander.store.identity import FORMAT, PATH, Identity, renew
from meander.store.location import Location
from meander.store.manifest import Log

OPERATOR = {
    "operator": "window",
    "key": [["user", "string"], ["day", "date32[day]"]],
    "tables": {"sums": {"key": [["user", "string"], ["start", "timestamp[us]"]], "values": [["n", "int64"]]}},
    "options": {"size_us": 60_000_000, "kind": "tumbling"},
}


@pytest.fixture
def place(tmp_path):
    return Location.of(tmp_path / "ck")


def test_a_checkpoint_keeps_its_first_identity(place):
    assert Identity.load(place) is None
    first = Identity.of(256, [OPERATOR]).settle(place)
    assert Identity.load(place) == first
    again = Identity.of(256, [copy.deepcopy(OPERATOR)])
    assert again.id != first.id
    assert again.settle(place) == first
    assert json.loads(place.read(PATH).to_pybytes())["format"] == FORMAT


def changed(path, value):
    operator = copy.deepcopy(OPERATOR)
    at = operator
    for name in path[:-1]:
        at = at[name]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return operator


@pytest.mark.parametrize(
    ("operators", "bins", "sentence"),
    [
        ([OPERATOR], 512, "the checkpoint has 256 bins, not 512; give bins=256"),
        (
            [OPERATOR, OPERATOR],
            256,
            'the query has window -> window; with evolve="add" the further ones begin empty, or start with a new',
        ),
        ([], 256, "the query has none"),
        ([changed(["operator"], "count")], 256, r"operator 0 \(window\) was window and is now count; start with"),
        (
            [changed(["key"], [["user", "int64"]])],
            256,
            "was keyed by user string, day .* and is now keyed by user int64",
        ),
        ([changed(["options", "size_us"], 5)], 256, "had size_us=60000000 and now has size_us=5"),
        ([changed(["options", "new"], [1])], 256, r"had new=null and now has new=\[1\]"),
        ([changed(["tables", "more"], {"key": [], "values": []})], 256, "has a new table 'more'"),
        ([changed(["tables", "sums"], None)], 256, "had the table 'sums' and has it no more"),
        (
            [changed(["tables", "sums", "values"], [["n", "double"]])],
            256,
            r"had \(user string, start timestamp\[us\] -> n int64\) in the table 'sums' and now has .* -> n double\)",
        ),
        ([changed(["extra"], 7)], 256, "had extra null and now has 7"),
    ],
)
def test_what_has_changed_is_said_in_one_sentence(place, operators, bins, sentence):
    Identity.of(256, [OPERATOR]).settle(place)
    with pytest.raises(ChangedQuery, match=sentence) as caught:
        Identity.of(bins, operators).judged(place, Log.open(place))
    assert "\n" not in str(caught.value)


def test_a_later_format_is_refused(place):
    place.write(PATH, seal({**Identity.of(4, []).to_json(), "format": FORMAT + 1}))
    with pytest.raises(
        CheckpointError, match=f"has format {FORMAT + 1} and this version of meander reads up to {FORMAT}"
    ):
        Identity.load(place)


def test_a_damaged_or_missing_identity_is_noticed(place):
    Identity.of(4, [OPERATOR]).settle(place)
    data = place.read(PATH).to_pybytes()
    place.write(PATH, data.replace(b"window", b"windov"))
    with pytest.raises(Damaged, match="meander.json is torn or has been changed"):
        Identity.of(4, [OPERATOR]).settle(place)
    place.delete(PATH)
    place.write("manifests/000000000000.json", b"")
    with pytest.raises(Damaged, match="meander.json of the checkpoint .* is missing"):
        Identity.of(4, [OPERATOR]).settle(place)


def test_of_two_first_drivers_the_second_is_checked_against_the_first(place, monkeypatch):
    real, other = Location.create, Identity.of(8, [OPERATOR])

    def beaten(self, path, data):
        real(self, path, seal(other.to_json()))
        real(self, path, data)

    monkeypatch.setattr(Location, "create", beaten)
    assert Identity.of(4, [OPERATOR]).settle(place) == other
    with pytest.raises(ChangedQuery, match="has 8 bins, not 4"):
        Identity.of(4, [OPERATOR]).judged(place, Log.open(place))
    assert Identity.load(place) == other


def test_an_option_that_is_no_json_is_refused():
    with pytest.raises(InvalidOption, match="an option cannot be kept in the checkpoint"):
        Identity.of(4, [{"options": {"f": object()}}])


def test_a_checkpoint_of_the_format_before_is_taken_over_and_then_refused_by_what_wrote_it(place, monkeypatch):
    before = Identity.of(4, [], id="old")
    place.write(PATH, seal({**before.to_json(), "format": FORMAT - 1}))
    assert Identity.load(place).format == FORMAT - 1
    assert Identity.of(4, []).settle(place).id == "old"
    assert Identity.load(place).format == FORMAT
    monkeypatch.setattr("meander.store.identity.FORMAT", FORMAT - 1)
    with pytest.raises(CheckpointError, match=f"has format {FORMAT} and this version of meander reads up to"):
        Identity.load(place)


def test_what_is_written_without_a_query_is_not_gone_on_with_by_an_older_version(tmp_path):
    """A checkpoint of format 3, as its driver left it: a rollback writes sets of bins as format 4 has them."""
    words = me.stream(me.testing.source("word string")).key_by("word").count()
    with me.testing.harness(words, bins=1024, checkpoint=str(tmp_path)) as h:
        for _ in range(3):
            h.batch([{"word": "duck"}])
    location = Location.of(tmp_path)
    stored = Identity.load(location)
    replace(stored, format=3).store(location)
    me.checkpoint(str(tmp_path)).rollback(to=1, take_over=True)
    assert Identity.load(location) == replace(stored, format=FORMAT)
    replace(stored, format=2).store(location)
    renew(location)
    assert Identity.load(location).format == 2, "options of its operators are unknown: the next start knows them"


def test_a_checkpoint_of_format_3_goes_on_where_it_was(tmp_path, monkeypatch):
    words = me.stream(me.testing.source("word string")).key_by("word").count()

    def dense(bits):
        full = bits and bits.count(255) == len(bits)
        return f"*{len(bits)}" if full else b64encode(bits).decode()

    with monkeypatch.context() as patch:
        patch.setattr(bitmap, "to_text", dense)
        with me.testing.harness(words, bins=1024, checkpoint=str(tmp_path), snapshot_every=4) as h:
            for number in range(40):
                h.batch([{"word": "duck"}, {"word": f"w{number}"}])
    location = Location.of(tmp_path)
    replace(Identity.load(location), format=3).store(location)
    assert not any(b'"128:' in path.read_bytes() for path in tmp_path.rglob("*.json"))
    with me.testing.harness(words, workers=3, bins=1024, checkpoint=str(tmp_path)) as h:
        assert h.batch([{"word": "duck"}, {"word": "w7"}]) == [
            {"word": "duck", "count": 41}, {"word": "w7", "count": 2},
        ]  # fmt: skip
        for number in range(40):
            h.batch([{"word": f"w{number}"}])
    assert Identity.load(location).format == FORMAT
    assert any(b'"128:' in path.read_bytes() for path in tmp_path.rglob("*.json"))
    with me.testing.harness(words, workers=3, bins=1024, checkpoint=str(tmp_path)) as h:
        assert h.batch([{"word": "duck"}]) == [{"word": "duck", "count": 42}]
