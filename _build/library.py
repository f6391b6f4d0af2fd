# SPDX-License-Identifier: Apache-2.0
"""Builds rec_estimator/_rec_ops.so: compiles changed source files in parallel, then links.

Object files stay in build/objects/<hash of compiler, flags and TensorFlow>/. Environments with the
same TensorFlow share them; a changed flag compiles everything again. A lock serializes builds of
one checkout. The library is replaced atomically: a process that has loaded it keeps the old one.
"""

import concurrent.futures
import contextlib
import fcntl
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
from typing import Dict, Iterator, List, Optional, Sequence

import tensorflow_dist

LIBRARY = "_rec_ops.so"
BUILD_INFO = "_build_info.py"

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
    # The values of TensorFlow's wheels; others change the layout of its classes.
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-DEIGEN_MAX_ALIGN_BYTES=64",
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

# g++ needs up to 0.7 GB for a kernel; more processes could exhaust the memory of a small machine.
MAX_JOBS = 4


class BuildError(Exception):
    """The library could not be built. The message has the command, its output and the remedy."""


def build(root: pathlib.Path, package: pathlib.Path) -> pathlib.Path:
    """Updates the library and its build info in the folder ``package``.

    Args:
      root: The source tree, with ``ops/``; objects go to its ``build/``.
      package: Folder to write to: ``rec_estimator/``, or its copy in a wheel.

    Returns:
      The path of the library.

    Raises:
      BuildError: There is no compiler, or it fails.
      tensorflow_dist.TensorFlowNotUsable: There is no usable TensorFlow.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise BuildError(
            "platform must be Linux on x86-64, which the kernels are written for, got "
            f"{sys.platform} on {platform.machine()}; use a container or a virtual machine"
        )
    tensorflow = tensorflow_dist.find()
    if tensorflow is None:
        raise tensorflow_dist.TensorFlowNotUsable(
            f"TensorFlow must be {tensorflow_dist.SERIES}.x, with its headers, got none in "
            f"{', '.join(map(str, tensorflow_dist.build_folders()))}; run: {sys.executable} -m pip "
            f"install '{tensorflow_dist.DEFAULT_DISTRIBUTION}{tensorflow_dist.SUPPORTED}'"
        )
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    key = hashlib.sha256(
        repr(
            (
                _compiler_version(compiler),
                COMPILE_FLAGS,
                sorted(SOURCE_FLAGS.items()),
                LINK_FLAGS,
                tensorflow.distribution,
                tensorflow.release,
            )
        ).encode()
    ).hexdigest()[:12]
    with _lock(root / "build"):
        objects = root / "build" / "objects" / key
        sources = sorted(root.glob("ops/**/*.cc"))
        if not sources:
            raise BuildError(f"{root / 'ops'} must hold the C++ sources, got none; clone it again")
        compiled = _compile(root, sources, objects, compiler, tensorflow)
        linked = _link(compiled, objects, compiler, tensorflow)
        package.mkdir(parents=True, exist_ok=True)
        _replace(package / LIBRARY, linked.read_bytes())
        _replace(package / BUILD_INFO, _build_info(tensorflow).encode())
    return package / LIBRARY


def _compile(
    root: pathlib.Path,
    sources: Sequence[pathlib.Path],
    objects: pathlib.Path,
    compiler: Sequence[str],
    tensorflow: tensorflow_dist.TensorFlowDist,
) -> List[pathlib.Path]:
    targets = [objects / source.relative_to(root).with_suffix(".o") for source in sources]
    stale = [pair for pair in zip(sources, targets) if _is_stale(root, *pair)]

    def compile_one(source: pathlib.Path, target: pathlib.Path) -> str:
        target.parent.mkdir(parents=True, exist_ok=True)
        name = source.relative_to(root).as_posix()
        unfinished = target.with_suffix(".tmp.o")
        command = [
            *compiler,
            *COMPILE_FLAGS,
            *SOURCE_FLAGS.get(name, ()),
            # Relative to root, so that messages and dependency files are short.
            "-I.",
            "-isystem",
            str(tensorflow.folder / "include"),
            # -MMD lists our headers only; the hash in the folder's name covers TensorFlow's.
            *("-MMD", "-MF", str(target.with_suffix(".d")), "-MT", "object"),
            *("-c", name, "-o", str(unfinished)),
        ]
        started = time.time()
        output = _run(command, root)
        # The time of the start: a source that is saved during its compilation is compiled again.
        os.utime(unfinished, (started, started))
        os.replace(unfinished, target)
        return output

    jobs = _jobs()
    if stale:
        print(f"compiling {len(stale)} of {len(sources)} C++ sources, {jobs} at a time", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(compile_one, *pair): pair[0] for pair in stale}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(running), 1):
                warnings = future.result()
                print(f"[{done}/{len(stale)}] {running[future].relative_to(root)}", flush=True)
                if warnings.strip():
                    print(warnings, flush=True)
        except BaseException:
            for future in running:
                future.cancel()
            raise
    return targets


def _is_stale(root: pathlib.Path, source: pathlib.Path, target: pathlib.Path) -> bool:
    if not target.is_file():
        return True
    try:
        rule = target.with_suffix(".d").read_text().replace("\\\n", " ").partition(":")[2]
        newest = max(os.stat(root / name).st_mtime for name in [str(source), *shlex.split(rule)])
    except FileNotFoundError:
        return True  # A header was renamed or removed.
    return newest >= target.stat().st_mtime


def _link(
    compiled: Sequence[pathlib.Path],
    objects: pathlib.Path,
    compiler: Sequence[str],
    tensorflow: tensorflow_dist.TensorFlowDist,
) -> pathlib.Path:
    library, inputs = objects / LIBRARY, objects / "linked"
    names = "\n".join(f"{path.relative_to(objects)} {path.stat().st_mtime_ns}" for path in compiled)
    if library.is_file() and inputs.is_file() and inputs.read_text() == names:
        return library
    inputs.unlink(missing_ok=True)
    _run(
        [
            *compiler,
            *LINK_FLAGS,
            *("-o", str(library)),
            *map(str, compiled),
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
    if shutil.which(compiler[0]) is None:
        raise _no_compiler(compiler[0])
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
            print("waiting for another build of this checkout", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_info(tensorflow: tensorflow_dist.TensorFlowDist) -> str:
    return (
        f'"""Written when {LIBRARY} is built: the TensorFlow that it was built against."""\n\n'
        f'TENSORFLOW_DISTRIBUTION = "{tensorflow.distribution}"\n'
        f'TENSORFLOW_RELEASE = "{tensorflow.release}"\n'
        f'TENSORFLOW_VERSION = "{tensorflow.version}"\n'
    )


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
