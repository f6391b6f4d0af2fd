# SPDX-License-Identifier: Apache-2.0
"""Reports what the compression pass moved, and the FLOPs it saved."""
