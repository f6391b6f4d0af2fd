# SPDX-License-Identifier: Apache-2.0
"""Rec SDK's vocabulary on the tables, lookups and graph passes of this package."""
