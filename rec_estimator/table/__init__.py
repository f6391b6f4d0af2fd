# SPDX-License-Identifier: Apache-2.0
"""Embedding tables in the graph: tables and their shards, lookups, and what checkpoints save."""
