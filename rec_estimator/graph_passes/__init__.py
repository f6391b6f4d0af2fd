# SPDX-License-Identifier: Apache-2.0
"""What all graph passes share: queries of a graph, the registry of op types, and observers."""
