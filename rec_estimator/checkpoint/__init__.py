# SPDX-License-Identifier: Apache-2.0
"""Saves and restores tables in ordinary TensorFlow V2 checkpoints."""
