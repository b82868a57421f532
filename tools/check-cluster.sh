#!/bin/sh
# Router and workers as processes: they answer as `hypic serve` does, also while workers are killed.
#   sh tools/check-cluster.sh HYPIC [TRANSPORT [BACKEND [RANKS]]]          exit code 77: there is no curl
# TRANSPORT: of the workers, tcp, ipc or nccl. BACKEND: cpu, or one of a GPU, which all share then; NCCL is told that
# each is on a machine of its own, so that it goes from one to the other through sockets. RANKS: tensor-parallel ones of
# each worker (1), all on the first GPU; residues of several go through host memory.
set -u
hypic=$1 transport=${2:-tcp} backend=${3:-cpu} ranks=${4:-1}
model=datasets/models/tiny-qwen3.5
command -v curl >/dev/null || { echo "SKIP: no curl"; exit 77; }
shared="--tensor-parallel $ranks --devices $(yes 0 | head -n "$ranks" | paste -sd, -)"
out=$(mktemp -d)
status=0
pids=""
trap 'for pid in $pids; do kill -9 $pid 2>/dev/null; done; rm -rf "$out"' EXIT
complain() { echo "$*" >&2; status=1; }

# start NAME ARGUMENTS...: a process in the background, and the address that it says it is on, in $address.
start() {
  case $2 in
    worker) set -- "$@" --transport "$transport" --backend "$backend" $shared ;;
    serve) set -- "$@" --backend "$backend" $shared ;;
  esac
  name=$1; shift
  rm -f "$out/$name.out"  # of an earlier process of this name
  NCCL_HOSTID=$name "$hypic" "$@" >"$out/$name.out" 2>"$out/$name.err" &
  eval "pid_$name=$!"
  pids="$pids $!"
  for i in $(seq 600); do
    address=$([ -f "$out/$name.out" ] && sed -nE 's/.* on (http:..)?([0-9.]+:[0-9]+)$/\2/p' "$out/$name.out")
    [ -n "$address" ] && return
    sleep 0.1
  done
  echo "$name did not start: $(cat "$out/$name.err")" >&2
  exit 1
}

# ask ADDRESS N: the token ids of the answer to prompt N, or why there is none.
ask() {
  curl -s -m 60 "http://$1/v1/completions" -d "{\"segments\": [\"The first document of $2 is about a river and a mill.\",
    \"The second document says $2 times that the miller's name is Ann.\", \"A third one, number $2, names a bridge and its toll.\",
    \"And a fourth: in $2 the toll was three pence a cart.\", \"What is the miller's name?\"],
    \"max_tokens\": 6, \"temperature\": 0, \"return_token_ids\": true, \"ignore_eos\": true}" |
    sed -nE 's/.*("token_ids": ?\[[0-9, ]*\]).*/\1/p; s/.*("message": ?"[^"]*").*/\1/p'
}
wait_until_ready() {
  for i in $(seq 300); do
    [ "$(curl -s -o /dev/null -w '%{http_code}' "http://$1/health")" = 200 ] && return
    sleep 0.1
  done
  complain "$1 is not ready"
}
workers_up() { grep -c ': up, ' "$out/router.err"; }

# Without gRPC's own look after its channels every five seconds, a router that waits for it finds workers never.
export GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS=0

start alone serve --model $model --port 0
alone=$address
start combine worker --role combine --model $model --listen 127.0.0.1:0 --patience 1 --first-patience 20
combine=$address
start one worker --role scatter --model $model --listen 127.0.0.1:0
one=$address
start two worker --role scatter --model $model --listen 127.0.0.1:0
two=$address
printf '%s\n' "# the workers of this test" "combine $combine" "scatter $one" "scatter $two" >"$out/workers"
said=$("$hypic" worker --model $model --listen "$one" 2>&1)
[ "$?,$said" = "2,hypic: cannot listen for routers on $one: Address already in use; choose another address with --listen" ] ||
  complain "a worker on a taken port says: $said"
start router router --model $model --port 0 --workers "$out/workers" --policy round_robin
router=$address
wait_until_ready "$alone"
wait_until_ready "$router"
for i in $(seq 100); do [ "$(workers_up)" -ge 3 ] && break; sleep 0.1; done
[ "$(workers_up)" -ge 3 ] || complain "not all workers are up: $(cat "$out/router.err")"

# same N: the router answers as the one engine does.
same() {
  expected=$(ask "$alone" "$1")
  answer=$(ask "$router" "$1")
  case $expected in *token_ids*) ;; *) complain "no answer of one engine: $expected" ;; esac
  [ "$expected" = "$answer" ] || complain "prompt $1: $answer, one engine says $expected"
}
# count WHO: segments so far.
count() { curl -s "http://$router/metrics" | sed -n "s/^hypic_router_segments_total{by=\"$1\"} //p"; }
same 1
curl -s "http://$router/metrics" | grep -q ^hypic_cache_ && complain "the router counts a cache that it does not have"
[ "$(count scatter)" -gt 0 ] || complain "the workers computed no segments"
[ "$(count combine_after_failure)" = 0 ] || complain "not all segments arrived"
# by_device NAMES: residues of these workers do not go through host memory; a link is made beside the first ones. Those of
# several ranks do, which is said.
by_device() {
  [ $transport = tcp ] && return
  if [ "$ranks" -gt 1 ]; then
    for name in "$@"; do
      grep -q "with --tensor-parallel $ranks residues go through host memory" "$out/$name.err" ||
        complain "$name does not say which way residues go: $(cat "$out/$name.err")"
    done
    return
  fi
  for i in $(seq 100); do
    for name in "$@"; do grep -q 'from device to device' "$out/$name.err" && return; done
    [ $transport = nccl ] || break
    curl -s -X POST -o /dev/null "http://$router/flush_cache"
    sleep 0.2
    same 1
  done
  for name in "$@"; do complain "$name: residues went through host memory: $(cat "$out/$name.err")"; done
}
by_device one two
same 1
kill -STOP $pid_one  # it takes what it is sent and does nothing
same 2
[ "$(count combine_after_failure)" -gt 0 ] || complain "a stopped worker went unnoticed"
kill -9 $pid_one
same 3
kill -9 $pid_two
same 4
same 5
curl -sN -m 60 "http://$router/v1/completions" -d '{"prompt": "A long answer?", "max_tokens": 2000, "stream": true,
  "ignore_eos": true}' >"$out/stream" &
stream=$!
for i in $(seq 100); do [ -s "$out/stream" ] && break; sleep 0.1; done
kill -9 $pid_combine
wait $stream
grep -q "the worker that combines is lost: $combine: the connection was closed: its process has ended" "$out/stream" ||
  complain "a stream whose worker is killed ends with: $(tail -n 3 "$out/stream")"
answer=$(ask "$router" 6)
case $answer in *message*) ;; *) complain "without workers: \"$answer\", not a reason" ;; esac
start combine worker --role combine --model $model --listen "$combine"
wait_until_ready "$router"
same 7
kill -TERM $pid_router
wait $pid_router || complain "the router ended with $?"
# A router that is there before its workers says what it waits for, and finds them.
kill -9 $pid_combine
start router router --model $model --port 0 --combine "$combine" --scatter "$one"
router=$address
wait_for_reason() {
  for i in $(seq 100); do
    case $(curl -s "http://$router/health") in *"$1"*) return ;; esac
    sleep 0.1
  done
  complain "/health never says \"$1\": $(curl -s "http://$router/health")"
}
wait_for_reason "no worker that combines is up ($combine: nothing listens there)"
sleep 3
start one worker --role scatter --model $model --listen "$one"
start combine worker --role combine --model $model --listen "$combine"
wait_until_ready "$router"
same 8
# Every address of a name, where there are names.
if getent hosts localhost >/dev/null; then
  start named router --model $model --port 0 --combine "dns:localhost:${combine##*:}" --scatter "dns:localhost:${one##*:}"
  router=$address
  wait_until_ready "$router"
  same 9
fi
start other router --model $model --mode transition --port 0 --combine "$combine"
router=$address
wait_for_reason "($combine: differs in --mode: ours transition, theirs transition_rope_seam)"
start forgetful router --port 0 --combine "$combine"
router=$address
wait_for_reason "($combine: differs in --model: ours random:qwen3.5-tiny:0, theirs tiny-qwen3.5)"
if command -v openssl >/dev/null; then
  # One certificate for all, which is its own authority.
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=hypic \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$out/key" -out "$out/cert" 2>/dev/null
  openssl rand -hex 32 >"$out/shared"
  tls="--tls-ca $out/cert --tls-cert $out/cert --tls-key $out/key"
  start combine2 worker --role combine --model $model --listen 127.0.0.1:0 $tls --key-file "$out/shared"
  combine2=$address
  start one2 worker --role scatter --model $model --listen 127.0.0.1:0 $tls --key-file "$out/shared"
  start guarded router --model $model --port 0 --combine "$combine2" --scatter "$address" --policy round_robin $tls
  router=$address
  wait_until_ready "$router"
  for i in $(seq 100); do grep -q ': up, scatter' "$out/guarded.err" && break; sleep 0.1; done
  same 10
  [ "$(count scatter)" -gt 0 ] || complain "with TLS and a key nothing was sent: $(cat "$out/guarded.err")"
  by_device one2
  start open router --model $model --port 0 --combine "$combine2"
  router=$address
  wait_for_reason "it may use TLS (--tls-ca, --tls-cert, --tls-key)"
else
  echo "SKIP: no openssl: TLS and keys were not tried"
fi
[ $status -eq 0 ] && echo "the workers answer as one engine"
exit $status
