#!/bin/sh
# Builds everything and runs every test: sh tools/test.sh [PRESET]  (default release; asan for sanitizers)
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
preset=${1:-release}
install_packages
build "$preset" all all_verify_interface_header_sets
ctest --preset "$preset"
