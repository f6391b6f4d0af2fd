# SPDX-License-Identifier: Apache-2.0
"""The rules of op types: one file for each kind of op; op_rules.py lists them all."""
