"""What a query keeps is its user's alone: folders 0700, files 0600, whatever the umask."""

import os
import random
import stat
from pathlib import Path

import pytest

import meander as me
from meander.store.location import Location


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> set[tuple[str, int]]:
    return {
        ("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode))
        for path in [folder, *folder.rglob("*")]
    }


PRIVATE = {("folder", 0o700), ("file", 0o600)}


@pytest.mark.usefixtures("open_umask")
def test_nobody_else_can_read_checkpoint_and_local_state(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = me.testing.source("word string, ts timestamp")
    stream = me.stream(source).key_by("word").window("ts", "1s").count()
    rng = random.Random(7)
    with me.testing.harness(stream, checkpoint=tmp_path / "new" / "ck", snapshot_every=2) as h:
        for second in (1, 2, 1, 3, 4):
            words = [None, *(f"{rng.random():.17f}" * 60 for _ in range(3000))]
            h.batch([{"word": word, "ts": second * 1_000_000} for word in words])
        h.rescale(3)
        checkpoint = tmp_path / "new" / "ck"
        assert {each.name for each in checkpoint.iterdir() if any(each.iterdir() if each.is_dir() else [1])} == {
            "meander.json", "manifests", "deltas", "snapshots", "side", "spark",
        }  # fmt: skip
        assert modes(checkpoint) == PRIVATE
        homes = [path.parent for path in tmp_path.glob("meander-test-*/executors/*/meander-*/owner")]
        assert len(homes) == 3
        assert [path for home in homes for path in home.rglob("out-*.arrow")]
        for home in homes:
            assert modes(home) == PRIVATE


@pytest.mark.usefixtures("open_umask")
def test_a_folder_that_is_there_keeps_its_mode_and_what_comes_into_it_is_private(tmp_path):
    tmp_path.chmod(0o755)
    place = Location.of(tmp_path)
    place.write("deltas/a", b"x")
    place.create("manifests/b", b"x")
    place.make_folder("spark")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert set().union(*(modes(path) for path in tmp_path.iterdir())) == PRIVATE
