#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes all that must not change by itself into a folder: oracle.sh BUILD DIR [PART...]; see oracle.py.
exec python3 "$(dirname "$0")/oracle.py" "$@"
