#!/bin/sh
# Builds everything and runs every test: sh tools/test.sh [PRESET]  (default release; asan for sanitizers)
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
preset=${1:-release}
packages="$packages curl redis-server python3-numpy"  # what tests talk to
install_packages
build "$preset" all all_verify_interface_header_sets
ctest --preset "$preset"
if python3 -c "import numpy" 2>/dev/null; then
  HYPIC=$PWD/build/$preset/hypic python3 -m unittest discover -s tools/python/hypic_check/tests
else
  echo "SKIP: tests of tools/python/hypic_check: python3 has no numpy"
fi
