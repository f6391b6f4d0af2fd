# SPDX-License-Identifier: Apache-2.0
"""What bench_tiers.py measures: a table, RocksDB and a plain file, each in a process of its own.

Each build_… function is for rounds.alternate: it fills its system with rows, the least frequent
first, and returns what can be timed. The most frequent rows come in random order, so that they lie
as scattered in memory as those that come back from the disk. A step has BATCH * FIELDS keys, drawn
anew for each.
"""

import json
import mmap
import os
import pathlib
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from benchmarks.bench_checkpoint import peak_during
from benchmarks.bench_table import BATCH, DIM, FIELDS, LEARNING_RATE, fill_op

STEPS = 10  # Of a round.
WARM_UP = 30  # Steps of each distribution, so that its frequent rows are in memory.
PART = 100_000  # Keys that are inserted at once.
FREQUENT = 0.1  # The part of the rows that comes in random order.
ROW_BYTES = 2 * DIM * 4  # The value and Adagrad's slot.
CHUNK = 1 << 20  # Bytes that the plain file reads and writes at once.
HUGE_PAGE = 2 << 20

Runs = Dict[str, Callable[[], Any]]


def scattered(ranks: np.ndarray) -> np.ndarray:
    """Keys like hashed strings, int64."""
    return (ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def zipf_ranks(rows: int, exponent: float, random: np.random.Generator) -> np.ndarray:
    """Ranks of one step, int64 [BATCH * FIELDS], by inversion of the continuous distribution."""
    power = 1 - exponent
    low, high = 1.0, (rows + 1.0) ** power
    ranks = (low + random.random(BATCH * FIELDS) * (high - low)) ** (1 / power) - 1
    return np.minimum(ranks, rows - 1).astype(np.int64)


def zipf_keys(rows: int, exponent: float, random: np.random.Generator) -> np.ndarray:
    """Keys of one step, int64 [BATCH * FIELDS]."""
    return scattered(zipf_ranks(rows, exponent, random))


def zipf_draws(rows: int, exponents: Sequence[float]) -> Dict[str, Callable[[], np.ndarray]]:
    """{"zipf <exponent>": function that draws the keys of a step}."""
    random = np.random.default_rng(5)

    def draw(exponent: float) -> Callable[[], np.ndarray]:
        return lambda: zipf_keys(rows, exponent, random)

    return {f"zipf {exponent}": draw(exponent) for exponent in exponents}


def parts(rows: int) -> Iterator[np.ndarray]:
    """All keys, the least frequent first, which leave memory, and then the frequent ones."""
    ranks = np.arange(rows)[::-1]
    np.random.default_rng(4).shuffle(ranks[rows - int(rows * FREQUENT) :])
    for part in np.array_split(ranks, max(rows // PART, 1)):
        yield scattered(part)


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _runs(
    draws: Dict[str, Callable[[], np.ndarray]],
    step: Callable[[np.ndarray], Any],
    counts: Callable[[], Dict[str, int]],
    report: str,
    warm_up: int,
) -> Runs:
    """Steps of each distribution; before a round, what was done until then goes to `report`."""
    ready: Dict[str, List[np.ndarray]] = {}

    def prepare(what: str) -> None:
        if what not in ready:
            for _ in range(warm_up):
                step(draws[what]())
        ready[what] = [draws[what]() for _ in range(STEPS)]
        _append(report, {"what": what, "resident": resident_bytes(), **counts()})

    runs: Runs = {}
    for what in draws:
        runs[what] = lambda what=what: step(ready[what].pop())  # type: ignore[misc]
        runs[f"before {what}"] = lambda what=what: prepare(what)  # type: ignore[misc]
    return runs


def build_table(
    rows: int,
    share: Optional[float],
    exponents: Sequence[float],
    hot: int,
    folder: str,
    report: str,
) -> Runs:
    """A table with Adagrad.

    Args:
      rows: The number of rows.
      share: The part of the rows in memory; None: all, in a table without files.
      exponents: Of the Zipf laws of steps.
      hot: "hits" draws among so many of the most frequent rows.
      folder: For files of rows and checkpoints.
      report: A file to which the state before each round is appended, a line of JSON each.
    """
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    storage = rec.StorageOption()
    if share is not None:
        memory = int(rows * share) * ROW_BYTES
        storage = rec.StorageOption(rec.StorageType.DRAM_SSDHASH, folder, [memory])
    option = rec.EmbeddingVariableOption(storage_option=storage)
    initializer = tf.random_uniform_initializer(-0.05, 0.05)
    table = rec.get_embedding_variable("table", DIM, initializer=initializer, ev_option=option)
    keys = tf.placeholder(tf.int64, [None])
    fill = fill_op(table, keys)
    values = rec.embedding_lookup(table, keys)
    loss = tf.reduce_sum(values * 0.01)
    train = rec.optimizers.AdagradOptimizer(LEARNING_RATE).minimize(loss, var_list=[table])
    counts = table.tier_counts()
    saver = rec.Saver(max_to_keep=1)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    insert = session.make_callable(fill, [keys])
    for part in parts(rows):
        insert(part)

    random = np.random.default_rng(6)
    draws = zipf_draws(rows, exponents)
    draws["hits"] = lambda: scattered(random.integers(0, hot, BATCH * FIELDS))

    def found() -> Dict[str, int]:
        return {name: int(n) for name, n in session.run(counts)._asdict().items()}

    step = session.make_callable(tf.group(train, values), [keys])
    runs = _runs(draws, step, found, report, WARM_UP)
    prefix = os.path.join(folder, "model")
    table_bytes = table.memory_bytes()

    def save() -> None:
        before, peak = peak_during(lambda: saver.save(session, prefix, write_meta_graph=False))
        sizes = {"table": int(session.run(table_bytes)), "beyond": peak - before}
        _append(report, {"what": "save", **sizes})

    runs["before save"] = lambda: _remove(folder, "model*")
    runs["save"] = save
    return runs


def _append(report: str, found: Dict[str, Any]) -> None:
    with open(report, "a") as file:
        file.write(json.dumps(found) + "\n")


def _remove(folder: str, pattern: str) -> None:
    for path in pathlib.Path(folder).glob(pattern):
        path.unlink()


def _contiguous() -> memoryview:
    """CHUNK bytes of a huge page, which a disk reads and writes fastest."""
    pages = mmap.mmap(-1, 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    begin = -np.frombuffer(pages, np.uint8).ctypes.data % HUGE_PAGE
    return memoryview(pages)[begin : begin + CHUNK]


def build_plain_file(folder: str, report: str, is_contiguous: bool) -> Runs:
    """For "save": reads the files of rows in a folder, and writes as much as its checkpoint has.

    In sequence and with O_DIRECT, as the table reads its rows, from and to memory of 4 KiB pages
    or of one huge page. Their sizes go to `report`.
    """
    memory = _contiguous() if is_contiguous else memoryview(mmap.mmap(-1, CHUNK))
    plain = os.path.join(folder, "plain")

    def read_and_write() -> None:
        sizes = {"read": 0, "written": 0}
        for path in pathlib.Path(folder).glob("*.rows"):
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
            while True:
                n = os.readv(file, [memory])
                sizes["read"] += n
                if n < CHUNK:
                    break
            os.close(file)
        size = sum(path.stat().st_size for path in pathlib.Path(folder).glob("model*"))
        file = os.open(plain, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        for _ in range(0, size, CHUNK):
            sizes["written"] += os.writev(file, [memory])
        os.fsync(file)
        os.close(file)
        _append(report, sizes)

    return {"before save": lambda: _remove(folder, "plain"), "save": read_and_write}


def build_rocksdb(
    rows: int, share: float, exponents: Sequence[float], folder: str, report: str, wheels: str
) -> Runs:
    """The same rows in RocksDB, with a block cache as large as the rows in a table's memory.

    A step reads the row of each distinct key with one MultiGet, changes it and writes it back.
    Reads and compactions bypass the page cache, nothing is compressed, and there is no write-ahead
    log.
    """
    sys.path.insert(0, wheels)
    import rocksdict  # type: ignore[import-not-found]

    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(int(rows * share) * ROW_BYTES))
    blocks.set_bloom_filter(10, False)
    blocks.set_block_size(4096)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_use_direct_reads(True)
    options.set_use_direct_io_for_flush_and_compaction(True)
    options.set_max_background_jobs(2)
    rows_of = rocksdict.Rdict(os.path.join(folder, "rocksdb"), options)
    unlogged = rocksdict.WriteOptions()
    unlogged.disable_wal = True

    def put(keys: Sequence[bytes], values: np.ndarray) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, row in zip(keys, values):
            batch.put(key, row.tobytes())
        rows_of.write(batch, unlogged)

    for part in parts(rows):
        put([key.tobytes() for key in part], np.full([len(part), 2 * DIM], 0.1, np.float32))
    rows_of.flush()
    rows_of.compact_range(None, None)
    read = {"rows": 0}

    def step(keys: np.ndarray) -> None:
        distinct = [key.tobytes() for key in np.unique(keys)]
        values = np.frombuffer(b"".join(rows_of[distinct]), np.float32).reshape(-1, 2 * DIM)
        read["rows"] += len(distinct)
        put(distinct, values + np.float32(0.01))

    return _runs(zipf_draws(rows, exponents), step, lambda: dict(read), report, warm_up=1)
