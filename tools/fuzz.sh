#!/bin/sh
# Fuzzes the parsers of untrusted files: sh tools/fuzz.sh [SECONDS_EACH] [NAME...]
# Default 30 s and every target; 0 s runs the seeds and what earlier runs found worth keeping.
# Exits 1 at a finding. See docs/fuzzing.md.
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh
packages="$packages clang libclang-rt-dev"
seconds=30
case ${1:-} in
  *[!0-9]*|'') ;;
  *) seconds=$1; shift ;;
esac

sources=$(find core reference kernels datasets reports models serving harness -name '*_fuzz.cc' | sort)
known=$(for source in $sources; do basename "$source" _fuzz.cc; done)
for name in "$@"; do
  echo "$known" | grep -qx -- "$name" || { echo "no fuzz target $name; there are:" $known >&2; exit 2; }
done
[ $# -gt 0 ] || set -- $known

install_packages
build fuzz $(printf '%s_fuzz ' "$@")

out=build/fuzz
mkdir -p $out/findings
# Targets write the files that they read; in memory where there is a place for that.
TMPDIR=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 130' INT TERM
export ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=1
bound="-max_total_time=$seconds"
[ "$seconds" -gt 0 ] || bound="-runs=0"

status=0
for name in "$@"; do
  source=$(echo "$sources" | grep -E "/${name}_fuzz\.cc$")
  seeds=$(dirname "$source")/testdata/fuzz/$name
  mkdir -p $out/corpus/$name
  verdict="no finding"
  $out/${name}_fuzz $bound -timeout=5 -rss_limit_mb=512 -max_len=4096 -print_final_stats=1 \
    $([ -f "$seeds.dict" ] && echo "-dict=$seeds.dict") -artifact_prefix=$out/findings/$name- \
    $out/corpus/$name "$seeds" >$out/$name.log 2>&1 || { status=1; verdict="FINDING: $(grep -aoE "$out/findings/[^ ]*" $out/$name.log | tail -1), see $out/$name.log"; }
  runs=$(grep -aoE 'number_of_executed_units: *[0-9]+' $out/$name.log | grep -oE '[0-9]+$' || echo 0)
  coverage=$(grep -aoE 'cov: [0-9]+' $out/$name.log | tail -1 | grep -oE '[0-9]+' || echo 0)
  printf '%-12s %9s executions  %5s edges  %s\n' "$name" "$runs" "$coverage" "$verdict"
done
exit $status
