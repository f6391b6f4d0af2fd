# SPDX-License-Identifier: Apache-2.0
"""Serving: receivers of requests, and exports that need TensorFlow only."""
