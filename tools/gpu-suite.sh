#!/bin/sh
# Everything that is checked on a GPU, in one run: sh tools/gpu-suite.sh BUNDLE OUT
# BUNDLE: what tools/device-bundle.sh made; OUT: a folder for logs and reports. docs/gpu-runs.md says how results
# are kept. Ends with a summary and exit code 1 where something failed.
set -u
cd "$(dirname "$0")/.."
hypic=$1/hypic
out=$2
mkdir -p "$out"
cublas=$(find / -name 'libcublas.so.13' -not -path '/proc/*' 2>/dev/null | head -1)
LD_LIBRARY_PATH=$(dirname "$cublas")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
failed=0
: > "$out/summary.txt"

# step NAME COMMAND...: its log is OUT/NAME.log.
step() {
  log=$1; shift
  start=$(date +%s)
  timeout 180 "$@" > "$out/$log.log" 2>&1
  code=$?
  printf '%s: exit %s, %s s\n' "$log" "$code" "$(($(date +%s) - start))" | tee -a "$out/summary.txt"
  [ "$code" -eq 0 ] || { failed=1; grep -v '^PASS  ' "$out/$log.log" | tail -8 | tee -a "$out/summary.txt"; }
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/gpu.txt"
date -u | tee -a "$out/gpu.txt"
for backend in cuda32 cuda; do
  step "conformance-$backend" "$hypic" conformance --backend "$backend" --out "$out/conformance-$backend"
done
step models-cuda32 "$hypic" run suites/models.json --backend cuda32 --out "$out/models-cuda32"
step quick-cuda32 "$hypic" run suites/quick.json --backend cuda32 --filter 'reuse modes' --out "$out/quick-cuda32"
for model in models/testdata/transformers/*; do
  name=$(basename "$model")
  for backend in cuda32 cuda; do
    step "validate-$backend-$name" "$hypic" validate "$model" --backend "$backend" \
      --logits "$model/golden.safetensors" --out "$out/validate-$backend-$name"
  done
done
# One small case a kernel under each of the sanitizer's tools.
cases='/(reuse|relocation|jumps|latent|residues|partial|heads|eps|activations|steps|range|rows|ties|scaled|kinds|inputs)$'
for tool in memcheck racecheck initcheck; do
  command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is missing" | tee -a "$out/summary.txt"; break; }
  step "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
    "$hypic" conformance --backend cuda32 --filter "$cases" --out "$out/sanitizer-$tool"
done
exit $failed
