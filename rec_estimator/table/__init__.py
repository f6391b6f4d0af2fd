# SPDX-License-Identifier: Apache-2.0
"""Embedding tables in the graph: the table, its shards, lookups and their gradients."""
