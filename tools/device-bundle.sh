#!/bin/sh
# A folder that runs hypic on a GPU machine with only the driver and the CUDA libraries:
#   sh tools/device-bundle.sh [FOLDER]      (default build/bundle; needs a build with CUDA, and patchelf)
# It holds the stripped program and, in lib/, what Debian's packages brought; cuBLAS comes from the GPU machine.
# Suites, models and datasets are read from the tree, so run it there: FOLDER/hypic conformance --backend cuda
set -eu
cd "$(dirname "$0")/.."
bundle=${1:-build/bundle}
program=build/release/hypic
[ -x "$program" ] || { echo "$program: not built; run sh tools/test.sh first" >&2; exit 2; }
ldd "$program" | grep -q libcublas || { echo "$program: built without CUDA" >&2; exit 2; }
command -v patchelf >/dev/null || { echo "patchelf is missing: apt-get install patchelf" >&2; exit 2; }
rm -rf "$bundle"
mkdir -p "$bundle/lib"
strip -o "$bundle/hypic" "$program"
ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | while read -r name path; do
  case $name in
    libcublas*|libc.so*|libm.so*|libdl.so*|librt.so*|libpthread.so*|ld-linux*) ;;  # the GPU machine's
    libicudata*)
      # Only the normaliser is used, whose tables are in libicuuc: an empty table of contents stands in for 30 MB.
      symbol=$(nm -D --defined-only "$path" | awk '/_dat$/ {print $3}' | sed 's/@.*//')
      printf '%s\n' '#include <stdint.h>' \
        "__attribute__((aligned(16))) const struct { uint16_t size; uint8_t magic[2]; uint16_t info_size, reserved;" \
        "  uint8_t big_endian, charset, char_size, reserved1, format[4], format_version[4], data_version[4];" \
        "  uint32_t count[3]; } $symbol =" \
        "  {32, {0xda, 0x27}, 20, 0, 0, 0, 2, 0, {'T', 'o', 'C', 'P'}, {1, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0}};" |
        cc -x c -shared -fPIC -Wl,-soname,"$name" -o "$bundle/lib/$name" - ;;
    *) strip -o "$bundle/lib/$name" "$(readlink -f "$path")" 2>/dev/null || cp -L "$path" "$bundle/lib/$name" ;;
  esac
done
for file in "$bundle"/hypic "$bundle"/lib/*; do
  case $file in */hypic) origin='$ORIGIN/lib' ;; *) origin='$ORIGIN' ;; esac
  patchelf --set-rpath "$origin" "$file"
done
size=$(du -sm "$bundle" | cut -f1)
echo "$bundle: $size MiB"
[ "$size" -le 24 ] || { echo "$bundle: more than 24 MiB" >&2; exit 1; }
