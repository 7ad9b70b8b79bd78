"""Flink in an environment of its own, and our job compiled against it. For `./dev bench flink`.

Flink is no dependency of the project: it comes from PyPI into a virtual environment in a folder of the benchmark's,
in the version that is pinned here. `apache-flink-libraries` is the part of `apache-flink` that has the jars; PyFlink
itself and what it needs (Beam, among others) would not be used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

VERSION = "2.3.0"
PACKAGE = f"apache-flink-libraries=={VERSION}"
MAIN_CLASS = "meander.bench.CountByKey"
OPENED = (
    "java.base/java.lang", "java.base/java.net", "java.base/java.io", "java.base/java.nio", "java.base/sun.nio.ch",
    "java.base/java.lang.reflect", "java.base/java.text", "java.base/java.time", "java.base/java.util",
    "java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic", "java.base/java.util.concurrent.locks",
)  # fmt: skip
"""What the configuration that comes with Flink opens to it."""


class Unavailable(Exception):
    """Flink cannot be run here; the message says why in one sentence."""


@dataclass(frozen=True)
class FlinkHome:
    """An installed Flink: its `java`, its folder with `lib`, and our job's jar."""

    java: Path
    folder: Path
    jar: Path

    @property
    def class_path(self) -> str:
        """Everything in `lib`."""
        return os.pathsep.join(str(each) for each in sorted((self.folder / "lib").glob("*.jar")))

    @property
    def resources_jar(self) -> Path:
        """What computes the memory of a process from its configuration, as Flink's start scripts do."""
        return self.folder / "bin" / "bash-java-utils.jar"


def default_folder() -> Path:
    """Where Flink is kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "meander" / "flink"


def installed(folder: Path) -> FlinkHome:
    """Install Flink there unless it is, and compile our job.

    Raises:
        Unavailable: there is no Java, no compiler, or no way to Flink's package.
    """
    java, compiler = java_programs()
    home = _flink(folder / VERSION)
    return FlinkHome(java, home, _job(folder / VERSION, home, compiler))


def java_programs() -> tuple[Path, Path]:
    """The programs `java` and `javac`, of JAVA_HOME if there is one, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    where = str(Path(home) / "bin") if home else None
    java = shutil.which("java", path=where)
    if java is None:
        raise Unavailable("Flink needs Java 17 or newer, and there is none; ./dev bench flink finds or installs one")
    # A runtime without its compiler often has a whole kit beside it.
    compiler = shutil.which("javac", path=where) or shutil.which("javac")
    if compiler is None:
        raise Unavailable(
            "the job for Flink is compiled on the spot, and this Java has no javac; install a JDK"
            " (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME to one"
        )
    return Path(java), Path(compiler)


def _flink(folder: Path) -> Path:
    """The folder of Flink's jars, installed first where it is not there yet."""
    stamp, environment = folder / "installed", folder / "venv"
    if not stamp.exists():
        shutil.rmtree(environment, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        python = environment / "bin" / "python"
        _run([sys.executable, "-m", "venv", str(environment)], "a virtual environment for Flink could not be made")
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", PACKAGE]
        _run(pip, f"{PACKAGE} could not be installed")
        stamp.write_text(PACKAGE + "\n")
    homes = sorted(environment.glob("lib/python*/site-packages/pyflink"))
    if not homes or not list((homes[0] / "lib").glob("flink-dist*.jar")):
        raise Unavailable(f"{environment} has no Flink; remove {folder} and try again")
    return homes[0]


def source_files() -> dict[str, bytes]:
    """The job's Java files by name."""
    folder = resources.files("meander_lab.benchmarks") / "flink_job"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.endswith(".java")}


def _job(folder: Path, home: Path, compiler: Path) -> Path:
    """Our job's jar, compiled again whenever a source has changed."""
    sources = source_files()
    digest = hashlib.sha256(b"".join(sources[name] for name in sorted(sources))).hexdigest()[:16]
    jar = folder / f"job-{digest}.jar"
    if jar.exists():
        return jar
    work = folder / f"job-{digest}"
    shutil.rmtree(work, ignore_errors=True)
    (work / "classes").mkdir(parents=True)
    for name, text in sources.items():
        (work / name).write_bytes(text)
    class_path = os.pathsep.join(str(each) for each in (home / "lib").glob("flink-dist*.jar"))
    files = [str(work / name) for name in sorted(sources)]
    command = [str(compiler), "-nowarn", "--release", "17", "-cp", class_path, "-d", str(work / "classes"), *files]
    _run(command, "the job for Flink could not be compiled")
    pack(work / "classes", jar)
    shutil.rmtree(work)
    return jar


def pack(classes: Path, jar: Path) -> None:
    """Make a jar of a folder of classes; it appears whole."""
    part = jar.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\nMain-Class: {MAIN_CLASS}\n\n")
        for each in sorted(classes.rglob("*.class")):
            archive.write(each, each.relative_to(classes))
    part.replace(jar)


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"{failure}: {lines[-1]}")
