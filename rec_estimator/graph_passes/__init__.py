# SPDX-License-Identifier: Apache-2.0
"""What all graph passes share."""
