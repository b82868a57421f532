#!/bin/sh
# A server and its clients as processes: the curl lines of README.md and docs/serving.md, and OpenAI's client where
# python3 has it. check-serve.sh HYPIC
set -u
hypic=$1
out=$(mktemp -d)
trap 'kill "$server" 2>/dev/null; rm -rf "$out"' EXIT
status=0
wrong() { echo "$*" >&2; status=1; }

start() {
  : >"$out/log"  # an earlier server's has its address
  "$hypic" serve --model datasets/models/tiny-qwen3.5 --port 0 >"$out/log" 2>&1 &
  server=$!
  for _ in $(seq 3000); do
    url=$(sed -n 's|^hypic serves .* on \(http://.*\)$|\1|p' "$out/log")
    [ -n "$url" ] && return
    kill -0 "$server" 2>/dev/null || break
    sleep 0.01
  done
  cat "$out/log" >&2
  echo "the server did not start" >&2
  exit 1
}
start

if command -v curl >/dev/null; then
  for page in README.md docs/serving.md; do
    sed -n 's/^    \(curl .*\)$/\1/p' "$page" | sed "s|localhost:8000|${url#http://}|; s/^curl/curl -fsS/" >"$out/curls"
    [ -s "$out/curls" ] || wrong "$page shows no curl line"
    while read -r line; do
      printed=$(sh -c "$line" 2>&1) || wrong "$page: $line: $printed"
      case $line in
        *'"stream": true'*) case $printed in *"data: [DONE]"*) ;; *) wrong "$line: no end of the stream: $printed" ;; esac ;;
        *completions*) case $printed in *'"choices"'*) ;; *) wrong "$line: no answer: $printed" ;; esac ;;
      esac
    done <"$out/curls"
  done
else
  echo "SKIP: no curl: the lines of README.md were not tried"
fi

if command -v python3 >/dev/null; then
  python3 tools/serve-clients.py "$url" || status=1
else
  echo "SKIP: no python3: streams, many clients and OpenAI's client were not tried"
fi

kill "$server"
wait "$server" || wrong "the server ended with $?: $(cat "$out/log")"
grep -q draining "$out/log" || wrong "the server did not say that it drains: $(cat "$out/log")"
# A terminal and a parent may both send its interrupt.
for round in $(seq 20); do
  start
  kill -INT "$server"
  kill -INT "$server" 2>/dev/null
  wait "$server" || wrong "interrupted twice, in round $round, the server ended with $?: $(cat "$out/log")"
done
[ $status -eq 0 ] && echo "clients get the answers that are documented"
exit $status
