# SPDX-License-Identifier: Apache-2.0
"""Installation: TensorFlow to build for, packaged files, errors of wrong environments."""

import configparser
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import packaging.utils
import pytest
import tensorflow as tf

import rec_estimator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "_build"))

import backend  # noqa: E402
import every_release  # noqa: E402
import library  # noqa: E402
import tensorflow_dist  # noqa: E402
import test_matrix  # noqa: E402

# The one that the tests run with.
TENSORFLOW = tensorflow_dist.in_folder(pathlib.Path(tf.__file__).parent.parent)


@pytest.fixture
def target(tmp_path, monkeypatch):
    """The empty site-packages of the environment that pip installs into."""
    folder = tmp_path / "target"
    folder.mkdir()
    monkeypatch.setattr(tensorflow_dist, "target_folders", lambda: [folder])
    monkeypatch.setattr(sys, "path", [])
    return folder


@pytest.fixture
def overlay(tmp_path, monkeypatch, target):
    """The site-packages of pip's isolated build environment."""
    folder = tmp_path / "overlay"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


def install(folder, name, release):
    """Writes the relevant files of a TensorFlow wheel to ``folder``."""
    metadata = folder / f"{name.replace('-', '_')}-{release}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    headers = folder / "tensorflow/include/tensorflow/core/framework"
    headers.mkdir(parents=True, exist_ok=True)
    (headers / "op.h").touch()


def test_empty_environment_builds_against_the_newest_tensorflow_cpu(target, overlay):
    assert tensorflow_dist.build_requirements() == ["tensorflow-cpu>=2.15,<2.22"]
    install(overlay, "tensorflow-cpu", "2.21.0")
    assert tensorflow_dist.find().folder == overlay / "tensorflow"
    # pip asks again in the same build and must get the same answer as before the installation.
    assert tensorflow_dist.build_requirements() == ["tensorflow-cpu>=2.15,<2.22"]


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
@pytest.mark.parametrize(
    ("release", "minor"), [("2.15.0.post1", "2.15"), ("2.16.2", "2.16"), ("2.21.0", "2.21")]
)
def test_tensorflow_of_the_target_is_used(target, overlay, name, release, minor):
    install(target, name, release)
    install(overlay, "tensorflow-cpu", "2.20.0")
    assert tensorflow_dist.build_requirements() == []
    found = tensorflow_dist.find()
    assert (found.folder, found.minor) == (target / "tensorflow", minor)


@pytest.mark.parametrize("release", ["2.14.1", "2.22.0", "3.0.0"])
def test_unsupported_tensorflow_is_refused_with_the_list(target, overlay, release):
    install(target, "tensorflow", release)
    # pip must not unpack a second TensorFlow for a build that cannot be used.
    assert tensorflow_dist.build_requirements() == []
    with pytest.raises(
        tensorflow_dist.TensorFlowNotUsable,
        match=r"TensorFlow must be 2\.15, 2\.16, 2\.17, 2\.18, 2\.19, 2\.20 or 2\.21, "
        rf"got {release}; run: .* -m pip install 'tensorflow>=2\.15,<2\.22'",
    ):
        tensorflow_dist.find()


def test_extras_and_the_build_name_the_same_releases():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    assert extras["cpu"].strip() == "tensorflow-cpu" + tensorflow_dist.SUPPORTED
    assert extras["gpu"].strip() == "tensorflow" + tensorflow_dist.SUPPORTED
    oldest, newest = tensorflow_dist.MINORS[0], tensorflow_dist.MINORS[-1]
    major, number = newest.split(".")
    assert f">={oldest},<{major}.{int(number) + 1}" == tensorflow_dist.SUPPORTED
    assert "tensorflow-cpu" not in config["options"]["install_requires"]


def test_two_tensorflows_in_one_environment_are_refused_with_the_remedy(target):
    install(target, "tensorflow", "2.15.1")
    install(target, "tensorflow-cpu", "2.15.1")
    with pytest.raises(
        tensorflow_dist.TensorFlowNotUsable,
        match=r"must hold one of tensorflow and tensorflow-cpu, got both.*pip uninstall -y",
    ):
        tensorflow_dist.find()


def test_every_release_is_found_where_it_was_downloaded(tmp_path):
    for minor in tensorflow_dist.MINORS:
        install(tmp_path / "build" / "tensorflow" / minor, "tensorflow-cpu", f"{minor}.1")
    found = every_release.find_all(tmp_path)
    assert [each.minor for each in found] == list(tensorflow_dist.MINORS)
    # Nothing is downloaded again: pip would fail without an index.
    every_release.download(tmp_path)


def test_release_that_was_not_downloaded_is_named(tmp_path):
    for minor in set(tensorflow_dist.MINORS) - {"2.16", "2.20"}:
        install(tmp_path / "build" / "tensorflow" / minor, "tensorflow-cpu", f"{minor}.1")
    with pytest.raises(
        tensorflow_dist.TensorFlowNotUsable,
        match=r"/build must hold TensorFlow 2\.15, .*, got no 2\.16, 2\.20; run: make wheel",
    ):
        every_release.find_all(tmp_path)


@pytest.mark.parametrize(
    ("hook", "extra"),
    [
        (backend.get_requires_for_build_wheel, ["tensorflow-cpu>=2.15,<2.22"]),
        (backend.get_requires_for_build_editable, ["tensorflow-cpu>=2.15,<2.22"]),
        (backend.get_requires_for_build_sdist, []),
    ],
    ids=["wheel", "editable", "sdist"],
)
def test_backend_asks_for_tensorflow_only_where_it_is_missing(target, monkeypatch, hook, extra):
    monkeypatch.setattr(backend.build_meta, hook.__name__, lambda settings: ["setuptools' own"])
    assert hook() == ["setuptools' own", *extra]
    install(target, "tensorflow", "2.15.1")
    assert hook() == ["setuptools' own"]


def test_building_without_tensorflow_names_the_command(target):
    with pytest.raises(
        tensorflow_dist.TensorFlowNotUsable,
        match=rf"TensorFlow must be 2\.15, .*, got none with headers in {target}; "
        r"run: .*pip install 'tensorflow-cpu>=2\.15,<2\.22'",
    ):
        tensorflow_dist.find()


def test_missing_compiler_is_named_with_the_remedy(target, tmp_path, monkeypatch):
    install(target, "tensorflow", "2.15.1")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(library.BuildError, match=r"got 'no-such-compiler'.*apt-get install g\+\+"):
        library.build(tmp_path, tmp_path, tensorflow_dist.find())


@pytest.mark.parametrize(
    "hook", [backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable]
)
def test_pip_is_told_what_is_missing_before_it_downloads_anything(target, monkeypatch, hook):
    monkeypatch.setattr(backend.build_meta, hook.__name__, lambda settings: [])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit, match=r"^rec_estimator: CXX must be a C\+\+17 compiler"):
        hook()
    monkeypatch.delenv("CXX")
    install(target, "tensorflow", "2.14.1")
    with pytest.raises(SystemExit, match=r"^rec_estimator: TensorFlow must be .*, got 2\.14\.1;"):
        hook()


def test_the_terminal_shows_how_long_a_build_takes_where_pip_hides_it(tmp_path):
    lines = ["compiling 20 C++ files, 2 at a time, about 100 s"]
    lines += [f"[{done}/20] ops/{done}.cc" for done in range(1, 21)]
    shown = []
    for line in lines:
        terminal = tmp_path / "terminal"
        terminal.write_text("")
        backend.tell_terminal(line, str(terminal))
        shown += terminal.read_text().split("\n")
    told = [line for line in shown if line.startswith("rec_estimator: ")]
    assert told[0] == "rec_estimator: compiling 20 C++ files, 2 at a time, about 100 s"
    assert told[1:] == [
        f"rec_estimator: {done} of 20 C++ files compiled" for done in range(2, 21, 2)
    ]
    backend.tell_terminal(lines[0], str(tmp_path / "no" / "terminal"))  # As in CI.


def install_with_library(folder, release):
    """Writes what a build needs of TensorFlow to ``folder``."""
    install(folder, "tensorflow-cpu", release)
    for header in library.TENSORFLOW_HEADERS:
        (folder / "tensorflow/include" / header).touch()
    # An empty library is enough for the linker.
    subprocess.run(
        [
            *("g++", "-shared", "-x", "c++", "/dev/null", "-o"),
            str(folder / "tensorflow/libtensorflow_framework.so.2"),
        ],
        check=True,
    )


@pytest.fixture
def small_tree(tmp_path, target, monkeypatch):
    """A source tree that builds fast: three sources, two headers and a fake TensorFlow."""
    install_with_library(target, "2.15.1")
    root = tmp_path / "tree"
    (root / "ops/core").mkdir(parents=True)
    (root / "_build").mkdir()
    (root / library.STANDARD_HEADERS).write_text("#include <cstddef>\n")
    (root / "ops/core/answer.h").write_text("int Answer();\n")
    (root / "ops/core/answer.cc").write_text("int Answer() { return 42; }\n")
    (root / "ops/answer.cc").write_text(
        '#include "ops/core/answer.h"\n#include "tensorflow/core/framework/op.h"\n'
        "int x = Answer();\n"
    )
    (root / "ops/other.cc").write_text("int y = 1;\n")
    monkeypatch.setenv("MAX_JOBS", "1")
    monkeypatch.delenv("CXX", raising=False)
    return root


def build_small(root, capsys, precompiles=False):
    """Returns what the build compiles, from its output."""
    tensorflow = tensorflow_dist.find()
    more = library.MoreFlags(precompiles=precompiles)
    built = library.build(root, root / "package", tensorflow, more)
    assert built == root / "package" / f"_rec_ops_{tensorflow.minor}.so"
    lines = capsys.readouterr().out.splitlines()
    return [line.partition("] ")[2] for line in lines if line.startswith("[")]


def later(path):
    """Sets the time of ``path`` to ten seconds from now; no file system is that coarse."""
    date = path.stat().st_mtime + 10
    os.utime(path, (date, date))


def test_only_what_changed_is_compiled(small_tree, capsys):
    assert sorted(build_small(small_tree, capsys)) == [
        *("ops/answer.cc", "ops/core/answer.cc", "ops/other.cc")
    ]
    built = (small_tree / "package/_rec_ops_2.15.so").stat()
    assert build_small(small_tree, capsys) == []
    left = (small_tree / "package/_rec_ops_2.15.so").stat()
    assert (left.st_ino, left.st_mtime_ns) == (built.st_ino, built.st_mtime_ns)
    later(small_tree / "ops/core/answer.h")
    assert build_small(small_tree, capsys) == ["ops/answer.cc"]


def test_sources_of_a_folder_are_compiled_as_one_after_the_header(small_tree, capsys):
    assert build_small(small_tree, capsys, precompiles=True) == [
        *("standard headers", "TensorFlow's headers"),
        *("ops/core/answer.cc", "ops/answer.cc and 1 more"),
    ]
    assert build_small(small_tree, capsys, precompiles=True) == []
    # The loops of the core must not depend on their neighbours.
    (small_tree / "ops/core/second.cc").write_text("int Second() { return 2; }\n")
    assert build_small(small_tree, capsys, precompiles=True) == ["ops/core/second.cc"]
    (small_tree / "ops/third.cc").write_text("int z = 1;\n")
    assert build_small(small_tree, capsys, precompiles=True) == ["ops/answer.cc and 2 more"]
    later(small_tree / "ops/other.cc")
    assert build_small(small_tree, capsys, precompiles=True) == ["ops/answer.cc and 2 more"]


def test_the_core_is_compiled_before_there_is_a_tensorflow(small_tree, capsys):
    library.build_core(small_tree)
    assert "ops/core/answer.cc" in capsys.readouterr().out
    assert build_small(small_tree, capsys, precompiles=True) == [
        *("TensorFlow's headers", "ops/answer.cc and 1 more")
    ]


def test_a_source_with_flags_of_its_own_keeps_them(small_tree, capsys, monkeypatch):
    # The compiler takes some flags from a precompiled header.
    source = "#ifndef OWN\n#error a flag is missing\n#endif\nint own;\n"
    (small_tree / "ops/core/own.cc").write_text(source)
    monkeypatch.setitem(library.SOURCE_FLAGS, "ops/core/own.cc", ("-DOWN",))
    steps = library._core_steps(small_tree, library.find_compiler(), library.MoreFlags())
    headers = {step.name: step.header for step in steps}
    assert headers["ops/core/own.cc"] is None
    assert headers["ops/core/answer.cc"] is not None
    library.build_core(small_tree)


def test_joined_sources_are_of_one_folder_and_together_not_too_long(small_tree, monkeypatch):
    (small_tree / "ops/table").mkdir()
    (small_tree / "ops/table/rows.cc").write_text("int rows;\n")
    names = ["ops/answer.cc", "ops/other.cc", "ops/table/rows.cc"]
    assert library._joined(small_tree, names) == [names[:2], names[2:]]
    monkeypatch.setattr(library, "JOINED_BYTES", 20)
    assert library._joined(small_tree, names) == [[name] for name in names]


def test_a_build_says_at_its_start_how_long_it_takes(small_tree, capsys):
    library.build(small_tree, small_tree / "package", tensorflow_dist.find())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "compiling 4 C++ files, 1 at a time, about 17 s"
    assert lines[1].startswith("[1/4] ")
    assert lines[-1].startswith("[4/4] ")


def test_core_is_compiled_once_for_all_releases(small_tree, target, capsys):
    build_small(small_tree, capsys)
    shutil.rmtree(target)
    install_with_library(target, "2.21.0")
    assert sorted(build_small(small_tree, capsys)) == ["ops/answer.cc", "ops/other.cc"]
    names = sorted(path.name for path in (small_tree / "package").iterdir())
    assert names == ["_rec_ops_2.15.so", "_rec_ops_2.21.so"]


def test_core_is_compiled_without_tensorflow(small_tree):
    (small_tree / "ops/core/answer.cc").write_text('#include "tensorflow/core/framework/op.h"\n')
    with pytest.raises(library.BuildError, match=r"tensorflow/core/framework/op\.h: No such file"):
        library.build(small_tree, small_tree / "package", tensorflow_dist.find())


def test_deleted_source_leaves_the_library(small_tree, capsys):
    build_small(small_tree, capsys)
    assert b"_Z5AddedIiEvT_" not in (small_tree / "package/_rec_ops_2.15.so").read_bytes()
    added = small_tree / "ops/added.cc"
    added.write_text(
        '#define EXPORTED __attribute__((visibility("default")))\n'
        "template <class T> EXPORTED void Added(T) {}\ntemplate void Added(int);\n"
    )
    assert build_small(small_tree, capsys) == ["ops/added.cc"]
    assert b"_Z5AddedIiEvT_" in (small_tree / "package/_rec_ops_2.15.so").read_bytes()
    added.unlink()
    assert build_small(small_tree, capsys) == []
    assert b"_Z5AddedIiEvT_" not in (small_tree / "package/_rec_ops_2.15.so").read_bytes()


def test_failed_compile_shows_command_and_message_and_keeps_the_old_library(small_tree, capsys):
    build_small(small_tree, capsys)
    (small_tree / "ops/other.cc").write_text("int y = undeclared;\n")
    later(small_tree / "ops/other.cc")
    with pytest.raises(
        library.BuildError, match=r"(?s)g\+\+ -std=c\+\+17 .*'?undeclared.*declared"
    ):
        library.build(small_tree, small_tree / "package", tensorflow_dist.find())
    assert (small_tree / "package/_rec_ops_2.15.so").is_file()


def test_symbol_that_tensorflow_lacks_fails_the_build(small_tree):
    (small_tree / "ops/other.cc").write_text("int Missing(); int y = Missing();\n")
    with pytest.raises(library.BuildError, match=r"(?s)-Wl,-z,defs .*undefined reference.*Missing"):
        library.build(small_tree, small_tree / "package", tensorflow_dist.find())


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_absurd_number_of_jobs_is_refused(small_tree, monkeypatch, jobs):
    monkeypatch.setenv("MAX_JOBS", jobs)
    with pytest.raises(
        library.BuildError, match=rf"MAX_JOBS must be an integer >= 1, got '{jobs}'"
    ):
        library.build(small_tree, small_tree / "package", tensorflow_dist.find())


def test_another_platform_is_refused(small_tree, monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    with pytest.raises(
        library.BuildError, match=r"must be Linux on x86-64, .* got linux on aarch64"
    ):
        library.build(small_tree, small_tree / "package", tensorflow_dist.find())


def test_row_updates_are_built_without_fused_multiply_add():
    flags = library.SOURCE_FLAGS["ops/core/math/row_update.cc"]
    assert {"-mno-fma", "-ffp-contract=off"} <= set(flags)
    assert (ROOT / "ops/core/math/row_update.cc").is_file()
    assert not [flag for flag in library.COMPILE_FLAGS if "native" in flag or "fast-math" in flag]


def load_ops_from(folder):
    """Imports a copy of _ops.py from ``folder``."""
    copy = shutil.copy(ROOT / "rec_estimator/_ops.py", folder)
    spec = importlib.util.spec_from_file_location("ops_under_test", copy)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_library_that_was_not_built_is_explained(tmp_path):
    package = tmp_path / "rec_estimator"
    package.mkdir()
    (tmp_path / "setup.py").touch()
    with pytest.raises(
        ImportError,
        match=rf"must be built before .* got no _rec_ops_<.*>\.so in {package}; "
        rf"run: cd {tmp_path} && .* setup.py build_ext --inplace",
    ):
        load_ops_from(package)


def test_missing_library_outside_a_checkout_names_an_install(tmp_path):
    with pytest.raises(ImportError, match=r"pip install --force-reinstall --no-deps <the source"):
        load_ops_from(tmp_path)


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose library was never built."""
    folder = tmp_path / "checkout"
    shutil.copytree(
        ROOT / "rec_estimator",
        folder / "rec_estimator",
        ignore=shutil.ignore_patterns("__pycache__", "_rec_ops_*.so"),
    )
    (folder / "setup.py").touch()
    return folder


def import_with_an_installed_package(folder):
    """Imports rec_estimator in a process that is started in a folder."""
    return subprocess.run(
        [sys.executable, "-c", "import rec_estimator"],
        cwd=folder,
        # After the working folder, as site-packages is.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.long
def test_an_unbuilt_checkout_in_front_of_an_installed_package_names_both_ways_out(checkout):
    done = import_with_an_installed_package(checkout)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "ImportError: rec_estimator's op library must be built before it is imported, got no "
        f"_rec_ops_<TensorFlow release>.so in {checkout / 'rec_estimator'}; run: cd {checkout} && "
        f"{sys.executable} setup.py build_ext --inplace; or, if rec_estimator is installed, start "
        f"Python in another folder than {checkout}"
    )
    elsewhere = import_with_an_installed_package(checkout.parent)
    assert elsewhere.returncode == 0, elsewhere.stderr


@pytest.mark.long
def test_the_self_check_passes_and_names_versions():
    done = subprocess.run([sys.executable, "-m", "rec_estimator"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"rec_estimator   {rec_estimator.__version__}, ")
    assert f"TensorFlow      {tf.__version__}" in lines
    checks = [line for line in lines if line.endswith(" s)")]
    assert len(checks) == 2 and all(" ok (" in line for line in checks)


@pytest.mark.long
def test_the_self_check_of_an_unbuilt_checkout_says_what_to_run(checkout):
    done = subprocess.run(
        [sys.executable, "-m", "rec_estimator"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "setup.py build_ext --inplace" in done.stderr
    tells_its_module = sys.version_info >= (3, 10)  # Before, importing the package fails first.
    assert ("library         none" in done.stdout) == tells_its_module
    assert ("Traceback" not in done.stderr) == tells_its_module


# Python 3.9 does not tell which module it runs.
COMMANDS = ["rec-estimator", *(["-m"] if sys.version_info >= (3, 10) else [])]


@pytest.mark.each_value
@pytest.mark.long
@pytest.mark.parametrize("other", [None, "2.9"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_reads_checkpoints_without_a_library_for_this_tensorflow(
    checkout, command, other
):
    if other is not None:
        (checkout / "rec_estimator" / library.library_name(other)).touch()
    checkpoint = checkout / "model"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = rec_estimator.get_embedding_variable("user", 2)
        session.run(tf.compat.v1.global_variables_initializer())
        rec_estimator.Saver([table]).save(session, str(checkpoint))
    script = checkout / "rec-estimator"  # As pip makes it.
    script.write_text("from rec_estimator.tools.command import main\nexit(main())\n")
    arguments = [script] if command == "rec-estimator" else ["-m", "rec_estimator.tools.command"]
    done = subprocess.run(
        [sys.executable, *arguments, "inspect", checkpoint],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "user: dim 2, int64 keys" in done.stdout


def test_library_that_cannot_be_loaded_is_explained(tmp_path):
    (tmp_path / library.library_name(TENSORFLOW.minor)).write_bytes(b"not a library")
    with pytest.raises(
        ImportError, match=r"TensorFlow .* can load, got: .*(header|short).*; build"
    ):
        load_ops_from(tmp_path)


def test_library_of_another_release_is_refused_with_both_versions_and_the_command(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "version_info", (3, 12, 0))
    for minor in ("2.98", "2.99"):
        (tmp_path / library.library_name(minor)).touch()
    with pytest.raises(ImportError) as error:
        load_ops_from(tmp_path)
    assert str(error.value) == (
        "TensorFlow must be 2.98 or 2.99, for which rec_estimator was built, "
        f"got {tf.__version__}; "
        f"run: {sys.executable} -m pip install {TENSORFLOW.distribution}==2.99.*; "
        f"or build rec_estimator for {TENSORFLOW.minor}, run: {sys.executable} -m pip install "
        "--force-reinstall --no-deps <the source folder>"
    )


@pytest.mark.parametrize(
    "built_for, python, remedy",
    [
        (
            ["2.15"],
            12,
            "TensorFlow 2.15 has wheels for Python 3.9 to 3.11, and this is Python 3.12",
        ),
        (["2.21"], 9, "TensorFlow 2.21 has wheels for Python 3.10 to 3.13, and this is Python 3.9"),
        (["2.16", "2.21"], 9, r"pip install .*==2\.16\.\*"),
        (["2.15", "2.20"], 13, r"pip install .*==2\.20\.\*"),
    ],
)
def test_a_tensorflow_is_advised_that_has_a_wheel_for_this_python(
    tmp_path, monkeypatch, built_for, python, remedy
):
    for minor in built_for:
        (tmp_path / library.library_name(minor)).touch()
    monkeypatch.setattr("tensorflow.compat.v1.__version__", "2.14.0")
    monkeypatch.setattr(sys, "version_info", (3, python, 0))
    with pytest.raises(ImportError, match=f"got 2.14.0; (run: .*)?{remedy}"):
        load_ops_from(tmp_path)


def test_missing_tensorflow_is_named_with_the_command(tmp_path):
    (tmp_path / library.library_name("2.20")).touch()
    program = shutil.copy(ROOT / "rec_estimator/_ops.py", tmp_path)
    # -S: without site-packages.
    done = subprocess.run(
        [sys.executable, "-S", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: TensorFlow must be 2.20, for which rec_estimator was built, got none; "
        f"run: {sys.executable} -m pip install tensorflow-cpu==2.20.*"
    )


def test_versions_agree():
    version = rec_estimator.__version__
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation
    heading = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).group(1)
    is_released = "\ndate-released: " in citation
    assert heading == (version if is_released else f"{version} (unreleased)")


def test_the_changelog_has_few_and_short_lines_for_a_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    too_wide = [line for line in text.splitlines() if len(line) > 100]
    assert too_wide == [], "a line of the changelog has at most 100 characters"
    for version in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, *lines = version.splitlines()
        changes = [line for line in lines if line and not line.startswith("#")]
        assert len(changes) <= 45, f"{heading}: name a feature once; say its details in a page"


def tracked_files():
    """Paths of all files that git knows and that are there."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.fixture
def source_copy(tmp_path):
    """The files that git knows, in an empty folder."""
    copy = tmp_path / "source"
    for name in tracked_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.mark.long
def test_source_distribution_has_the_files_that_git_knows(source_copy):
    # What the build writes is not in it.
    (source_copy / "rec_estimator/_rec_ops_2.15.so").touch()
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "sdist"],
        cwd=source_copy,
        check=True,
        capture_output=True,
    )
    (archive,) = (source_copy / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {each.name.partition("/")[2] for each in file if each.isfile()}
    # Setuptools' own.
    names = {name for name in names if ".egg-info/" not in name} - {"PKG-INFO"}
    assert sorted(tracked_files() - names) == [], "add the files to MANIFEST.in"
    assert sorted(names - tracked_files()) == [], "exclude the files in MANIFEST.in"


@pytest.mark.long
def test_wheel_has_every_package_of_rec_estimator_and_no_other(source_copy):
    names = subprocess.run(
        [
            *(sys.executable, "-c"),
            "from setuptools import Distribution; d = Distribution(); d.parse_config_files(); "
            "print(*d.packages)",
        ],
        cwd=source_copy,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    folders = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for path in ROOT.glob("rec_estimator/**/*.py")
    }
    assert "rec_estimator.checkpoint.format" in folders
    assert sorted(names) == sorted(folders), "a folder with modules needs an __init__.py"


@pytest.mark.long
def test_libraries_that_a_checkout_has_stay_out_of_its_wheel(source_copy):
    (source_copy / "rec_estimator" / library.library_name("2.9")).touch()
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib=built"],
        cwd=source_copy,
        check=True,
        capture_output=True,
    )
    package = source_copy / "built" / "rec_estimator"
    assert (package / "py.typed").is_file() and not list(package.glob("*.so"))


@pytest.mark.long
def test_the_name_of_a_wheel_tells_for_which_tensorflow_it_is(source_copy):
    for options, build in (([], f"{TENSORFLOW.minor}tf"), (["--every-release"], "")):
        folder = source_copy / f"dist{len(options)}"
        # An empty file will do: its name does not depend on what is in it.
        subprocess.run(
            [
                *(sys.executable, "setup.py", "--quiet", "bdist_wheel", "--skip-build"),
                *(f"--dist-dir={folder}", *options),
            ],
            cwd=source_copy,
            check=True,
            capture_output=True,
        )
        (wheel,) = folder.iterdir()
        name, version, number, tags = packaging.utils.parse_wheel_filename(wheel.name)
        assert (name, str(version)) == ("rec-estimator", rec_estimator.__version__)
        assert "".join(map(str, number)) == build
        assert {(tag.interpreter, tag.abi) for tag in tags} == {("py3", "none")}


@pytest.mark.slow
def test_installed_in_a_fresh_environment_it_trains_a_table(source_copy, tmp_path):
    environment = tmp_path / "venv"
    python = str(environment / "bin/python")
    program = (
        "import rec_estimator as rec, tensorflow.compat.v1 as tf\n"
        "with tf.Graph().as_default(), tf.Session() as session:\n"
        "    table = rec.get_embedding_variable('t', embedding_dim=4)\n"
        "    rows = rec.embedding_lookup(table, tf.constant([3, -1], tf.int64))\n"
        "    train = rec.optimizers.AdagradOptimizer(.1).minimize(tf.reduce_sum(rows))\n"
        "    session.run(tf.global_variables_initializer())\n"
        "    session.run(train)\n"
        "    print(session.run(table.size()), rec.__file__)\n"
    )

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", str(environment))
    run(python, "-m", "pip", "install", f"{source_copy}[cpu]")
    size, folder = run(python, "-c", program).split()
    assert (int(size), pathlib.Path(folder).parents[1].name) == (2, "site-packages")
    run(python, "-m", "pip", "check")
    shown = run(str(environment / "bin/rec-estimator"), "--version")
    assert shown == f"rec-estimator {rec_estimator.__version__}\n"
    # Some releases of pip write the name as tensorflow_cpu.
    listed = run(python, "-m", "pip", "list", "--format=freeze")
    names = listed.lower().replace("_", "-").splitlines()
    (installed,) = [name for name in names if name.startswith(("tensorflow=", "tensorflow-cpu="))]
    name, release = installed.split("==")
    assert (name, tensorflow_dist.minor(release) in tensorflow_dist.MINORS) == (
        "tensorflow-cpu",
        True,
    )

    # The editable install finds TensorFlow, so its build environment gets no copy.
    log = run(python, "-m", "pip", "install", "-v", "-e", str(source_copy))
    assert "tensorflow_cpu" not in log
    size, folder = run(python, "-c", program).split()
    assert (int(size), pathlib.Path(folder).parents[1]) == (2, source_copy)

    run(python, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), str(source_copy))
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith(f"-{tensorflow_dist.minor(release)}tf-py3-none-linux_x86_64.whl")
    built = f"rec_estimator/{library.library_name(tensorflow_dist.minor(release))}"
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (metadata,) = (file.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {built, "rec_estimator/py.typed"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"rec_estimator", f"rec_estimator-{rec_estimator.__version__}.dist-info"}
    assert "\nAuthor: rec_estimator developers\n" in metadata
    assert "\nProject-URL: Changelog, https://" in metadata


def wheel_for(minor):
    """The wheel in dist/ that has the library for a release of TensorFlow; None without one."""
    for path in (ROOT / "dist").glob(f"rec_estimator-{rec_estimator.__version__}-*.whl"):
        with zipfile.ZipFile(path) as file:
            if f"rec_estimator/{library.library_name(minor)}" in file.namelist():
                return path
    return None


def pairs_with_a_wheel():
    """The oldest and the newest TensorFlow, with a Python, for which dist/ has a wheel."""
    return [pair for pair in ("2.15/3.11", "2.21/3.13") if wheel_for(pair.partition("/")[0])]


@pytest.mark.slow
@pytest.mark.parametrize("pair", pairs_with_a_wheel())  # `make test-wheel` builds one for both.
def test_the_wheel_in_dist_passes_the_self_check_in_a_fresh_environment(pair, tmp_path):
    minor, version = pair.split("/")
    wheel, base = wheel_for(minor), test_matrix.interpreter(version)
    assert base is not None, f"needs Python {version}"
    environment = tmp_path / "venv"
    # No compiler, no checkout.
    variables = {**os.environ, "PATH": str(environment / "bin")}
    variables.pop("PYTHONPATH", None)

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        run(base, "-m", "venv", str(environment))
        run("python", "-m", "pip", "install", f"tensorflow-cpu=={minor}.*", str(wheel))
        lines = run("python", "-m", "rec_estimator").splitlines()
        shown = run("rec-estimator", "--version")
    finally:
        shutil.rmtree(environment, ignore_errors=True)  # 1.5 GB.
    version_line, *_ = [line for line in lines if line.startswith("TensorFlow ")]
    assert version_line.split()[1].startswith(f"{minor}.")
    checks = [line for line in lines if line.endswith(" s)")]
    assert len(checks) == 2 and all(" ok (" in line for line in checks)
    assert shown == f"rec-estimator {rec_estimator.__version__}\n"
