#!/bin/sh
# Runs the commands that a page of docs shows: sh tools/check-docs.sh HYPIC PAGE…
# Every ```sh block must exit with 0; reports go to a folder that is removed.
set -eu
hypic=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$hypic" "$work/bin/hypic"
PATH=$work/bin:$PATH
export PATH
for page in "$@"; do
  awk '/^```sh$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page" | sed "s|out/|$work/|g" > "$work/commands"
  test -s "$work/commands" || { echo "$page: shows no command"; exit 1; }
  sh -eux "$work/commands" || { echo "$page: a command failed"; exit 1; }
done
