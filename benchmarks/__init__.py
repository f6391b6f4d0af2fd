# SPDX-License-Identifier: Apache-2.0
"""Measures speed, memory and accuracy; raw results are in benchmarks/results."""
