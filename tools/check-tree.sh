#!/bin/sh
# The rules of docs/architecture.md that a grep can hold: includes go strictly down, Eigen stays in
# reference/*.cc, and the tracked files stay small enough to travel to a GPU machine.
set -u
cd "$(dirname "$0")/.."
status=0
complain() { echo "$*" >&2; status=1; }

# below FLOOR: the floors that FLOOR may include, itself among them.
below() {
  case $1 in
    core) echo core ;;
    reference|kernels|datasets|reports) echo core "$1" ;;
    models) echo core models ;;
    serving) echo core models serving ;;
    harness) echo core reference kernels datasets reports models serving harness ;;
  esac
}

floors="core reference kernels datasets reports models serving harness"
# Examples of plug-ins are built as an author would build them, beside their header.
for floor in $floors; do
  allowed=$(below $floor)
  for include in $(grep -rhoE '^[[:space:]]*#[[:space:]]*include "[^"]+"' --include='*.h' --include='*.cc' \
      --include='*.cu' --include='*.cuh' --exclude='*_test.cc' --exclude-dir=examples $floor | sed 's/.*"\(.*\)"/\1/' | sort -u); do
    top=${include%%/*}
    case " $allowed " in
      *" $top "*) ;;
      *) complain "$floor includes \"$include\"; it may include only: $allowed" ;;
    esac
  done
done

# Tests of models and serving may also run on the reference backend; all else as above.
for file in $(find $floors -name '*_test.cc'); do
  floor=${file%%/*}
  allowed=$(below $floor)
  case $floor in models|serving) allowed="$allowed reference" ;; esac
  for include in $(sed -nE 's/^[[:space:]]*#[[:space:]]*include "([^"]+)".*/\1/p' "$file"); do
    top=${include%%/*}
    case " $allowed " in
      *" $top "*) ;;
      *) complain "$file includes \"$include\"; it may include only: $allowed" ;;
    esac
  done
done

for file in $(grep -rlE '#[[:space:]]*include <Eigen' --include='*.h' --include='*.cc' --include='*.cu' $floors); do
  case $file in
    reference/*.cc) ;;
    *) complain "$file includes Eigen; only the .cc files of reference/ may" ;;
  esac
done

for header in $(find $floors -name '*.h'); do
  head -40 "$header" | grep -q '^#pragma once' || complain "$header lacks #pragma once"
done

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  kib=$(($(git ls-files -z | xargs -0 -r cat 2>/dev/null | wc -c) / 1024))
  [ "$kib" -le 36864 ] || complain "tracked files take $kib KiB; at most 36864 may travel"
fi
[ $status -eq 0 ] && echo "tree: floors, Eigen, headers and size hold"
exit $status
