# SPDX-License-Identifier: Apache-2.0
"""The training loop inside one session.run."""
