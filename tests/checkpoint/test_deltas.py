# SPDX-License-Identifier: Apache-2.0
"""Tests of what a delta builds on."""

import os

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from rec_estimator.checkpoint import deltas
from rec_estimator.checkpoint.files import identity_of


def test_what_a_checkpoint_adds_to_an_earlier_one_is_found_without_those_before(tmp_path):
    table = rec.get_embedding_variable("item", 2)
    saver = rec.Saver([table], incremental=True, max_deltas=3, max_to_keep=None)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        prefixes = [saver.save(session, str(tmp_path / "model"), step) for step in range(5)]
    _, first, second, third, full = prefixes
    identities = [identity_of(prefix) for prefix in prefixes]
    os.remove(f"{prefixes[0]}.index")
    found = deltas.bundles_since(third, identities[1])
    assert [bundle.prefix for bundle in found] == [second, third]
    assert deltas.bundles_since(first, identities[1]) == []
    assert deltas.bundles_since(full, identities[1]) is None
