# SPDX-License-Identifier: Apache-2.0
"""What the pass knows about a tensor: its side, its shape, its entries, how it is computed."""
