# SPDX-License-Identifier: Apache-2.0
"""What the pass did to a graph, and how much work it saves."""
