#!/bin/sh
# The programs from outside: exit codes and one clear line for each mistake. check-cli.sh HYPIC [HYPIC-BENCH]
set -u
hypic=$1 bench=${2:-}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
status=0

# expect CODE TEXT ARGUMENTS...: exits with CODE and prints TEXT somewhere.
expect() { expect_of "$hypic" "$@"; }

# expect_of PROGRAM CODE TEXT ARGUMENTS...
expect_of() {
  program=$1 code=$2 text=$3; shift 3
  printed=$("$program" "$@" 2>&1); got=$?
  name=$(basename "$program")
  if [ $got -ne "$code" ]; then echo "$name $*: exit $got, expected $code: $printed" >&2; status=1; fi
  case $printed in
    *"$text"*) ;;
    *) echo "$name $*: no \"$text\" in: $printed" >&2; status=1 ;;
  esac
}

expect 0 "Usage" --help
expect 2 "subcommand" 
expect 2 'hypic: there is no command "frobnicate"; hypic --help says more' frobnicate
expect 2 'hypic golden: there is no command "frob"' golden frob
expect 2 "hypic validate: model is required; hypic validate --help says more" validate
expect 2 "hypic run: --data: Path does not exist" run suites/quick.json --data "$out/none"
expect 0 "gated_delta_net" families
expect 0 '"relocatable": true' families --json
expect 0 "qwen3.5-27b" models
expect 0 '"parameters"' models --json
expect 2 "no such file" run no/such.json --out "$out/a"
expect 2 "--rung: only of --backend cuda or cuda32, not of cpu" conformance --backend cpu --rung plain
expect 2 "--rung: must be plain or fast" run suites/quick.json --backend cuda --rung best
expect 0 "SKIP" run suites/multi_gpu.json --out "$out/g"
expect 2 "3 ranks cannot share 4 value heads" ttft --tensor-parallel 3 --out "$out/g"
expect 2 "--devices: must name a device for each of 2 ranks, names 1" ttft --tensor-parallel 2 --devices 0 --out "$out/g"
expect 2 "no --host-cache" serve --tensor-parallel 2 --host-cache 1
expect 2 "time-budget" run suites/quick.json --time-budget x
expect 2 "must not be negative" run suites/quick.json --time-budget=-1
expect 2 "no case's name contains" run suites/quick.json --filter zzz --dry-run
expect 0 "naive addition" run suites/quick.json --dry-run
echo '{"title": "t", "cases": [{"name": "a", "driver": "reuse", "parameters": {"model": "random:none"}}]}' >"$out/bad.json"
expect 2 'unknown model "none"; known: qwen3.5-tiny' run "$out/bad.json" --out "$out/b"
expect 2 'unknown model "none"' run "$out/bad.json" --dry-run
expect 2 "no such folder" run "$out/bad.json" --model "$out/none" --out "$out/b"
echo '{"title": "t", "cases": [{"name": "a", "driver": "addition", "expect": [{"tag": "measured.e5.256", "relation": "<", "value": 0}]}]}' >"$out/fails.json"
expect 1 "FAIL" run "$out/fails.json" --out "$out/b"
expect 1 "FAIL" report "$out/b"
expect 0 "PASS" run suites/quick.json --filter addition --out "$out/c"
expect 0 "naive addition on RetNet" report "$out/c"
expect 0 "" report "$out/c/report.json" --out "$out/d"
[ -s "$out/d/report.html" ] || { echo "report --out wrote no page" >&2; status=1; }
expect 2 "no such file" report "$out/none.json"
expect 4 "UNDECIDED" run suites/quick.json --time-budget 0 --out "$out/e"
expect 0 "0.1" --version
expect 2 "does not exist" run suites/quick.json --filter "modes on text" --data "$out/none.jsonl" --out "$out/f"
printf '{"pred": "The Long Island.", "answers": ["Long Island"]}\n{"pred": "no", "answers": ["yes"]}\n' >"$out/pred.jsonl"
expect 0 'hotpotqa: F1 50.00 over 2 rows' score --dataset hotpotqa "$out/pred.jsonl"
expect 0 '{"scores":[1.0,0.0],"mean":0.5,"interval":[0.0,1.0]}' score --dataset hotpotqa --json "$out/pred.jsonl"
expect 2 'unknown dataset "trec"; known are hotpotqa, 2wikimqa' score --dataset trec "$out/pred.jsonl"
expect 2 "none.jsonl: cannot be opened" score --dataset hotpotqa "$out/none.jsonl"
printf '{"pred": "a", "answers": ["a"]}\n{"pred": 1, "answers": ["a"]}\n' >"$out/pred.jsonl"
expect 2 'pred.jsonl:2: not {"pred": text' score --dataset hotpotqa "$out/pred.jsonl"
printf 'one<<PIC_SEP>>two' >"$out/text"
expect 0 '"key":"' tokenize --tokenizer datasets/tokenizer --json "$out/text"
expect 0 '"segments":[{"tokens":' tokenize --tokenizer datasets/tokenizer --json --segments "$out/text"
expect 2 "cannot be read; is it a folder?" tokenize --tokenizer datasets/tokenizer "$out"
expect 2 "hypic:" tokenize --tokenizer "$out/none" "$out/text"
expect 0 '"id":"headlines/test/7/4x32/0"' tasks --task headlines --split test --seed 7 --segments 4 --tokens 32 --rows 1
expect 2 'no task is called "riddle"; known: fact, two_hop' tasks --task riddle
expect 2 "give --task or --mix" tasks
echo '[{"task": "fact", "segments": [2, 4], "tokens": [16, 32], "weight": 1}, {"task": "latest", "segments": [8, 8], "tokens": [64, 64], "weight": 1}]' >"$out/mix.json"
expect 2 "--mix needs --tokenizer" tasks --mix "$out/mix.json" --out "$out/mix.bin"
mix="tasks --mix $out/mix.json --tokenizer datasets/models/tokenizer"
expect 2 "part 1: hardly a row fits 256 tokens" $mix --length 256 --out "$out/mix.bin"
expect 0 "614400 tokens" $mix --length 1024 --sequences 600 --out "$out/mix.bin"
expect 0 "102400 tokens" $mix --length 1024 --sequences 100 --out "$out/part.bin"
[ "$(head -c 204800 "$out/mix.bin" | cksum)" = "$(head -c 204800 "$out/part.bin" | cksum)" ] ||
  { echo "tasks --mix: sequences depend on how many there are" >&2; status=1; }
echo '[{"task": "fact", "segments": [4, 2], "tokens": [16, 32], "weight": 1}]' >"$out/mix.json"
expect 2 'part 0: "segments" is [from, to] within 2 and 32' $mix --out "$out/mix.bin"
for place in a,b b,a; do
  echo "{\"timestamp\": 0, \"segments\": [{\"id\": \"${place%,*}\", \"tokens\": 10}, {\"id\": \"${place#*,}\", \"tokens\": 10}], \"output_tokens\": 1}"
done >"$out/pic-trace.jsonl"
expect 0 "50.0 %" trace "$out/pic-trace.jsonl" --budget 1 --budget 2.5 --admission first
expect 0 '"hit_share": 0.5' trace --json "$out/pic-trace.jsonl"
expect 2 "admission" trace "$out/pic-trace.jsonl" --admission third
expect 2 "budget" trace "$out/pic-trace.jsonl" --budget -1
expect 2 "pred.jsonl:1: no known trace" trace "$out/pred.jsonl"
expect 2 "is no IP address" serve --host nowhere
expect 2 'unknown chat template "llama"; known: chatml' serve --chat-template llama
expect 2 "--port" serve --port 70000
if [ -x "$(dirname "$hypic")/hypic-cluster" ]; then
  expect 0 "Answer over HTTP with workers" router --help
  expect 2 "no worker that combines: give --combine" router
  expect 2 '--scatter: "nowhere" is no HOST:PORT' router --combine 127.0.0.1:1 --scatter nowhere
  expect 2 "LWS_LEADER_ADDRESS and LWS_GROUP_SIZE are not set" router --bootstrap lws
  expect 2 "none not in {scatter,combine}" worker --role none
  expect 2 "reuses no segments" worker --mode prefix
  expect 2 "must be folder:PATH or redis:HOST:PORT" worker --store s3:bucket
  expect 2 "--tls-ca, --tls-cert and --tls-key: give all three, or none" worker --tls-ca "$out/text"
  expect 2 "holds no certificate in PEM" router --combine 127.0.0.1:1 --tls-ca "$out/text" --tls-cert "$out/text" --tls-key "$out/text"
  echo short >"$out/short"
  expect 2 "holds 5 bytes, at least 16 are asked for" worker --key-file "$out/short"
fi
expect_of timeout 0 "draining" --preserve-status -s TERM 3 "$hypic" serve --port 0
expect 2 "unknown model" serve --model random:none
expect 2 "lower pages: fewer tokens" serve --tokens 2000000000
expect 2 "load: give either the URL of a server or --mock" load
expect 2 "load: give either the URL of a server or --mock" load http://127.0.0.1:9 --mock
expect 2 "--url: " load ftp://127.0.0.1 --out "$out/load"
expect 2 "--arrivals: " load --mock --arrivals uniform --out "$out/load"
expect 2 "--rate: must be" load --mock --rate 0 --out "$out/load"
expect 2 "--slo: " load --mock --slo ttft=5 --out "$out/load"
expect 2 "--slo: a search needs one" load --mock --search --out "$out/load"
expect 2 "--verify-requests: 5 can never show" load --mock --search --slo ttft:100 --verify-requests 5 --out "$out/load"
expect 2 "--trace: none.jsonl: no such file" load --mock --trace none.jsonl --out "$out/load"
expect 1 "no request was answered" load http://127.0.0.1:9 --requests 3 --warmup 0 --lag-bound-ms 10000 --out "$out/load"
few="--requests 40 --rate 200 --mock-ttft-ms 1 --lag-bound-ms 10000 --quiet"
expect 0 "MEASURED: report in" load --mock $few --out "$out/load"
[ -s "$out/load/summary.json" ] && [ "$(wc -l <"$out/load/items.jsonl")" -ge 40 ] ||
  { echo "load left no summary.json or items.jsonl" >&2; status=1; }
expect 0 "PASS: report in" load --mock $few --slo ttft:5000 --out "$out/load2"
expect 1 "FAIL" load --mock $few --slo ttft:0.001 --out "$out/load3"
expect 3 "the cache is not as declared" load --mock $few --cached-share 0.5,1 --out "$out/load4"
expect 0 "SKIP" run suites/qps.json --backend cpu --out "$out/qps"
kimi=models/testdata/transformers/kimi_linear
expect 0 "PASS: report in" validate $kimi --logits $kimi/golden.safetensors --out "$out/v"
mkdir -p "$out/hub/models--me--kimi/refs" "$out/hub/models--me--kimi/snapshots"
cp -r $kimi "$out/hub/models--me--kimi/snapshots/abc"
echo abc >"$out/hub/models--me--kimi/refs/main"
HF_HUB_CACHE="$out/hub" expect 0 "PASS: report in" validate me/kimi --out "$out/v"
expect 2 "no such folder; a model is random:NAME[:SEED], a Hugging Face folder, or OWNER/NAME" validate "$out/none"
echo '{"eos_token_id": 5000}' >"$out/hub/models--me--kimi/snapshots/abc/generation_config.json"
HF_HUB_CACHE="$out/hub" expect 1 "eos_token_id 5000 is outside the vocabulary of 128" validate me/kimi --out "$out/v3"
rm "$out/hub/models--me--kimi/snapshots/abc/generation_config.json"
cp datasets/models/tokenizer/tokenizer.json "$out/hub/models--me--kimi/snapshots/abc"
HF_HUB_CACHE="$out/hub" expect 1 "its tokenizer has ids up to 1172, outside the vocabulary of 128" validate me/kimi --out "$out/v3"
expect 2 "--data: $kimi has no tokenizer to read it with" validate $kimi --data datasets/text/passages.jsonl --out "$out/v"
expect 2 "text:1: not valid JSON" validate random:qwen3.5-tiny --data "$out/text" --out "$out/v"
expect 2 'unknown model "none"' validate random:none
expect 2 "unknown backend" validate $kimi --backend none --out "$out/v"
mkdir "$out/damaged"
head -c 1000 $kimi/model.safetensors >"$out/damaged/model.safetensors"
cp $kimi/config.json "$out/damaged"
expect 1 "FAIL" validate "$out/damaged" --out "$out/v2"
sed 's/kimi_linear/gpt2/' $kimi/config.json >"$out/damaged/config.json"
expect 1 "chunks, single steps and batches agree with one prefill: the same" validate "$out/damaged" --out "$out/v2"
expect 1 'model type "gpt2" is not supported; supported: qwen3_5_text' validate "$out/damaged" --out "$out/v2"
expect 0 "gated_delta_net/fault_06_state_layout" conformance --list
expect 0 "--captured takes q [T, Hk, dk], k [T, Hk, dk]" conformance --list --family kda
expect 0 "state_transposed: the state is written as [d_v, d_k]" conformance --list --broken all
expect 0 "PASS" conformance --op rope --op attention --out "$out/conformance"
expect 0 "rope/positions" report "$out/conformance"
expect 1 "gated_delta_net/fault_06_state_layout, linear_attention: h0[k, v] = k + 1000 v, 128 × 128, state 0: [0, 0, 1] is" \
  conformance --backend broken:state_transposed --family gated_delta_net --filter fault_06 --out "$out/conformance"
expect 0 "caught by gated_delta_net/fault_06_state_layout" conformance --broken state_transposed --out "$out/conformance"
expect 0 "kda, captured" conformance --captured reference/testdata/fla/kda.safetensors --family kda --out "$out/conformance"
expect 2 "lacks the tensor beta [T, Hv] of kda" conformance --captured reference/testdata/fla/gla.safetensors --family kda
expect 2 "name the one family that the activations are of" conformance --captured reference/testdata/fla/kda.safetensors
expect 2 "--kernel: $out: is no file; it is a shared library" conformance --kernel "$out"
expect 0 "may be repeated: retnet, lightning, gla, delta_net, gated_delta_net, kda" golden export --help
expect 2 "not a safetensors file" conformance --captured "$out/text" --family kda
expect 2 'unknown family "none"' conformance --family none
expect 2 "nonlinear" conformance --family ttt_linear
expect 2 'unknown operation "none"; known: linear_attention' conformance --op none
expect 2 'no case' conformance --filter zzz
expect 2 "no regular expression" conformance --filter "("
expect 2 'unknown fault class "none"; known: all, nan_at' conformance --broken none
expect 2 'unknown backend "none"; known: cpu, cpu64, cuda, cuda32, cuda:plain, cuda32:plain, cuda:SMS, cuda32:SMS, broken:FAULT' conformance --backend none
cell="--segments 2 --tokens 16 --question 4 --repeats 2"
expect 0 "MEASURED: report in" ttft $cell --out "$out/ttft"
expect 0 "transition_rope_seam@warm_segment: p50" report "$out/ttft"
expect 2 "--segments: must be an integer in 1 … 4096, is 0" ttft --segments 0 --out "$out/ttft"
expect 2 '--modes: unknown mode "ful"; known' ttft --modes ful --out "$out/ttft"
expect 2 '--modes: an empty mode in "prefix,,"' ttft --modes prefix,, --out "$out/ttft"
expect 2 "--missed: none of --modes takes it" ttft $cell --modes full,transition@cold --missed 1 --out "$out/ttft"
expect 2 "--missed: 3 of 2 segments cannot miss" ttft $cell --missed 3 --out "$out/ttft"
expect 0 "composes states rightly" report "$out/ttft"
expect 0 "MEASURED" ttft $cell --out "$out/ttft" --resume --quiet
expect 2 "--data: needs --dataset" ttft $cell --data "$out/pred.jsonl" --out "$out/ttft"
printf '%s\n' '{"_id": "a", "dataset": "hotpotqa", "input": "Q?", "context": "Passage 1:\nOne.\nPassage 2:\nTwo.", "answers": ["no"]}' >"$out/rows.jsonl"
expect 2 "rows of hotpotqa, not of triviaqa; without --data its tokens are random" \
  ttft --dataset triviaqa --rows 1 --data "$out/rows.jsonl" --out "$out/ttft"
expect 0 "about 161 s on an H200 by the suite" run suites/ttft.json --model random:ring-mini-linear-2.0 --backend cpu --dry-run
if [ -z "$(ls /dev/nvidia[0-9]* 2>/dev/null)" ]; then  # suites of a GPU are listed and checked without one
  for suite in $(grep -l '"backend": "cuda' suites/*.json); do
    expect 0 "cannot run on this machine: backend cuda" run "$suite" --dry-run
  done
  expect 0 "expectations: 1" run suites/cold.json --dry-run
  expect 2 'unknown backend "cudas"' run suites/cold.json --backend cudas --dry-run
  sed 's/"workers"/"worker"/' suites/cold.json >"$out/cold.json"
  expect 2 'unknown parameter "worker"' run "$out/cold.json" --dry-run
fi
asked="--model random:granite-4.0-h-350m-tiny:3 --task fact --segments 2 --tokens 32 --rows 2 --new-tokens 2 --quiet"
expect 0 "MEASURED: report in" quality $asked --modes prefix,addition --out "$out/quality"
expect 0 "MEASURED" quality $asked --modes prefix,addition --out "$out/quality" --resume
expect 2 "holds results of another suite" quality $asked --modes prefix --out "$out/quality" --resume
expect 0 "PASS: 10 of 10 outputs are the same" quality --compare "$out/quality" "$out/quality/items.jsonl"
expect 2 "not a line of an items.jsonl of hypic quality" quality --compare "$out/quality" "$out/rows.jsonl"
expect 2 "--task or --dataset: say what to ask" quality
expect 2 "--rows: must be an integer in 1" quality --task fact --rows=-1
expect 2 '--modes: mode "full": full recompute runs anyway' quality --task fact --modes full
expect 2 "no rows of hotpotqa" quality --dataset hotpotqa
expect 2 "--kernel: $out/none.so: no such file" conformance --kernel "$out/none.so"
expect 2 "--kernel-seconds" conformance --kernel-seconds 0
expect 2 "rwkv7: is not exported; exported are retnet" golden export "$out/goldens" --family rwkv7
expect 0 "17 workloads in" golden export "$out/goldens" --family retnet
expect 2 "outputs: no such folder" golden check "$out/goldens"
mkdir -p "$out/goldens/outputs/retnet_hk1_hv1_k128_v128"
expect 0 "no outputs" golden check "$out/goldens" --out "$out/golden"
cp "$out/goldens/blob/expected/retnet_hk1_hv1_k128_v128/random.safetensors" "$out/goldens/outputs/retnet_hk1_hv1_k128_v128"
expect 1 "1 of 2 workloads have no output" golden check "$out/goldens" --out "$out/golden"
cp "$out/goldens/blob/expected/retnet_hk1_hv1_k128_v128/lengths.safetensors" "$out/goldens/outputs/retnet_hk1_hv1_k128_v128"
expect 0 "PASS: report in" golden check "$out/goldens" --out "$out/golden"
cp "$out/goldens/blob/expected/retnet_hk2_hv2_k64_v64/slow.safetensors" "$out/goldens/outputs/retnet_hk1_hv1_k128_v128/random.safetensors"
expect 3 "o has shape [100, 2, 64], expected [100, 1, 128]" golden check "$out/goldens" --out "$out/golden"
expect 2 "no such folder; hypic golden export makes one" golden check "$out/none"
expect 0 "SKIP" run suites/quality-real.json --backend cpu --out "$out/real"
if [ -n "$bench" ]; then
  expect_of "$bench" 2 "--budget: must be a positive number of seconds, is nan" --backend cpu --budget nan
  expect_of "$bench" 2 "$out" --backend cpu --filter "^ceiling/copy" --replays 1 --json "$out"
fi
[ $status -eq 0 ] && echo "the program answers as documented"
exit $status
