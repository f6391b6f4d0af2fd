# SPDX-License-Identifier: Apache-2.0
"""Settings of a training run, and several training steps in one session.run."""
