# SPDX-License-Identifier: Apache-2.0
"""Keys that were chosen so that they share the position where a search for them begins.

How far each is from that position: tests/ops/core, ChosenKeys.
"""

import json
import pathlib
import re
import textwrap

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from python_processes import ONE_OP_AT_A_TIME, Process

import rec_estimator as rec

ROOT = pathlib.Path(__file__).resolve().parents[3]


def unshift(x, by):
    result = x
    for _ in range(64 // by):
        result = x ^ (result >> np.uint64(by))
    return result


def chosen_keys(n):
    """n keys of one stripe and one bucket, as far as MixKey of ops/core/base/key_hash.h tells."""
    x = np.arange(n, dtype=np.uint64) << np.uint64(6)
    for by, factor in ((27, 0x1C69B3F74AC4AE35), (33, 0x3C79AC492BA7B653)):
        x = unshift(x, by) * np.uint64(pow(factor, -1, 1 << 64))
    return unshift(x, 27).astype(np.int64)


def test_a_step_and_a_lookup_take_many_chosen_keys():
    """Their work was quadratic: hours for a million such keys."""
    keys = chosen_keys(100_000)
    assert len(np.unique(keys)) == len(keys)
    ev_option = rec.EmbeddingVariableOption(filter_option=rec.CBFFilter(2, 10**9, 0.01))
    with tf.Graph().as_default(), tf.Session() as session:
        tables = [
            rec.get_embedding_variable("plain", 1, initializer=tf.zeros_initializer()),
            rec.get_embedding_variable("parts", 1, partitioner=tf.fixed_size_partitioner(2)),
            rec.get_embedding_variable("filtered", 1, ev_option=ev_option),
        ]
        ids = tf.placeholder(tf.int64, [None])
        values = [rec.embedding_lookup(table, ids) for table in tables]
        loss = tf.add_n([tf.reduce_sum(value) for value in values])
        train = rec.optimizers.GradientDescentOptimizer(1.0).minimize(loss)
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(train, {ids: keys})
        assert session.run([table.size() for table in tables]) == [len(keys)] * 3
        np.testing.assert_array_equal(session.run(values[0], {ids: keys}), [[-2.0]] * len(keys))


def test_only_stripes_and_sketches_are_chosen_by_the_hash_that_everybody_knows():
    """What searches for a key uses HashKey, whose secret each process draws for itself."""
    known = re.compile(r"\bMixKey\(")
    allowed = re.compile(r"StripeOf\(MixKey\(|MixKey\(batch_\.keys\[0\]\) % kStripes")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "ops").rglob("*"))
        if path.suffix in (".cc", ".h")
        and path.name != "key_hash.h"
        and path.parent.name != "filter"  # The cells of a sketch are saved.
        and path.name != "row_format.h"  # The noise of rounding is the same in every run.
        and path.name != "cold_rows.cc"  # Every process evicts the same of equally cold rows.
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if known.search(line) and not allowed.search(line)
    ]
    assert not found, "use HashKey: whoever chooses keys knows MixKey"


PROGRAM = textwrap.dedent(
    """
    import glob, hashlib, json, os, sys
    import numpy as np
    import tensorflow.compat.v1 as tf
    import rec_estimator as rec

    tf.disable_eager_execution()
    tf.set_random_seed(1)
    option = rec.EmbeddingVariableOption
    tables = [
        rec.get_embedding_variable("plain", 4),
        rec.get_embedding_variable("parts", 4, partitioner=tf.fixed_size_partitioner(3)),
        rec.get_embedding_variable("counted", 4, ev_option=option(
            filter_option=rec.CounterFilter(2), evict_option=rec.L2WeightEvict(0.5))),
        rec.get_embedding_variable("sketched", 4, ev_option=option(
            filter_option=rec.CBFFilter(3, 10**9, 0.01))),
        rec.get_embedding_variable("on_disk", 4, ev_option=option(
            storage_option=rec.StorageOption(
                rec.StorageType.DRAM_SSDHASH, sys.argv[1] + "/disk", [64 * 4 * 8]))),
    ]
    ids = tf.placeholder(tf.int64, [None])
    values = [rec.embedding_lookup(table, ids) for table in tables]
    step = tf.train.get_or_create_global_step()
    loss = tf.add_n([tf.nn.l2_loss(value - 0.1) for value in values])
    train = rec.optimizers.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    exports = [table.export() for table in tables]
    saver = rec.Saver(incremental=True)
    random = np.random.RandomState(1)
    digest = hashlib.sha256()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(4):
            batch = np.concatenate([random.zipf(1.2, 3000), random.randint(-2**62, 2**62, 300)])
            results = session.run([train, *values], {ids: batch.astype(np.int64)})
            for read in results[1:]:
                digest.update(read)
            saver.save(session, sys.argv[1] + "/m", step)
        for export in session.run(exports):
            for part in export:
                digest.update(np.ascontiguousarray(part))
    digests = {"values": digest.hexdigest()}
    for path in sorted(glob.glob(sys.argv[1] + "/m-*")):
        if not path.endswith(".meta"):
            with open(path, "rb") as file:
                digests[os.path.basename(path)] = hashlib.sha256(file.read()).hexdigest()
    print(json.dumps(digests))
    """
)


@pytest.mark.long
def test_values_files_and_exports_are_the_same_bits_in_every_process(tmp_path):
    """Each process draws another secret for its hashes."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    running = [Process(["-c", PROGRAM, folder], environment=ONE_OP_AT_A_TIME) for folder in folders]
    ended = [process.wait() for process in running]
    assert [done.returncode for done in ended] == [0, 0], ended[0].stderr[-4000:]
    one, other = (json.loads(done.stdout.splitlines()[-1]) for done in ended)
    assert len(one) > 4 and one == other
