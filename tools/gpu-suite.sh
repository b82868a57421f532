#!/bin/sh
# Everything that is checked and measured on a GPU, in one run: sh tools/gpu-suite.sh BUNDLE OUT [PART...]
# BUNDLE: what tools/device-bundle.sh made; OUT: a folder for logs and reports; PART: some of conformance, thorough,
# models, reuse, plugin, validate, sanitizer, bench, ttft, soak (all but the last two). docs/gpu-runs.md says how
# results are kept. Ends with a summary, and exit code 1 where something failed.
set -u
cd "$(dirname "$0")/.."
hypic=$1/hypic
bench=$1/hypic-bench
out=$2
shift 2
parts=${*:-conformance thorough models reuse plugin validate sanitizer bench}
mkdir -p "$out"
cublas=$(find / -name 'libcublasLt.so.13' -not -path '/proc/*' 2>/dev/null | head -1)
LD_LIBRARY_PATH=$(dirname "$cublas")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
failed=0
touch "$out/summary.txt"

# step NAME COMMAND...: its log is OUT/NAME.log.
step() {
  log=$1; shift
  start=$(date +%s)
  timeout 590 "$@" > "$out/$log.log" 2>&1
  code=$?
  printf '%s: exit %s, %s s\n' "$log" "$code" "$(($(date +%s) - start))" | tee -a "$out/summary.txt"
  [ "$code" -eq 0 ] || { failed=1; grep -v '^PASS  ' "$out/$log.log" | tail -8 | tee -a "$out/summary.txt"; }
}

named() { echo "$1" | tr : -; }  # "cuda:plain" in names of files

conformance() {
  for backend in cuda cuda:78 cuda:plain cuda32; do
    step "conformance-$(named "$backend")" "$hypic" conformance --backend "$backend" --out "$out/conformance-$(named "$backend")"
  done
}

# Reported faults in their exact sizes: all but the quick suite already runs.
thorough() {
  for backend in cuda cuda:plain; do
    step "thorough-$(named "$backend")" "$hypic" conformance --backend "$backend" --thorough --filter '/fault_|/repeats|/far' \
      --out "$out/thorough-$(named "$backend")"
  done
}

models() {
  step models-cuda32 "$hypic" run suites/models.json --backend cuda32 --out "$out/models-cuda32"
}

reuse() {
  for backend in cuda cuda:plain cuda32; do
    step "reuse-$(named "$backend")" "$hypic" run suites/reuse.json --backend "$backend" --out "$out/reuse-$(named "$backend")"
  done
}

# A plug-in of a CUDA kernel, as an operation and inside a model.
plugin() {
  kernel=$(dirname "$hypic")/gated_delta_rule_cuda.so
  for backend in cuda cuda32; do
    step "plugin-$backend" "$hypic" conformance --backend "$backend" --kernel "$kernel" --family gated_delta_net \
      --out "$out/plugin-$backend"
  done
  step plugin-models "$hypic" run suites/kernel.json --backend cuda --kernel "$kernel" --out "$out/plugin-models"
}

validate() {
  for model in models/testdata/transformers/*; do
    name=$(basename "$model")
    for backend in cuda32 cuda; do
      step "validate-$backend-$name" "$hypic" validate "$model" --backend "$backend" \
        --logits "$model/golden.safetensors" --out "$out/validate-$backend-$name"
    done
  done
}

# Small cases of every kernel under the sanitizer's tools. docs/gpu-runs.md says why racecheck leaves out two kernels and
# is asked less of a third.
sanitizer() {
  command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is missing" | tee -a "$out/summary.txt"; return; }
  cases='/(reuse|relocation|jumps|latent|residues|partial|heads|eps|activations|steps|range|rows|ties|scaled|kinds|inputs|greedy|numbers|aligned|short_items|fault_0[57]_.*)$|^attention/wide$'
  wide='^(gated_delta_net|lightning)/wide$'  # racecheck 2025.3 breaks down on these
  chains='^(lightning|gated_delta_net)/(reuse|relocation|fault_0[57]_.*)$'
  # sanitize NAME BACKEND CASES OPTION...
  sanitize() {
    name=sanitizer-$1-$2; backend=$2; filter=$3; shift 3
    step "$name" compute-sanitizer --error-exitcode 9 "$@" "$hypic" conformance --backend "$backend" \
      --filter "$filter" --out "$out/$name"
  }
  for backend in cuda cuda32; do
    sanitize memcheck "$backend" "$cases|$wide" --tool memcheck
    sanitize initcheck "$backend" "$cases|$wide" --tool initcheck
    sanitize racecheck "$backend" "$cases" --tool racecheck --kernel-name-exclude kernel_substring=jumps_kernel \
      --kernel-name-exclude kernel_substring=attention_wgmma_kernel --kernel-name-exclude kernel_substring=walk_kernel
  done
  sanitize racecheck-walk cuda "$chains" --tool racecheck --racecheck-memcpy-async no \
    --kernel-name kernel_substring=walk_kernel
}

bench() {
  for backend in cuda cuda:plain; do
    step "bench-$(named "$backend")" "$bench" --backend "$backend" --budget 0.4 \
      --json "$out/bench-$(named "$backend").json" --markdown "$out/bench-$(named "$backend").md"
  done
}

# Every cell of the paper at full size, some minutes a model.
ttft() {
  for model in qwen3.5-35b-a3b ring-mini-linear-2.0; do
    step "ttft-$model" "$hypic" run suites/ttft.json --model "random:$model:7" --backend cuda --out "$out/ttft-$model"
  done
}

# Eight minutes; other parts may run beside it, what they time is not worth keeping then.
soak() {
  step soak-cuda "$hypic" run suites/soak.json --backend cuda --out "$out/soak-cuda"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/gpu.txt"
date -u | tee -a "$out/gpu.txt"
for part in $parts; do $part; done
exit $failed
