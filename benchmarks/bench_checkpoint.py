# SPDX-License-Identifier: Apache-2.0
"""Measures the speed of a save and a restore against a plain file, and their memory.

    python -m benchmarks.bench_checkpoint [--rows 4000000] [--rounds 9] [--output FILE.json]

A table of 4 M rows of 32 floats with Adam's two slots, saved and restored by rec_estimator.Saver,
against a file of as many bytes as the checkpoint, written and read in chunks of 8 MiB on the same
disk. The rounds alternate between them (rounds.py says how). Both call fsync after writing. Before
each read, both ask the system to drop the files from its cache; "cached" is the same without that.
A restore is into a new session, as when a training resumes; "over rows" is one into a table with
rows, before which all checksums are compared. The plain file is read into the same 8 MiB again and
again, which stay in the caches of the CPU. "cached, into memory" is against a read, on two threads,
into memory as large as the file that the process has used before, as the table's has been.

Memory: in a process of its own, the peak of the resident memory during the call, over the resident
memory before a save, and over that before plus the table's own after a restore. At most 64 MiB and
1 % of the table is promised.

Columns: MB/s, median; ratio, that of the plain file's seconds over the Saver's, median over the
rounds with the quartiles.
"""

from __future__ import annotations

import concurrent.futures
import mmap
import os
import statistics
import tempfile
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

import numpy as np

from benchmarks import criteo_ids, result_file
from benchmarks import rounds as rounds_lib

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec


DIM = 32
CHUNK = 8 << 20  # bytes
FILL = 200_000  # rows a step
MIB = 1 << 20


def _graph() -> Tuple[rec.EmbeddingTable, tf.Tensor, tf.Operation, rec.Saver]:
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    table = rec.get_embedding_variable("table", DIM)
    keys = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(rec.embedding_lookup(table, keys))
    train = rec.optimizers.AdamOptimizer(0.01).minimize(loss)
    return table, keys, train, rec.Saver(sharded=True)


def _fill(session: tf.Session, keys: tf.Tensor, train: tf.Operation, rows: int) -> None:
    """Inserts `rows` keys that are spread like hashed strings."""
    all_keys = criteo_ids.scattered(np.arange(rows))
    for begin in range(0, rows, FILL):
        session.run(train, {keys: all_keys[begin : begin + FILL]})


def _forget(folder: str) -> None:
    """Asks the system to drop the files of a folder from its cache."""
    for name in os.listdir(folder):
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _size(folder: str) -> int:
    names = [name for name in os.listdir(folder) if ".data-" in name or name.endswith(".index")]
    return sum(os.path.getsize(os.path.join(folder, name)) for name in names)


def saver(folder: str, rows: int) -> Dict[str, Callable[[], Any]]:
    """Builds save and restore for rounds.alternate, in the process that holds the table."""
    import tensorflow.compat.v1 as tf

    _, keys, train, saver = _graph()
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    _fill(session, keys, train, rows)
    prefix = os.path.join(folder, "model")

    def save() -> None:
        saver.save(session, prefix, write_meta_graph=False)

    def restore() -> None:
        saver.restore(session, prefix)

    def resume() -> None:
        nonlocal session
        session.close()
        session = tf.Session()

    def resume_and_forget() -> None:
        resume()
        _forget(folder)

    save()
    return {
        "save": save,
        "before restore": resume_and_forget,
        "before restore, cached": resume,
        "before restore, cached, into memory": resume,
        "before restore over rows": lambda: _forget(folder),
        "restore": restore,
        "restore, cached": restore,
        "restore, cached, into memory": restore,
        "restore over rows": restore,
    }


def _plain_file(folder: str, size_of: str) -> Dict[str, Callable[[], Any]]:
    size = _size(size_of)
    path = os.path.join(folder, "file")
    chunk = np.random.default_rng(0).integers(0, 256, CHUNK, np.uint8).tobytes()
    buffer = bytearray(CHUNK)

    def write() -> None:
        # Writes a new file and renames it, as the Saver does.
        with open(f"{path}.new", "wb", buffering=0) as file:
            for begin in range(0, size, CHUNK):
                file.write(chunk[: size - begin])
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)

    def read() -> None:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def read_part(descriptor: int, begin: int, end: int) -> None:
        while begin < end:
            begin += os.preadv(descriptor, [memory[begin : min(begin + CHUNK, end)]], begin)

    def read_into_memory() -> None:
        with open(path, "rb", buffering=0) as file:
            middle = size // 2
            halves = ((0, middle), (middle, size))
            list(threads.map(lambda half: read_part(file.fileno(), *half), halves))

    write()
    kept = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept.madvise(mmap.MADV_HUGEPAGE)
    memory = memoryview(kept)
    threads = concurrent.futures.ThreadPoolExecutor(2)
    read_into_memory()
    return {
        "save": write,
        "before restore": lambda: _forget(folder),
        "before restore over rows": lambda: _forget(folder),
        "restore": read,
        "restore, cached": read,
        "restore, cached, into memory": read_into_memory,
        "restore over rows": read,
    }


def measure_speed(folder: str, rows: int, rounds: int) -> Tuple[rounds_lib.Seconds, int]:
    """Returns the seconds and the size of the checkpoint in bytes."""
    folders = [os.path.join(folder, name) for name in ("saver", "file")]
    for each in folders:
        os.mkdir(each)
    systems: Dict[str, Tuple[Callable[..., Any], Tuple[Any, ...]]] = {
        "saver": (saver, (folders[0], rows)),
        "plain file": (_plain_file, (folders[1], folders[0])),
    }
    whats = [
        "save",
        "restore",
        "restore, cached",
        "restore, cached, into memory",
        "restore over rows",
    ]
    # The plain file is as large as the checkpoint, which must be there first.
    seconds = rounds_lib.alternate(systems, whats, rounds, steps=1, at_once=False)
    return seconds, _size(folders[0])


def _memory(name: str) -> int:
    """Returns a line of the status of the process, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


def peak_during(call: Callable[[], Any]) -> Tuple[int, int]:
    """Returns (resident memory before the call, peak during it), in bytes."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # Resets the peak.
    before = _memory("VmRSS")
    call()
    return before, _memory("VmHWM")


def _measure_memory(folder: str, rows: int, what: str) -> Tuple[int, int]:
    import tensorflow.compat.v1 as tf

    table, keys, train, saver = _graph()
    prefix = os.path.join(folder, "memory")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        if what == "save":
            _fill(session, keys, train, rows)
            before, peak = peak_during(lambda: saver.save(session, prefix))
            extra = peak - before
        else:
            empty = session.run(table.memory_bytes())
            before, peak = peak_during(lambda: saver.restore(session, prefix))
            extra = peak - before - (session.run(table.memory_bytes()) - empty)
        assert session.run(table.size()) == rows
        return int(session.run(table.memory_bytes())), int(extra)


def measure_memory(folder: str, rows: int) -> Dict[str, Tuple[int, int]]:
    """Returns {what: (bytes of the table, bytes beyond it)}."""
    return {
        what: rounds_lib.in_process(_measure_memory, folder, rows, what)
        for what in ("save", "restore")
    }


def main() -> None:
    parser = result_file.parser(__doc__, rows=4_000_000, rounds=9)
    parser.add_argument("--folder", help="where to write, on the disk to measure; None: here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder or os.getcwd()) as folder:
        memory = measure_memory(folder, args.rows)
        seconds, size = measure_speed(folder, args.rows, args.rounds)
    result = {
        "rows": args.rows,
        "dim": DIM,
        "optimizer": "Adam",
        "bytes": size,
        "rounds": args.rounds,
        "seconds": result_file.quartiles(seconds),
        "ratios": {},
        "memory": {},
    }
    print(
        f"\n{args.rows:,} rows of dim {DIM} with Adam's slots, {size / 1e9:.2f} GB, fsync in both"
    )
    print(f"{'':30}{'saver MB/s':>12}{'file MB/s':>12}   ratio (quartiles)")
    for what, by_system in seconds.items():
        ratio = rounds_lib.ratios(by_system["plain file"], by_system["saver"])
        result["ratios"][what] = round(ratio.median, 3)
        speeds = [size / 1e6 / statistics.median(by_system[s]) for s in ("saver", "plain file")]
        print(f"{what:30}{speeds[0]:12.0f}{speeds[1]:12.0f}   {ratio}")
    for what, (table, extra) in memory.items():
        most = 64 * MIB + table // 100
        result["memory"][what] = {"table": table, "beyond": extra, "promised": most}
        print(
            f"{what:8} of {table / MIB:.0f} MiB takes {extra / MIB:.1f} MiB beyond it, "
            f"{most / MIB:.1f} promised"
        )
    result_file.write(args.output, result)


if __name__ == "__main__":
    main()
