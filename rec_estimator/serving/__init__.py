# SPDX-License-Identifier: Apache-2.0
"""Serving: receivers of compressed requests, and portable SavedModels."""
