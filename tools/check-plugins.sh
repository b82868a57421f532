#!/bin/sh
# Kernel plug-ins get the verdict that they deserve: sh tools/check-plugins.sh HYPIC FOLDER_OF_PLUGINS
# Right ones pass, alone and inside whole models; each broken one of kernels/plugin/examples/faults.def gets its own.
set -u
cd "$(dirname "$0")/.."
hypic=$1
plugins=$2
# A sanitizer would answer a crash itself.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_segv=0:handle_abort=0:detect_leaks=0"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
status=0

# expect CODE TEXT ARGUMENTS…: exit code, and a piece of what is printed.
expect() {
  code=$1 text=$2
  shift 2
  printed=$("$hypic" "$@" 2>&1)
  got=$?
  if [ $got -ne "$code" ]; then echo "hypic $*: exit $got, expected $code: $printed" >&2; status=1; fi
  case $printed in
    *"$text"*) ;;
    *) echo "hypic $*: no \"$text\" in: $printed" >&2; status=1 ;;
  esac
}

# The verdict on one line of faults.def.
judge() {
  name=$(echo "$1" | sed -E 's/^FAULT\(([a-z_]+),.*/\1/')
  cases=$(echo "$1" | sed -E 's/^FAULT\([a-z_]+, [0-9]+, "([^"]*)".*/\1/')
  code=$(echo "$1" | sed -E 's/^.*", ([0-9]), ".*/\1/')
  says=$(echo "$1" | sed -E 's/^.*", [0-9], "(.*)"\)$/\1/')
  expect "$code" "$says" conformance --kernel "$plugins/broken_$name.so" --kernel-seconds 2 \
    --filter "^$cases" --out "$out/$name"
}

while read -r line; do
  case $line in FAULT*) judge "$line" ;; esac
done <kernels/plugin/examples/faults.def

right=$plugins/gated_delta_rule.so
expect 0 "0 left to the backend" conformance --kernel "$right" --family gated_delta_net --out "$out/right"
expect 0 "kda: the kernel computed none of it" conformance --kernel "$right" --family kda --family gated_delta_net \
  --filter /lengths --out "$out/kda"
expect 3 "it computed nothing" conformance --kernel "$right" --family kda --filter /lengths --out "$out/none"
expect 2 "does not take operands in float64" conformance --kernel "$right" --backend cpu64 --filter /lengths
expect 2 "no such file" conformance --kernel "$out/none.so"
expect 2 "README.md: cannot be loaded: invalid ELF header" conformance --kernel README.md
expect 2 "broken: judges backends of its own, not a kernel" conformance --kernel "$right" --broken half_state
expect 2 "--kernel: not together with" conformance --kernel "$right" --backend broken:half_state
expect 2 "a kernel is loaded in a child process only" conformance --backend "cpu+$right"
# A crash costs one case, and the report has the others.
expect 1 "FAIL" conformance --kernel "$plugins/broken_crashes.so" --filter "gated_delta_net/random|attention/fault" \
  --out "$out/crash"
expect 1 "the kernel crashed in linear_attention: Segmentation fault" report "$out/crash"
expect 1 "## PASS: attention" report "$out/crash"
expect 2 "among those of what the kernel offers" conformance --kernel "$right" --op rope
operations=$plugins/plain_operations.so
expect 0 "0 left to the backend" conformance --kernel "$operations" --out "$out/operations"

# One report of a whole model: operations, logits, answers, time.
expect 0 "PASS" run suites/kernel.json --kernel "$right" --out "$out/model"
expect 1 "FAIL: of 3 cases 2 failed" run suites/kernel.json --kernel "$plugins/broken_scale_ignored.so" \
  --filter "against float64" --out "$out/broken-model"
expect 0 "PASS: report in" validate models/testdata/transformers/qwen3_5 --kernel "$right" --quiet --out "$out/validate" \
  --logits models/testdata/transformers/qwen3_5/golden.safetensors
expect 1 "FAIL" validate models/testdata/transformers/qwen3_5 --kernel "$plugins/broken_operator_transposed.so" --quiet \
  --out "$out/validate-broken"
cell="--segments 2 --tokens 16 --question 4 --repeats 2 --quiet"
expect 0 "calls computed by it, 0 left" ttft $cell --kernel "$right" --out "$out/ttft"
expect 0 "calls computed by it, 0 left" quality --task fact --segments 2 --tokens 32 --rows 1 --new-tokens 2 \
  --modes prefix --quiet --kernel "$right" --out "$out/quality"
[ $status -eq 0 ] && echo "plug-ins get the verdicts that they deserve"
exit $status
