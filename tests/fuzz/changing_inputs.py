# SPDX-License-Identifier: Apache-2.0
"""Calls of ops while another thread writes to their inputs.

TensorFlow feeds an aligned NumPy array without a copy, so a script that fills its array again for
the next batch may change what an op reads. The op must raise an error or return something, but
never write or read beyond its memory: a number that was checked must not be read again.
"""

import contextlib
import threading

import numpy as np
import tensorflow.compat.v1 as tf

# Memory that starts at a multiple of so many bytes is fed without a copy.
ALIGNMENT = 64

# What is written in turn with the valid number: indices, sizes and keys near to the valid range and
# far out of it. No size between, which could be allocated: to write its memory would take long.
HOSTILE = {4: [-(2**31), -1, 7, 1000], 8: [-(2**40), -1, 7, 2**62]}
# One call of NumPy writes so many numbers, which takes about a millisecond.
WRITES = 1 << 20

# Ops with outputs whose sizes depend on what the inputs hold.
SIZES_FROM_VALUES = {
    "combine_weighted",
    "ids_without_padding",
    "keys_pack",
    "repeat_rows",
    "repeat_rows_grad",
    "rows_unpack",
    "sample_rows",
    "shard_keys_split",
    "shard_rows_split",
    "shared_kernel",
    "table_group_lookup",
    "tables_read",
}


def aligned(array):
    """Returns a copy that TensorFlow takes as it is."""
    memory = np.zeros(array.nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    copy = np.ndarray(array.shape, array.dtype, memory[begin : begin + array.nbytes])
    copy[...] = array
    return copy


@contextlib.contextmanager
def changing(array, rng):
    """Writes hostile numbers to the elements of an array of integers, and the valid ones again.

    One call of NumPy writes each element thousands of times in a row, without Python's lock: the
    numbers change every few nanoseconds.
    """
    valid = array.copy()
    flat = array.reshape(-1)
    turns = np.tile(valid.reshape(-1), (64, 1))
    turns[0::2] = rng.choice(HOSTILE[array.itemsize], [32, flat.size])
    numbers = np.tile(turns, (WRITES // turns.size, 1))
    written = np.lib.stride_tricks.as_strided(flat, numbers.shape, (0, array.itemsize))
    stopped = threading.Event()

    def write():
        while not stopped.is_set():
            np.copyto(written, numbers)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        np.copyto(array, valid)


def call(caller, op, arguments, runs, rng):
    """Runs an op while each of its arrays of integers changes. Returns how often it refused."""
    fetches, fed = caller.build(op, arguments)
    fed = {
        placeholder: array if array.dtype == object else aligned(array)
        for placeholder, array in fed.items()
    }
    integers = [array for array in fed.values() if array.dtype.kind == "i" and array.size]
    if not integers:
        return 0
    right = _shapes(caller.session.run(fetches, fed))
    refused = 0
    for array in integers:
        with changing(array, rng):
            for _ in range(runs):
                try:
                    outputs = caller.session.run(fetches, fed)
                except tf.errors.OpError:
                    refused += 1
                    continue
                _check_shapes(op, right, _shapes(outputs))
    return refused


def _shapes(outputs):
    return [np.shape(output) for output in tf.nest.flatten(outputs)]


def _check_shapes(op, right, shapes):
    if op in SIZES_FROM_VALUES:
        right, shapes = [list(map(len, each)) for each in (right, shapes)]
    assert shapes == right, f"{op} returned shapes {shapes}, not {right}"
