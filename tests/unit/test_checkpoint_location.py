"""The folder of a checkpoint: whole files, one winner, on a local disk and elsewhere."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from meander.errors import CheckpointError, Damaged, Exists, InvalidOption, NoSpace
from meander.store import location as location_module
from meander.store.location import Location


class Elsewhere(pafs.FileSystemHandler):
    """A filesystem that is not a local one to anybody who looks: another folder behind a Python handler."""

    def __init__(self, root):
        self.inner = pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())

    def get_type_name(self):
        return "elsewhere"

    def __eq__(self, other):
        return self is other

    def normalize_path(self, path):
        return path

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def get_file_info(self, paths):
        return self.inner.get_file_info(paths)

    def get_file_info_selector(self, selector):
        return self.inner.get_file_info(selector)

    def create_dir(self, path, recursive):
        self.inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path):
        self.inner.delete_dir(path)

    def delete_dir_contents(self, path, missing_dir_ok):
        self.inner.delete_dir_contents(path)

    def delete_root_dir_contents(self):
        raise NotImplementedError

    def delete_file(self, path):
        self.inner.delete_file(path)

    def move(self, source, target):
        self.inner.move(source, target)

    def copy_file(self, source, target):
        self.inner.copy_file(source, target)

    def open_input_stream(self, path):
        return self.inner.open_input_stream(path)

    def open_input_file(self, path):
        return self.inner.open_input_file(path)

    def open_output_stream(self, path, metadata):
        return self.inner.open_output_stream(path)

    def open_append_stream(self, path, metadata):
        raise NotImplementedError


def elsewhere(root: Path, exclusive=True) -> Location:
    root.mkdir(exist_ok=True)

    def create(path: str, data: bytes) -> None:
        Location.of(root / "ck").create(path, data)

    filesystem = pafs.PyFileSystem(Elsewhere(root))
    return Location.of("ck", filesystem=filesystem, exclusive=create if exclusive else None)


@pytest.fixture(params=["path", "uri", "subtree", "handler"])
def place(request, tmp_path):
    if request.param == "path":
        return Location.of(tmp_path / "new" / "ck")
    if request.param == "uri":
        return Location.of((tmp_path / "with space").as_uri() + "/")
    if request.param == "subtree":
        tree = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        return Location.of(
            "ck", filesystem=tree, exclusive=lambda path, data: Location.of(tmp_path / "ck").create(path, data)
        )
    return elsewhere(tmp_path)


def test_files_are_written_read_listed_and_deleted(place):
    assert place.list("deltas") == []
    assert not place.exists("deltas/a.state")
    place.write("deltas/b.state", b"first")
    place.write("deltas/a.state", pa.py_buffer(b"0123456789"))
    place.write("deltas/b.state", bytearray(b"second"))
    place.write("deltas/inner/c", b"")
    assert place.list("deltas") == ["a.state", "b.state"]
    assert place.read("deltas/b.state").to_pybytes() == b"second"
    assert place.read("deltas/inner/c").to_pybytes() == b""
    with place.open_input("deltas/a.state") as file:
        file.seek(3)
        assert file.read_buffer(4).to_pybytes() == b"3456"
    place.delete(["deltas/a.state", "deltas/never.state"])
    assert place.list("deltas") == ["b.state"]
    assert not place.exists("deltas/a.state")


def test_create_succeeds_once_and_leaves_the_first_contents(place):
    place.create("manifests/0.json", b"mine")
    with pytest.raises(Exists, match=r"manifests/0.json .* is there already"):
        place.create("manifests/0.json", b"yours")
    assert place.read("manifests/0.json").to_pybytes() == b"mine"
    assert place.list("manifests") == ["0.json"]


def test_a_missing_file_is_damage_with_its_name(place):
    for read in (place.read, place.open_input):
        with pytest.raises(Damaged, match="deltas/x.state of the checkpoint .* is missing"):
            read("deltas/x.state")


@pytest.mark.parametrize("path", ["../x", "a/../b", "/etc/passwd", "a//b", "", "a b", "ä", "a/.", "x\n", "a\\b"])
def test_no_path_leads_out_of_the_location(place, path):
    for act in (place.read, place.exists, place.list, place.delete, lambda p: place.write(p, b"")):
        with pytest.raises(InvalidOption, match="is not a path in a checkpoint"):
            act(path)


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("/a/b/", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b%20c", "/a/b c"),
        ("file://localhost/a", "/a"),
        ("FILE:///a/", "/a"),
        ("file:///a?b#c", "/a?b#c"),
        ("/a b/c%20d", "/a b/c%20d"),
        ("/run:7/x", "/run:7/x"),
        ("/ä/☃", "/ä/☃"),
        ("/a/../b", "/b"),
        ("//a", "//a"),
    ],
)
def test_spellings_of_a_local_folder(text, root):
    place = Location.of(text)
    assert (place.root, place.is_local, place.hadoop_path) == (root, True, f"file:{root}")
    assert Location.of(place.uri).root == root, "workers get the URI"


def test_a_home_folder_is_found(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert Location.of("~/ck").root == "/home/ann/ck"
    assert Location.of("/x/~").root == "/x/~"
    with pytest.raises(InvalidOption, match="the checkpoint is ~nobody-at-all/ck, and there is no such home folder"):
        Location.of("~nobody-at-all/ck")


REMOTE = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasbs", "adl", "hdfs", "viewfs", "webhdfs", "dbfs", "http")


@pytest.mark.parametrize("slashes", ["://bucket/x", ":/x", "://key:secret@bucket/x", "://bucket/x?secret_key=secret"])
@pytest.mark.parametrize("scheme", REMOTE)
def test_every_other_scheme_is_refused_by_name_and_makes_no_folder(scheme, slashes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption) as refusal:
        Location.of(scheme + slashes)
    sentence = str(refusal.value)
    assert f"{scheme}: cannot be used yet; give a folder" in sentence
    assert "secret" not in sentence
    assert "\n" not in sentence
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (r"c:\x", "a path of Windows"),
        ("C:/x", "a path of Windows"),
        ("file:x", "is file:///path, with three slashes"),
        ("file:", "is file:///path, with three slashes"),
        ("file://key:secret@host/a", r"file://\*\*\*@host/a, which names a host"),
        ("/a\0b", "give a folder"),
    ],
)
def test_what_looks_like_a_folder_and_is_none(text, sentence):
    with pytest.raises(InvalidOption, match=sentence) as refusal:
        Location.of(text)
    assert "secret" not in str(refusal.value)


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Location.of("ck").root == str(tmp_path / "ck")
    assert Location.of("ck").uri == (tmp_path / "ck").as_uri()


@pytest.mark.parametrize("text", ["", "  ", "gopher://x/y", "file://otherhost/a"])
def test_places_that_are_none(text):
    with pytest.raises(InvalidOption):
        Location.of(text)


def test_elsewhere_without_exclusive_create_is_refused(tmp_path):
    place = elsewhere(tmp_path, exclusive=False)
    place.write("a", b"fine")
    with pytest.raises(CheckpointError, match="has no exclusive create of its own.*exclusive="):
        place.create("b", b"")
    assert not place.exists("b")


def test_a_full_disk_is_no_space_and_leaves_nothing(tmp_path, monkeypatch):
    place = Location.of(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(location_module.os, "write", full)
    for act in (place.write, place.create):
        with pytest.raises(NoSpace, match="no space is left to write x/y"):
            act("x/y", b"data")
    assert place.list("x") == []


def test_a_write_that_stops_midway_leaves_the_old_file(tmp_path, monkeypatch):
    place = Location.of(tmp_path)
    place.write("x", b"old")
    real = os.write

    def half(descriptor, data):
        if len(data) > 2:
            return real(descriptor, data[: len(data) // 2])
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(location_module.os, "write", half)
    with pytest.raises(CheckpointError, match="cannot write x .*: Input/output error"):
        place.write("x", b"a new text")
    assert (tmp_path / "x").read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_fsync_syncs_the_file_before_its_name_and_every_new_folder(tmp_path, monkeypatch):
    done = []
    real_sync, real_link = os.fsync, os.link

    def sync(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path).as_posix())  # noqa: PTH115
        real_sync(descriptor)

    def link(source, target):
        done.append("link")
        real_link(source, target)

    monkeypatch.setattr(location_module.os, "fsync", sync)
    monkeypatch.setattr(location_module.os, "link", link)
    Location.of(tmp_path / "ck", fsync=True).create("manifests/0.json", b"x")
    # ck is made in ., manifests in ck, then the file, its name, and the folder that has the name
    assert done[:2] == [".", "ck"]
    assert done[2].startswith("ck/manifests/0.json.")
    assert done[3:] == ["link", "ck/manifests"]
    done.clear()
    Location.of(tmp_path / "ck").write("manifests/1.json", b"x")
    assert done == []
    Location.of(tmp_path / "ck").write("manifests/2.json", b"x", fsync=True)
    assert len(done) == 2


RACE = """
import sys
from meander.store.location import Location
from meander.errors import Exists
place, me = Location.of(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
for number in range(300):
    try:
        place.create(f"r/{number}", (me * 5000).encode())
        print(number)
    except Exists:
        pass
"""


def process(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_of_two_processes_that_create_the_same_names_each_name_has_one_winner(tmp_path):
    racers = {name: process(RACE, tmp_path, name) for name in "ab"}
    for racer in racers.values():
        racer.stdin.write("\n")
        racer.stdin.flush()
    won = {name: {int(line) for line in racer.communicate()[0].split()} for name, racer in racers.items()}
    assert all(racer.returncode == 0 for racer in racers.values())
    assert not won["a"] & won["b"]
    assert won["a"] | won["b"] == set(range(300))
    for name, numbers in won.items():
        assert all((tmp_path / "r" / str(number)).read_text() == name * 5000 for number in numbers)
    assert len(list((tmp_path / "r").iterdir())) == 300


def test_writers_of_one_name_do_not_mix(tmp_path):
    place = Location.of(tmp_path)
    wrong = []

    def write(letter):
        for _ in range(60):
            place.write("x", letter * 100_000)
            if len(set(place.read("x").to_pybytes())) != 1:
                wrong.append(letter)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (tmp_path / "x").stat().st_size == 100_000
    assert place.list("manifests") == []
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


ENDLESS = """
import itertools, sys
from meander.store.location import Location
place = Location.of(sys.argv[1])
print("ready", flush=True)
for number in itertools.count():
    place.create(f"c/{number}", b"x" * 3_000_000)
    place.write("w", str(number % 10).encode() * 3_000_000)
"""


def test_a_kill_in_the_middle_leaves_only_whole_files(tmp_path):
    for round_ in range(2):
        root = tmp_path / str(round_)
        writer = process(ENDLESS, root)
        assert writer.stdout.readline() == "ready\n"
        while not (root / "w").exists():
            time.sleep(0.001)
        threading.Event().wait(0.01 + 0.007 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        whole = [each for each in (root / "c").iterdir() if not each.name.endswith(".tmp")]
        assert whole
        assert {each.stat().st_size for each in [*whole, root / "w"]} == {3_000_000}
        assert len(set((root / "w").read_bytes())) == 1
