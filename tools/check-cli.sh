#!/bin/sh
# The program from outside: exit codes and one clear line for each mistake. check-cli.sh HYPIC
set -u
hypic=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
status=0

# expect CODE TEXT ARGUMENTS...: exits with CODE and prints TEXT somewhere.
expect() {
  code=$1 text=$2; shift 2
  printed=$("$hypic" "$@" 2>&1); got=$?
  if [ $got -ne "$code" ]; then echo "hypic $*: exit $got, expected $code: $printed" >&2; status=1; fi
  case $printed in
    *"$text"*) ;;
    *) echo "hypic $*: no \"$text\" in: $printed" >&2; status=1 ;;
  esac
}

expect 0 "Usage" --help
expect 2 "subcommand" 
expect 2 "" frobnicate
expect 0 "gated_delta_net" families
expect 0 '"relocatable": true' families --json
expect 0 "qwen3.5-27b" models
expect 0 '"parameters"' models --json
expect 2 "cannot read the suite" run no/such.json --out "$out/a"
expect 2 "time-budget" run suites/quick.json --time-budget x
expect 2 "no case's name contains" run suites/quick.json --filter zzz --out "$out/a"
expect 0 "naive addition" run suites/quick.json --dry-run
echo '{"title": "t", "cases": [{"name": "a", "driver": "reuse", "parameters": {"model": "random:none"}}]}' >"$out/bad.json"
expect 1 'unknown model "none"; known: qwen3.5-tiny' run "$out/bad.json" --out "$out/b"
expect 1 "no such folder" run "$out/bad.json" --model "$out/none" --out "$out/b"
expect 1 "FAIL" report "$out/b"
expect 0 "PASS" run suites/quick.json --filter addition --out "$out/c"
expect 0 "naive addition on RetNet" report "$out/c"
expect 0 "" report "$out/c/report.json" --out "$out/d"
[ -s "$out/d/report.html" ] || { echo "report --out wrote no page" >&2; status=1; }
expect 2 "no such file" report "$out/none.json"
expect 0 "SKIP" run suites/quick.json --time-budget 0 --out "$out/e"
expect 2 "does not exist" run suites/quick.json --filter "modes on text" --data "$out/none.jsonl" --out "$out/f"
[ $status -eq 0 ] && echo "the program answers as documented"
exit $status
