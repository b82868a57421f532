#!/usr/bin/env python3
"""Our kernels beside public ones, on one GPU in one run: hypic-bench, then flash-linear-attention's Triton kernels and
PyTorch's attention (FlashAttention-2, cuDNN) in the same shapes; a table of ratios.

    peers-kernels.py BENCH WHEELS OUT [--only REGEX] [--budget SECONDS]

BENCH: hypic-bench; WHEELS: a folder with the wheels of fla-core, flash-linear-attention and einops; needs torch and
triton. Writes OUT/peers-kernels.md, OUT/peers-kernels.json and what hypic-bench wrote, OUT/hypic.json. --only: names of
hypic-bench; --budget (default 500): after so many seconds no further peer is begun. Exit codes: 0 all measured, 1 some
not, 2 usage.

Both are timed as docs/benchmarks.md says: CUDA graphs, 3 replays to warm up, the median of 20, 256 MiB written before
each, the stream kept busy for 50 µs so that no launch cost is in the time. Autotuned kernels see only their best
configuration, found at the longest shape: fla's keys leave the length out. Other processes compile the candidates
first; one after another that takes longer than a lease.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

REPLAYS, WARM, FLUSH_BYTES, BUSY_CYCLES = 20, 3, 256 << 20, 100_000
COMPILE_SECONDS = 150


# Inputs as hypic-bench draws them: q and k of length 1, log decays of −0.001 … −0.1, β of 0.1 … 0.9.
def normal(*shape):
    import torch
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def unit(*shape):
    import torch
    return torch.nn.functional.normalize(torch.randn(*shape, device="cuda"), dim=-1).to(torch.bfloat16)


def uniform(low, high, *shape):
    import torch
    return torch.rand(*shape, device="cuda") * (high - low) + low


def linear(module, function, tokens, keys, heads, gate, beta, batch=1, state=False, **options):
    """A function of fla over `batch` chains of `tokens`; gate: "head", "dim" or None."""
    import importlib

    import torch
    d = 128
    call = getattr(importlib.import_module(f"fla.ops.{module}"), function)
    inputs = dict(q=unit(batch, tokens, keys, d), k=unit(batch, tokens, keys, d), v=normal(batch, tokens, heads, d))
    if gate:
        inputs["g"] = -uniform(0.001, 0.1, batch, tokens, heads, *([d] if gate == "dim" else []))
    if beta:
        inputs["beta"] = uniform(0.1, 0.9, batch, tokens, heads).to(torch.bfloat16)
    if state:
        inputs["initial_state"] = torch.randn(batch, heads, d, d, device="cuda")
    return lambda: call(**inputs, scale=d ** -0.5, output_final_state=True, **options)


def attention(backend, tokens):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    q, k, v = normal(1, 16, tokens, 256), normal(1, 2, tokens, 256), normal(1, 2, tokens, 256)
    chosen = getattr(SDPBackend, backend)

    def run():
        with sdpa_kernel(chosen):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return run


def convolution(tokens):
    from fla.modules.causal_conv1d import causal_conv1d
    x, w = normal(1, tokens, 8192), normal(8192, 4)
    return lambda: causal_conv1d(x=x, weight=w, output_final_state=True, activation="silu", backend="triton")


def peers():
    """(hypic-bench's name, peer, what makes the call), of each peer the longest shape first."""
    gdn, rows = ("gated_delta_rule", "chunk_gated_delta_rule"), []
    for t in (32768, 8192, 2048, 512):
        rows.append((f"gated_delta_net/prefill/Hk16_Hv32/T{t}", "fla chunk_gated_delta_rule",
                     lambda t=t: linear(*gdn, t, 16, 32, "head", True)))
    for t in (32768, 8192):
        rows += [
            (f"kda/prefill/H32/T{t}", "fla chunk_kda", lambda t=t: linear("kda", "chunk_kda", t, 32, 32, "dim", True)),
            (f"kda/prefill/H32/T{t}", "fla chunk_kda, gates ≥ −5",
             lambda t=t: linear("kda", "chunk_kda", t, 32, 32, "dim", True, safe_gate=True)),
            (f"delta_net/prefill/H32/T{t}", "fla chunk_delta_rule",
             lambda t=t: linear("delta_rule", "chunk_delta_rule", t, 32, 32, None, True)),
            (f"gla/prefill/H32/T{t}", "fla chunk_gla", lambda t=t: linear("gla", "chunk_gla", t, 32, 32, "dim", False)),
            (f"scalar_add/prefill/H32/T{t}", "fla chunk_simple_gla",
             lambda t=t: linear("simple_gla", "chunk_simple_gla", t, 32, 32, "head", False)),
            (f"attention/prefill/Hq16_Hkv2_d256/T{t}", "cuDNN", lambda t=t: attention("CUDNN_ATTENTION", t)),
            (f"attention/prefill/Hq16_Hkv2_d256/T{t}", "FlashAttention-2", lambda t=t: attention("FLASH_ATTENTION", t)),
        ]
    rows.append(("causal_conv/D8192_k4_silu/T32768", "fla causal_conv1d", lambda: convolution(32768)))
    for b in (256, 64, 1):
        rows.append((f"gated_delta_net/decode/Hk16_Hv32/B{b}", "fla fused_recurrent_gated_delta_rule",
                     lambda b=b: linear("gated_delta_rule", "fused_recurrent_gated_delta_rule", 1, 16, 32, "head", True,
                                        batch=b, state=True)))
    return rows


def median_ms(run, flush):
    """Median, fastest and slowest replay, in ms."""
    import torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    times = []
    for i in range(WARM + REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.fill_(i)
        torch.cuda._sleep(BUSY_CYCLES)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    # A time beside outputs that are no numbers says nothing.
    first = kept[0] if isinstance(kept, tuple) else kept
    if not bool(torch.isfinite(first).all()) or not bool(first.any()):
        raise ValueError("the peer's output is not finite, or all zero")
    times = times[WARM:]
    return statistics.median(times), min(times), max(times)


def compile_share(share, shares, rows):
    """Compiles every kernel, and of its autotuner's candidates every `shares`-th from `share` on; no times."""
    import torch
    from triton.runtime.autotuner import Autotuner
    prune = Autotuner.prune_configs
    # The first one always: what runs in the end has to be compiled, and it is no other process's.
    Autotuner.prune_configs = lambda self, kwargs: [
        c for i, c in enumerate(prune(self, kwargs)) if i == 0 or i % shares == share]

    def run_once(self, *args, config, **meta):
        try:
            self.fn.run(*args, **{**meta, **config.all_kwargs()})
            torch.cuda.synchronize()
            return [1.0] * 3
        except Exception:  # a candidate that does not fit is none: as in Triton's own
            return [float("inf")] * 3
    Autotuner._bench = run_once
    seen = set()
    for _, peer, make in rows:
        if not peer.startswith("fla") or peer in seen:
            continue
        seen.add(peer)
        try:
            with torch.inference_mode():
                make()()
                torch.cuda.synchronize()
        except Exception as e:
            print(f"compile {share}: {peer}: {type(e).__name__}: {str(e)[:120]}", flush=True)
        torch.cuda.empty_cache()


def compile_all(args):
    shares = max(1, min(12, (os.cpu_count() or 2) - 2))
    command = [sys.executable, __file__, args.bench, args.wheels, args.out, "--only", args.only]
    workers = [subprocess.Popen(command + ["--share", f"{i}/{shares}"]) for i in range(shares)]
    end = time.monotonic() + COMPILE_SECONDS
    for worker in workers:
        try:
            worker.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def unpack(wheels, fail):
    """The wheels' files to a folder on sys.path: Triton reads sources, which a zip does not give it."""
    found = sorted(Path(wheels).glob("*.whl"))
    for name in ("fla_core", "flash_linear_attention", "einops"):
        if not any(f.name.startswith(name) for f in found):
            fail(f"{wheels}: no wheel of {name.replace('_', '-')}; put it there (pip download --no-deps)")
    folder = os.environ.get("HYPIC_PEERS") or tempfile.mkdtemp(prefix="hypic-peers-")
    if "HYPIC_PEERS" not in os.environ:
        for f in found:
            with zipfile.ZipFile(f) as z:
                z.extractall(folder)
        os.environ["HYPIC_PEERS"] = folder  # for the processes that compile
    sys.path.insert(0, folder)


def table(ours, rows, context):
    """Markdown: a row a peer, its time over ours."""
    times = {b["name"]: b for b in ours["benchmarks"] if "real_time" in b and not b.get("error_occurred")}
    head = ours["context"]
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    out = ["# Kernels beside public ones", ""]
    out += [f"- {k}: {v}" for k, v in
            [*((k, head[k]) for k in ("gpu", "hypic", "commit", "backend", "copy ceiling", "matmul ceiling", "L2")
               if k in head), *context.items()]]
    out += ["", "Medians in ms, nothing in L2. Ratio: the peer's time over ours, more than 1 where ours is faster.", "",
            "| operation | ours | of limit | kernels | peer | its time | ratio |", "|---|---:|---:|---|---|---:|---:|"]
    for row in sorted(rows, key=lambda r: r["name"]):
        b = times.get(row["name"])
        mine = b["real_time"] * scale[b["time_unit"]] if b else None
        cells = [f"`{row['name']}`", f"{mine:.4g}" if b else "–", f"{b['of_limit'] * 100:.0f} %" if b else "–",
                 b.get("label", "") if b else "–", row["peer"]]
        if "error" in row:
            cells += [row["error"].replace("|", "/"), "–"]
        else:
            cells += [f"{row['ms']:.4g}", f"{row['ms'] / mine:.2f}" if b else "–"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench")
    parser.add_argument("wheels")
    parser.add_argument("out")
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=500)
    parser.add_argument("--share", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    start = time.monotonic()
    try:
        rows = [r for r in peers() if re.search(args.only, r[0])]
    except re.error as e:
        parser.error(f"--only {args.only}: {e}")
    if not rows:
        parser.error(f"--only {args.only}: no operation that a peer has; they are "
                     + ", ".join(sorted({r[0] for r in peers()})))
    if not os.access(args.bench, os.X_OK):
        parser.error(f"{args.bench}: no program; it is hypic-bench of a build with CUDA")
    unpack(args.wheels, parser.error)
    os.environ["FLA_CACHE_RESULTS"] = "0"
    if args.share:
        share, shares = map(int, args.share.split("/"))
        return compile_share(share, shares, rows)

    import torch
    import triton
    if not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch can use")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    compile_all(args)
    names = "|".join(sorted({re.escape(r[0]) for r in rows}))
    # hypic-bench finds cuBLAS among PyTorch's libraries.
    folders = {str(f.parent) for f in Path(torch.__file__).parent.parent.glob("nvidia/**/libcublasLt.so*")}
    paths = ":".join([*sorted(folders), os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")
    ours = subprocess.run([args.bench, "--backend", "cuda", "--cold", "--replays", str(REPLAYS), "--filter",
                           f"^({names})$", "--json", str(out / "hypic.json")],
                          env={**os.environ, "LD_LIBRARY_PATH": paths})
    results = []
    torch.manual_seed(0)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for name, peer, make in rows:
        result = {"name": name, "peer": peer}
        if time.monotonic() - start > args.budget:
            result["error"] = "not begun: the time was over"
        else:
            try:
                with torch.inference_mode():
                    result["ms"], result["min_ms"], result["max_ms"] = median_ms(make(), flush)
            except Exception as e:
                result["error"] = f"{type(e).__name__}: {e}".split("\n")[0][:120]
            torch.cuda.empty_cache()
        results.append(result)
        print(name, peer, result.get("error") or f"{result['ms']:.4g} ms", flush=True)
    versions = {p: getattr(sys.modules.get(p), "__version__", "?") for p in ("torch", "triton", "fla")}
    context = {"peers": ", ".join(f"{p} {v}" for p, v in versions.items()) + f", cuDNN {torch.backends.cudnn.version()}"}
    (out / "peers-kernels.json").write_text(json.dumps({"context": context, "results": results}, indent=1) + "\n")
    path = out / "hypic.json"
    mine = json.loads(path.read_text()) if path.exists() else {"context": {}, "benchmarks": []}
    report = table(mine, results, context)
    (out / "peers-kernels.md").write_text(report)
    print(report)
    return int(ours.returncode != 0 or any("error" in r for r in results))


if __name__ == "__main__":
    sys.exit(main())
