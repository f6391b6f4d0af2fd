# SPDX-License-Identifier: Apache-2.0
"""Tables where scripts have variables."""

import pytest
import tensorflow.compat.v1 as tf

import rec_estimator as rec


@pytest.mark.parametrize("slices", [0, slice(3), (slice(None), 0)])
def test_a_slice_of_a_table_is_refused_by_name(slices):
    partitioner = tf.fixed_size_partitioner(2)
    table = rec.get_embedding_variable("items", 4, partitioner=partitioner)
    assert len(list(table)) == 2
    for sliced in (table, *table):
        with pytest.raises(TypeError, match=r"table 'items.*cannot be .*lookup\(table, ids\)"):
            sliced[slices]
