"""Files of a checkpoint that are not as they were left, and wishes that make no sense: one clear sentence each."""

import shutil

import pytest

import meander as me
from meander.errors import ChangedQuery, CheckpointError, Damaged
from meander.store import statefile
from meander.testing.harness import Harness

ROWS = [{"k": key, "text": "x" * 50} for key in range(400)]


def stream():
    return me.stream(me.testing.source("k bigint, text string")).key_by("k").aggregate(text=("max", "text"))


def harness(checkpoint) -> Harness:
    return me.testing.harness(stream(), checkpoint=checkpoint)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint with a few versions, whose deltas are files."""
    folder = tmp_path_factory.mktemp("bad") / "ck"
    with harness(folder) as h:
        for _ in range(3):
            h.batch(ROWS)
    return folder


@pytest.fixture
def checkpoint(written, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(written, tmp_path / "ck")


def deltas(checkpoint):
    return sorted((checkpoint / "deltas").iterdir())


def manifests(checkpoint):
    return sorted((checkpoint / "manifests").glob("*.json"))


def refusal_of(checkpoint, kind=Damaged):
    """The sentence with which a restart on this checkpoint ends, at its first batch at the latest."""
    with pytest.raises((kind, me.QueryFailed)) as ending, harness(checkpoint) as h:
        h.batch(ROWS)
    text = str(ending.value)
    assert "Traceback" not in text
    assert "\n" not in text.strip()
    return text


def emptied(checkpoint):
    deltas(checkpoint)[0].write_bytes(b"")
    return "is damaged: it is torn"


def removed(checkpoint):
    deltas(checkpoint)[0].unlink()
    return "is missing"


def flipped(checkpoint):
    file = deltas(checkpoint)[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return "is damaged: the checksum of bytes"


def swapped(checkpoint):
    one, other = deltas(checkpoint)[:2]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return "is damaged: it is not the file that the manifest names"


def of_a_newer_format(checkpoint):
    file = deltas(checkpoint)[0]
    file.write_bytes(file.read_bytes().replace(b"MEANDER1", b"MEANDER2"))
    return "was written by a newer version of Meander (its format is 2, this one reads 1); upgrade Meander"


def flipped_in_its_format(checkpoint):
    """One end says another format, the other end does not."""
    file = deltas(checkpoint)[0]
    head, mark, tail = file.read_bytes().rpartition(b"MEANDER1")
    file.write_bytes(head + mark.replace(b"1", b"3") + tail)
    return "is damaged: it is torn, or no state file"


def linked_to_another(checkpoint):
    one, other = deltas(checkpoint)[:2]
    one.unlink()
    one.symlink_to(other)
    return "is damaged: it is not the file that the manifest names"


FILES = {
    "empty state file": emptied,
    "missing state file": removed,
    "bit-flipped state file": flipped,
    "swapped state files": swapped,
    "state file of a newer format": of_a_newer_format,
    "state file with a bit-flipped format": flipped_in_its_format,
    "state file that is a link to another": linked_to_another,
}


@pytest.mark.parametrize("name", FILES)
def test_damaged(name, checkpoint):
    first = deltas(checkpoint)[0].name
    sentence = FILES[name](checkpoint)
    text = refusal_of(checkpoint)
    assert sentence in text
    assert f"deltas/{first}" in text


def test_state_file_truncated_at_every_byte(checkpoint):
    """Read as a worker reads it: whole, and by bins."""
    data = deltas(checkpoint)[0].read_bytes()
    for length in range(len(data)):
        for bins in (None, [3]):
            with pytest.raises(Damaged, match="deltas/x is"):
                statefile.read(data[:length], bins, name="deltas/x")


def test_manifest_missing_in_the_middle(checkpoint):
    number = manifests(checkpoint)[-2]
    number.unlink()
    assert f"manifests/{number.name}" in refusal_of(checkpoint)


def test_empty_manifest(checkpoint):
    manifests(checkpoint)[-1].write_bytes(b"")
    assert f"manifests/{manifests(checkpoint)[-1].name} is torn or has been changed" in refusal_of(checkpoint)


def test_state_files_that_are_read_only(checkpoint):
    """They are never written again, so nothing is wrong with it."""
    for file in (*deltas(checkpoint), *manifests(checkpoint)):
        file.chmod(0o400)
    with harness(checkpoint) as h:
        assert len(h.batch(ROWS)) == len(ROWS)


def test_folder_that_is_a_symbolic_link(checkpoint, tmp_path):
    (tmp_path / "link").symlink_to(checkpoint)
    with harness(tmp_path / "link") as h:
        assert len(h.batch(ROWS)) == len(ROWS)
        assert h.query.version == 3


def test_folder_of_a_foreign_query(checkpoint):
    foreign = me.stream(me.testing.source("word string")).key_by("word").count()
    with pytest.raises(ChangedQuery) as refusal:
        me.testing.harness(foreign, checkpoint=checkpoint)
    assert "\n" not in str(refusal.value)
    with harness(checkpoint) as h:
        assert len(h.batch(ROWS)) == len(ROWS)


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "ck").write_text("not a folder")
    with pytest.raises((CheckpointError, me.InvalidOption, OSError)) as refusal:
        harness(tmp_path / "ck")
    assert str(tmp_path / "ck") in str(refusal.value)


@pytest.mark.parametrize("workers", [0, -1, 10**9, 1.5, None, "2"])
def test_workers(workers, tmp_path):
    with pytest.raises(me.InvalidOption, match=r"workers is .*; it must be a whole number from 1 to"):
        me.testing.harness(stream(), workers=workers)
    with harness(tmp_path / "ck") as h:
        h.batch(ROWS)
        owner = h.query.assignment
        with pytest.raises(me.InvalidOption, match=r"workers is .*; it must be a whole number from 1 to 16"):
            h.rescale(workers)
        assert h.query.assignment == owner


@pytest.mark.parametrize("targets", [{99: 1}, {-1: 1}, {1.5: 1}, {"x": 1}, {1: -1}], ids=str)
def test_unknown_bins_and_workers(targets, tmp_path):
    with harness(tmp_path / "ck") as h:
        h.batch(ROWS)
        with pytest.raises(me.InvalidOption, match=r"^(bin is|worker of bin 1 is) .*whole number"):
            h.move(targets)


def test_overlapping_plans(tmp_path):
    """The second wish replaces the first, and nothing is lost on the way."""
    with harness(tmp_path / "ck") as h:
        h.batch(ROWS)
        first = h.query.rescale(4, schedule="fluid")
        h.batch(ROWS)
        second = h.query.rescale(3)
        h.finish(second)
        assert second.status == "done"
        assert first.poll()
        assert first.status != "failed"
        (owners,) = h.query.assignment.values()
        assert len(set(owners)) == 3
        assert len(h.state()) == len(ROWS)


def test_a_plan_replayed(tmp_path):
    """The same moves a second time move nothing."""
    with harness(tmp_path / "ck") as h:
        h.batch(ROWS)
        for _ in range(2):
            move = h.move({0: 1, 1: 1})
            assert move.status == "done"
        assert move.report.bins == 0
        assert len(h.batch(ROWS)) == len(ROWS)
