# SPDX-License-Identifier: Apache-2.0
"""Builds rec_estimator/_rec_ops_<minor>.so: compiles changed source files in parallel, then links.

There is one library for each minor release of TensorFlow, such as _rec_ops_2.15.so. Object files
stay in build/objects/<hash of compiler, flags and TensorFlow>/; those of ops/core, which is free of
TensorFlow, serve all releases. A changed flag compiles everything again. Each of these folders has
a lock. A library is replaced atomically: a process that has loaded it keeps the old one.

Most of the time goes into TensorFlow's headers: for each object file, g++ takes 4 s to parse them
and 1.5 s to instantiate 6,000 of their inline functions. So they are precompiled, which saves the
parsing, and several sources of a folder are compiled as one, which saves the instantiations. The
standard headers of ops/core are precompiled, too.

    python _build/library.py        # compiles ops/core alone, for which no TensorFlow is needed
"""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, Iterator, List, Optional, Sequence

import tensorflow_dist

# Sources that include neither TensorFlow nor a library that it contains.
CORE = "ops/core/"

COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    # TensorFlow's wheels require AVX. Never -march=native: an installed library is copied to other
    # machines, and row updates would no longer have TensorFlow's bits.
    "-mavx",
    # A contracted multiply-add rounds once instead of twice. Code that is dispatched to AVX-512 at
    # run time would contract, so the same program would give other bits on another CPU.
    "-ffp-contract=off",
    "-DNDEBUG",
    "-fPIC",
    # Another op library in the process may have a class of the same name.
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    # The value of TensorFlow's wheels; another changes the layout of its classes.
    "-D_GLIBCXX_USE_CXX11_ABI=1",
)

# For the sources outside of ops/core.
TENSORFLOW_FLAGS = (
    # As for the ABI above.
    "-DEIGEN_MAX_ALIGN_BYTES=64",
    # TensorFlow 2.21 deprecates names that TensorFlow 2.15 has no other name for.
    "-Wno-deprecated-declarations",
)

# Row updates must give the bits of TensorFlow's kernels, built without fused multiply-add. These
# flags come last, so they win over CXX and COMPILE_FLAGS.
SOURCE_FLAGS: Dict[str, Sequence[str]] = {
    "ops/core/math/row_update.cc": ("-mno-fma", "-ffp-contract=off"),
    # Matrix products are faster with fused multiply-add.
    "ops/core/math/segment_product.cc": ("-ffp-contract=fast",),
}

# -z defs: a symbol that TensorFlow does not export is a link error instead of an import error.
LINK_FLAGS = ("-shared", "-Wl,-z,defs")

# Sources of one folder outside of ops/core are joined up to this number of bytes. More would save
# little, but take longer after a change of one source. Sources of ops/core are never joined: what
# g++ inlines in their loops must not depend on their neighbours.
JOINED_BYTES = 40_000

# The headers that most kernels include.
TENSORFLOW_HEADERS = (
    "tensorflow/core/framework/op.h",
    "tensorflow/core/framework/op_kernel.h",
    "tensorflow/core/framework/resource_mgr.h",
    "tensorflow/core/framework/shape_inference.h",
)

# The headers that most sources of ops/core include, one `#include` a line. tests/ops/core/Makefile
# precompiles them, too.
STANDARD_HEADERS = "_build/standard_headers.h"

# For the estimate of the time: what g++ compiles on one core, with precompiled headers.
BYTES_PER_SECOND = 4_500
TENSORFLOW_SECONDS = 15
STANDARD_SECONDS = 2

# g++ needs up to 0.9 GB for joined sources; more processes could exhaust a small machine.
MAX_JOBS = 4


# Gets each line of progress. `pip install` hides what is printed, so _build/backend.py adds one.
listeners: List[Callable[[str], None]] = [functools.partial(print, flush=True)]


class BuildError(Exception):
    """The library could not be built. The message has the command, its output and the remedy."""


@dataclasses.dataclass(frozen=True)
class MoreFlags:
    """Flags besides those of every library. Each set of flags has object files of its own.

    Attributes:
      all: For all sources, and for the linker.
      tensorflow: For the sources outside of ops/core.
      precompiles: Whether headers are precompiled, and the sources outside of ops/core joined.
        These then compile about four times as fast, and it takes 400 MB. False compiles each
        source alone, which shows if it relies on a header that it does not include.
    """

    all: Sequence[str] = ()
    tensorflow: Sequence[str] = ()
    precompiles: bool = True


def library_name(minor: str) -> str:
    """The file name of the library for a minor release of TensorFlow."""
    return f"_rec_ops_{minor}.so"


def build(
    root: pathlib.Path,
    package: pathlib.Path,
    tensorflow: tensorflow_dist.TensorFlowDist,
    more: MoreFlags = MoreFlags(),
    core: Sequence[pathlib.Path] = (),
) -> pathlib.Path:
    """Updates the library for ``tensorflow`` in the folder ``package``.

    Args:
      root: The source tree, with ``ops/``; objects go to its ``build/``.
      package: Folder to write to: ``rec_estimator/``, or its copy in a wheel.
      tensorflow: The TensorFlow to build against.
      more: Flags of this library alone.
      core: The object files of ops/core if they are compiled already.

    Returns:
      The path of the library.

    Raises:
      BuildError: There is no compiler, or it fails.
    """
    compiler = find_compiler()
    objects = _objects(
        root,
        compiler,
        more,
        (*TENSORFLOW_FLAGS, *more.tensorflow),
        tensorflow.distribution,
        tensorflow.release,
    )
    with _lock(_objects(root, compiler, more)), _lock(objects):
        includes = ("-isystem", str(tensorflow.folder / "include"))
        flags = (*more.all, *TENSORFLOW_FLAGS, *more.tensorflow, *includes)
        steps = [
            *([] if core else _core_steps(root, compiler, more)),
            *_tensorflow_steps(root, objects, flags, more.precompiles),
        ]
        _compile(root, steps, compiler)
        files = [*core, *(step.target for step in steps)]
        linked = _link(files, objects, [*compiler, *more.all], tensorflow)
        package.mkdir(parents=True, exist_ok=True)
        library = package / library_name(tensorflow.minor)
        _replace(library, linked.read_bytes())
    return library


def build_core(root: pathlib.Path) -> None:
    """Compiles ops/core, so that build() finds its objects.

    Raises:
      BuildError: There is no compiler, or it fails.
    """
    compiler = find_compiler()
    with _lock(_objects(root, compiler, MoreFlags())):
        _compile(root, list(_core_steps(root, compiler, MoreFlags())), compiler)


def find_compiler() -> List[str]:
    """The command of the compiler: CXX, else g++.

    Raises:
      BuildError: This machine cannot run the kernels, or has no compiler.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise BuildError(
            "platform must be Linux on x86-64, which the kernels are written for, got "
            f"{sys.platform} on {platform.machine()}; use a container or a virtual machine"
        )
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(compiler[0]) is None:
        raise _no_compiler(compiler[0])
    return compiler


@dataclasses.dataclass(frozen=True)
class _Step:
    """The compilation of one file.

    Attributes:
      name: What is compiled, for people.
      source: The file: a source, a file that includes several, or a header to precompile.
      seconds: The time that it takes, about.
      target: The file to write.
      flags: Flags of this file besides COMPILE_FLAGS.
      header: What must be precompiled before.
    """

    name: str
    source: pathlib.Path
    seconds: float
    target: pathlib.Path
    flags: Sequence[str]
    header: Optional["_Step"] = None


def _objects(
    root: pathlib.Path, compiler: Sequence[str], more: MoreFlags, *others: object
) -> pathlib.Path:
    """The folder of the object files that are compiled in one way."""
    flags = (COMPILE_FLAGS, sorted(SOURCE_FLAGS.items()), LINK_FLAGS, more.all, more.precompiles)
    return root / "build/objects" / _hash(_compiler_version(compiler), flags, *others)


def _core_steps(root: pathlib.Path, compiler: Sequence[str], more: MoreFlags) -> Iterator[_Step]:
    objects = _objects(root, compiler, more)
    header = None
    if more.precompiles:
        includes = (root / STANDARD_HEADERS).read_text()
        header = _header("standard headers", objects, includes, STANDARD_SECONDS, more.all)
    flags = more.all if header is None else (*more.all, "-include", str(header.source))
    for name in _sources(root, f"{CORE}**/*.cc"):
        target, seconds = (objects / name).with_suffix(".o"), _seconds(root, [name])
        if name in SOURCE_FLAGS:
            # A precompiled header brings the flags along that it was compiled with.
            yield _Step(name, root / name, seconds, target, (*more.all, *SOURCE_FLAGS[name]))
        else:
            yield _Step(name, root / name, seconds, target, flags, header)


def _tensorflow_steps(
    root: pathlib.Path, objects: pathlib.Path, flags: Sequence[str], precompiles: bool
) -> Iterator[_Step]:
    """Joins sources if headers are precompiled."""
    sources = [name for name in _sources(root, "ops/**/*.cc") if not name.startswith(CORE)]
    header = None
    if precompiles:
        includes = "".join(f"#include <{name}>\n" for name in TENSORFLOW_HEADERS)
        header = _header("TensorFlow's headers", objects, includes, TENSORFLOW_SECONDS, flags)
    for names in _joined(root, sources) if header else [[name] for name in sources]:
        name, source = names[0], root / names[0]
        if len(names) > 1:
            name = f"{names[0]} and {len(names) - 1} more"
            source = (objects / names[0]).with_suffix(".joined.cc")
            _write(source, "".join(f'#include "{each}"\n' for each in names))
        target = objects / names[0].replace(".cc", ".joined.o" if len(names) > 1 else ".o")
        yield _Step(name, source, _seconds(root, names), target, flags, header)


def _sources(root: pathlib.Path, pattern: str) -> List[str]:
    """The sorted paths of sources from the root, with "/"."""
    sources = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
    if not sources:
        raise BuildError(f"{root / 'ops'} has no C++ sources; clone the repository again")
    return sources


def _joined(root: pathlib.Path, sources: Sequence[str]) -> List[List[str]]:
    """Groups of sources that are compiled as one: of one folder, up to JOINED_BYTES."""
    groups: List[List[str]] = []
    size = 0
    for source in sources:
        own = (root / source).stat().st_size
        size += own
        if groups and size <= JOINED_BYTES and _folder(groups[-1][0]) == _folder(source):
            groups[-1].append(source)
        else:
            groups.append([source])
            size = own
    return groups


def _folder(source: str) -> str:
    return source.rpartition("/")[0]


def _seconds(root: pathlib.Path, sources: Sequence[str]) -> float:
    return sum((root / each).stat().st_size for each in sources) / BYTES_PER_SECOND


def _header(
    name: str, folder: pathlib.Path, includes: str, seconds: float, flags: Sequence[str]
) -> _Step:
    """The header beside which the compiler finds its precompiled form."""
    header = folder / "precompiled.h"
    _write(header, includes)
    target = folder / "precompiled.h.gch"
    return _Step(name, header, seconds, target, (*flags, "-x", "c++-header"))


def _write(path: pathlib.Path, content: str) -> None:
    """Writes a file that the compiler reads, unless it has this content."""
    if not path.is_file() or path.read_text() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _compile(root: pathlib.Path, steps: Sequence[_Step], compiler: Sequence[str]) -> None:
    # What takes longest comes first, but before that ops/core, which does not wait for TensorFlow's
    # headers.
    stale = sorted(
        (step for step in steps if _is_stale(root, step)),
        key=lambda step: (step.header.seconds if step.header else 0, -step.seconds),
    )
    needed = dict.fromkeys(step.header for step in stale if step.header)
    headers = [header for header in needed if _is_stale(root, header)]
    _announce([*headers, *stale], _jobs())
    with concurrent.futures.ThreadPoolExecutor(_jobs()) as pool:
        precompiled = {pool.submit(_compile_one, root, each, compiler): each for each in headers}

        def compile_after_header(step: _Step) -> str:
            for future, header in precompiled.items():
                if header is step.header:
                    future.result()
            return _compile_one(root, step, compiler)

        running = {
            **precompiled,
            **{pool.submit(compile_after_header, step): step for step in stale},
        }
        try:
            for done, future in enumerate(concurrent.futures.as_completed(running), 1):
                warnings = future.result()
                _tell(f"[{done}/{len(running)}] {running[future].name}")
                if warnings.strip():
                    _tell(warnings)
        except BaseException:
            for future in running:
                future.cancel()
            raise


def _announce(steps: Sequence[_Step], jobs: int) -> None:
    if steps:
        seconds = sum(step.seconds for step in steps) / jobs
        time_needed = f", about {seconds:.0f} s" if seconds > 5 else ""
        _tell(f"compiling {len(steps)} C++ files, {jobs} at a time{time_needed}")


def _tell(line: str) -> None:
    for listener in listeners:
        listener(line)


def _compile_one(root: pathlib.Path, step: _Step, compiler: Sequence[str]) -> str:
    """Returns the compiler's warnings."""
    step.target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = step.target.with_suffix(".tmp.o")
    command = [
        *compiler,
        *COMPILE_FLAGS,
        *step.flags,
        # Relative to root, so that messages and dependency files are short.
        "-I.",
        # -MMD lists our headers only; the hash in the folder's name covers TensorFlow's.
        *("-MMD", "-MF", str(step.target.with_suffix(".d")), "-MT", "object"),
        *("-c", str(step.source.relative_to(root)), "-o", str(unfinished)),
    ]
    started = time.time()
    output = _run(command, root)
    # The time of the start: a source that is saved during its compilation is compiled again.
    os.utime(unfinished, (started, started))
    os.replace(unfinished, step.target)
    return output


def _is_stale(root: pathlib.Path, step: _Step) -> bool:
    if not step.target.is_file():
        return True
    try:
        rule = step.target.with_suffix(".d").read_text().replace("\\\n", " ").partition(":")[2]
        inputs = [step.source, *(root / name for name in shlex.split(rule))]
        newest = max(path.stat().st_mtime for path in inputs)
    except FileNotFoundError:
        return True  # A header was renamed or removed.
    return newest >= step.target.stat().st_mtime


def _link(
    files: Sequence[pathlib.Path],
    objects: pathlib.Path,
    compiler: Sequence[str],
    tensorflow: tensorflow_dist.TensorFlowDist,
) -> pathlib.Path:
    library, inputs = objects / library_name(tensorflow.minor), objects / "linked"
    names = "\n".join(f"{file} {file.stat().st_mtime_ns}" for file in files)
    if library.is_file() and inputs.is_file() and inputs.read_text() == names:
        return library
    inputs.unlink(missing_ok=True)
    _run(
        [
            *compiler,
            *LINK_FLAGS,
            *("-o", str(library)),
            *map(str, files),
            f"-L{tensorflow.folder}",
            "-l:libtensorflow_framework.so.2",
        ],
        objects,
    )
    inputs.write_text(names)
    return library


def _run(command: Sequence[str], folder: pathlib.Path) -> str:
    # With C.UTF-8, compiler messages are in English in every locale.
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:
        raise _no_compiler(command[0]) from error
    if done.returncode == 0:
        return done.stdout
    remedy = ""
    if done.returncode < 0 or "Killed" in done.stdout:
        remedy = "\nThe compiler was killed, probably for lack of memory; set MAX_JOBS=1."
    raise BuildError(
        f"a build command failed with status {done.returncode}:\n"
        f"  (in {folder}) {shlex.join(command)}\n{done.stdout}{remedy}"
    )


def _compiler_version(compiler: Sequence[str]) -> str:
    return _run([*compiler, "--version"], pathlib.Path.cwd()).partition("\n")[0]


def _no_compiler(name: str) -> BuildError:
    return BuildError(
        f"CXX must be a C++17 compiler, got {name!r}, which cannot be run; install one "
        "(Debian and Ubuntu: apt-get install g++) or set CXX to its name"
    )


def _jobs() -> int:
    text: Optional[str] = os.environ.get("MAX_JOBS")
    if not text:
        return min(os.cpu_count() or 1, MAX_JOBS)
    if not re.fullmatch(r"[1-9]\d*", text):
        raise BuildError(f"MAX_JOBS must be an integer >= 1, got {text!r}")
    return int(text)


@contextlib.contextmanager
def _lock(folder: pathlib.Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell("waiting for another build of the same files")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: pathlib.Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        # mkstemp creates files that only their owner can read.
        os.chmod(unfinished, 0o755 if path.suffix == ".so" else 0o644)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


if __name__ == "__main__":
    try:
        build_core(pathlib.Path(__file__).resolve().parent.parent)
    except BuildError as error:
        sys.exit(str(error))
