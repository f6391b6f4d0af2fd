# SPDX-License-Identifier: Apache-2.0
"""What graph passes share: queries and the state of a graph, the registry of ops, observers."""
