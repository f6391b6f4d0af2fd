# SPDX-License-Identifier: Apache-2.0
"""What each op type does to rows: one file for each kind of op, and op_rules.py lists them all."""
