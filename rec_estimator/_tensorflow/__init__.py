# SPDX-License-Identifier: Apache-2.0
"""The only package that imports ``tensorflow.python``.

One module for each subject; each private name has its reason. A new TensorFlow release is first
tried against these modules.
"""
