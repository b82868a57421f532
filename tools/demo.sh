#!/bin/sh
# From nothing to a report: installs what is missing, builds hypic, runs the quick suite, then a reduced quality suite.
#   sh tools/demo.sh [hypic run options, e.g. --data hotpotqa.jsonl]
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
install_packages
build release hypic
build/release/hypic families
build/release/hypic run suites/quick.json --out out/demo "$@"
build/release/hypic run suites/quality_tiny.json --out out/demo-quality
