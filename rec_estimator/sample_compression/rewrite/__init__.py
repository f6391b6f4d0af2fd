# SPDX-License-Identifier: Apache-2.0
"""Builds the compressed graph."""
