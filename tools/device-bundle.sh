#!/bin/sh
# A folder that runs hypic on a GPU machine with only the driver and the CUDA libraries:
#   sh tools/device-bundle.sh [FOLDER]      (default build/bundle; needs a build with CUDA, and patchelf)
# It holds the stripped programs and, in lib/, what Debian's packages brought; cuBLAS and, for several GPUs, NCCL come
# from the GPU machine. In the end each program is resolved in a bare root, where only glibc is besides.
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
programs="hypic hypic-bench"
strip -o "$bundle/gated_delta_rule_cuda.so" build/release/plugins/gated_delta_rule_cuda.so  # a plug-in to try there
for name in $programs; do strip -o "$bundle/$name" "build/release/$name"; done
ldd build/release/hypic build/release/hypic-bench | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u | while read -r name path; do
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
for file in "$bundle"/hypic* "$bundle"/lib/*; do
  case $file in */hypic*) origin='$ORIGIN/lib' ;; *) origin='$ORIGIN' ;; esac
  patchelf --set-rpath "$origin" "$file"
done
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
loader=$(readelf -l "$program" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
mkdir -p "$root$(dirname "$loader")"
for file in "$loader" $(ldd "$program" | awk '$1 ~ /^lib(c|m|dl|rt|pthread)\.so/ {print $3}'); do
  cp -L "$file" "$root$(dirname "$loader")/"
done
cp -r "$bundle" "$root/bundle"
echo | cc -x c -shared -Wl,-soname,libcublasLt.so.13 -o "$root$(dirname "$loader")/libcublasLt.so.13" -  # the GPU machine's
for name in $programs; do
  LD_LIBRARY_PATH="$(dirname "$loader")" unshare -r chroot "$root" "$loader" --list "/bundle/$name" > "$root/$name.txt" 2>&1 ||
    { echo "$bundle/$name: cannot be resolved in a bare root: $(tail -1 "$root/$name.txt")" >&2; exit 1; }
done
echo "$bundle: resolves in a bare root of glibc and cuBLAS alone"
tar c -C "$(dirname "$bundle")" "$(basename "$bundle")" | xz -6 -T0 > "$bundle.tar.xz"
size=$(du -sm "$bundle.tar.xz" | cut -f1)
echo "$bundle.tar.xz: $size MiB, of $(du -sm "$bundle" | cut -f1)"
[ "$size" -le 24 ] || { echo "$bundle.tar.xz: more than 24 MiB" >&2; exit 1; }
