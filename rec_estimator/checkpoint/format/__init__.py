# SPDX-License-Identifier: Apache-2.0
r"""Reads and writes TensorFlow's V2 checkpoint format in plain Python and NumPy.

A checkpoint ``model`` is one index and n data files:

    model.index              a sorted table of keys and values (index_file.py)
        ""                   BundleHeaderProto: n, byte order, version
        "user-values"        BundleEntryProto of a tensor: dtype, shape, data file, offset, size,
                             CRC-32C; or, for a tensor stored in slices, the list of the slices
        "\0user-values…"      BundleEntryProto of one slice
    model.data-<i>-of-<n>    the bytes of tensors and slices, little-endian, one after the other

A tensor of numbers is its elements in row-major order. Slices divide a tensor along its rows, and
each slice is one byte range. ``rec_estimator.Saver`` writes large tensors in slices; a stock Saver
and DeepRec write each tensor whole.

    bundle.py         opens a checkpoint, reads byte ranges, writes a new checkpoint
    entries.py        parses the entries of an index, and refuses those that lie
    index_file.py     parses and builds the index
    crc32c.py         the checksum of tensors and index blocks
    stored_tables.py  which tensors belong to which table, shard and slot

These modules are the only Python reader of the format. They read from all of TensorFlow's file
systems, and hold about 1 MiB in memory beyond the index, whatever the size of a tensor. They write
local files. ``tf.train.NewCheckpointReader`` is not used: some damages of an index make it end the
process. Savers restore tables with the C++ reader in ``ops/checkpoint/``.

Source: TensorFlow, ``core/protobuf/tensor_bundle.proto`` and ``core/util/tensor_bundle``.
"""
