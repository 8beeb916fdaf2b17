# SPDX-License-Identifier: Apache-2.0
"""Saturate inside other libraries."""
