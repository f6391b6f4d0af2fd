# SPDX-License-Identifier: Apache-2.0
"""The only package that imports ``tensorflow.python`` and ``tensorflow_estimator``.

Each module covers one subject, names the TensorFlow releases it was checked on, and gives the
reason for each private name. To support a new TensorFlow release, check these modules first.
"""
