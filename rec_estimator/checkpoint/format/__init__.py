# SPDX-License-Identifier: Apache-2.0
"""Reads and writes TensorFlow's checkpoint format in plain Python and NumPy."""
