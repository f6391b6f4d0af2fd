# SPDX-License-Identifier: Apache-2.0
"""Which ops are row-wise: one module for each kind of op."""
