# SPDX-License-Identifier: Apache-2.0
"""What the compression pass knows of a tensor."""
