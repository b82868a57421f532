#!/usr/bin/env python3
"""Our kernels beside public ones, on one GPU in one run: hypic-bench, then flash-linear-attention's Triton kernels,
FlashQLA, FlashInfer, FlashKDA and PyTorch's attention (FlashAttention-2, cuDNN) in the same shapes; a table of ratios.

    peers-kernels.py BENCH SITE OUT [--only REGEX] [--budget SECONDS]

BENCH: hypic-bench; SITE: a folder with packages, or with their wheels: flash-linear-attention with fla-core and einops,
flash_qla, flashinfer, flash_kda, each measured where it is there; needs torch and triton. Writes OUT/peers-kernels.md,
OUT/peers-kernels.json and what hypic-bench wrote, OUT/hypic.json. --only: names of hypic-bench; --budget (default 500):
after so many seconds no further peer is begun. Exit codes: 0 all that is there measured, 1 some not, 2 usage.

Both are timed as docs/benchmarks.md says: CUDA graphs, 3 replays to warm up, the median of 20, 256 MiB written before
each, the stream kept busy for 50 µs so that no launch cost is in the time. Autotuned kernels see only their best
configuration, found at the longest shape: fla's keys leave the length out. Other processes compile the candidates
first; one after another that takes longer than a lease. So they come last. A module runs in a process of its own: one
that is not there, crashes or hangs loses no other. Peers of an operation get the same inputs; one whose output is not
that of the first in PEERS is no peer.
"""
import argparse
import atexit
import importlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Callable, NamedTuple

REPLAYS, WARM, FLUSH_BYTES, BUSY_CYCLES = 20, 3, 256 << 20, 100_000
COMPILE_SECONDS, MODULE_SECONDS = 150, 60
# Relative RMS that outputs of the same inputs in bfloat16 may be apart; FlashKDA has its gates as logits in bfloat16.
SAME = 0.05


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


def chain(tokens, keys, heads, gate, beta, batch=1):
    """q, k, v and, where the operation has them, g and beta; gate: "head", "dim" or None."""
    d = 128
    inputs = dict(q=unit(batch, tokens, keys, d), k=unit(batch, tokens, keys, d), v=normal(batch, tokens, heads, d))
    if gate:
        inputs["g"] = -uniform(0.001, 0.1, batch, tokens, heads, *([d] if gate == "dim" else []))
    if beta:
        inputs["beta"] = uniform(0.1, 0.9, batch, tokens, heads).to(inputs["v"].dtype)
    return inputs


SCALE = 128 ** -0.5


def reason(error):
    return f"{type(error).__name__}: {error}".split("\n")[0][:120]


def fla(module, function, keys=32, gate="head", beta=True, **options):
    def make(tokens):
        call = getattr(importlib.import_module(f"fla.ops.{module}"), function)
        inputs = chain(tokens, keys, 32, gate, beta)
        return lambda: call(**inputs, scale=SCALE, output_final_state=True, **options)
    return make


def fla_row(batch):
    import torch
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule
    inputs = chain(1, 16, 32, "head", True, batch)
    state = torch.randn(batch, 32, 128, 128, device="cuda")
    return lambda: fused_recurrent_gated_delta_rule(**inputs, initial_state=state, scale=SCALE, output_final_state=True)


def flash_qla(tokens):
    from flash_qla import chunk_gated_delta_rule
    inputs = chain(tokens, 16, 32, "head", True)
    return lambda: chunk_gated_delta_rule(**inputs, scale=SCALE, output_final_state=True)


def flashinfer(tokens):
    import torch
    from flashinfer.gdn_prefill import chunk_gated_delta_rule
    q, k, v, g, beta = (x[0] for x in chain(tokens, 16, 32, "head", True).values())
    decays, beta, bounds = g.exp(), beta.float(), torch.tensor([0, tokens], device="cuda")
    return lambda: chunk_gated_delta_rule(q, k, v, decays, beta, SCALE, None, True, bounds)


def flash_kda(tokens):
    """It makes gates and β of logits and normalizes q and k within its time."""
    import torch
    from flash_kda import fwd
    q, k, v, g, beta = chain(tokens, 32, 32, "dim", True).values()
    bound = -5.0
    g, beta = (torch.logit(x.float()).to(v.dtype) for x in (g / bound, beta))
    plain = dict(A_log=torch.zeros(32, device="cuda"), dt_bias=torch.zeros(32, 128, device="cuda"), lower_bound=bound)
    o, state = torch.empty_like(v), torch.empty(1, 32, 128, 128, device="cuda")

    def run():
        fwd(q, k, v, g, beta, SCALE, o, **plain, final_state=state)
        return o
    return run


def attention(backend):
    def make(tokens):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention
        q, k, v = normal(1, 16, tokens, 256), normal(1, 2, tokens, 256), normal(1, 2, tokens, 256)
        chosen = getattr(SDPBackend, backend)

        def run():
            with sdpa_kernel(chosen):
                return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return run
    return make


def convolution(tokens):
    from fla.modules.causal_conv1d import causal_conv1d
    x, w = normal(1, tokens, 8192), normal(8192, 4)
    return lambda: causal_conv1d(x=x, weight=w, output_final_state=True, activation="silu", backend="triton")


class Peer(NamedTuple):
    name: str
    module: str  # that has to be there
    operation: str  # of hypic-bench, its size left out
    sizes: tuple  # the longest first
    make: Callable  # size → what is timed


LONG, ALL = (32768, 8192), (32768, 8192, 2048, 512)
GDN, GDN_ROW = "gated_delta_net/prefill/Hk16_Hv32/T{}", "gated_delta_net/decode/Hk16_Hv32/B{}"
KDA, ATTENTION = "kda/prefill/H32/T{}", "attention/prefill/Hq16_Hkv2_d256/T{}"
PEERS = (
    Peer("fla chunk_gated_delta_rule", "fla", GDN, ALL, fla("gated_delta_rule", "chunk_gated_delta_rule", 16)),
    Peer("FlashQLA", "flash_qla", GDN, ALL, flash_qla),
    Peer("FlashInfer", "flashinfer", GDN, ALL, flashinfer),
    Peer("fla chunk_kda", "fla", KDA, LONG, fla("kda", "chunk_kda", gate="dim")),
    Peer("fla chunk_kda, gates ≥ −5", "fla", KDA, LONG, fla("kda", "chunk_kda", gate="dim", safe_gate=True)),
    Peer("FlashKDA, gates ≥ −5", "flash_kda", KDA, LONG, flash_kda),
    Peer("fla chunk_delta_rule", "fla", "delta_net/prefill/H32/T{}", LONG,
         fla("delta_rule", "chunk_delta_rule", gate=None)),
    Peer("fla chunk_gla", "fla", "gla/prefill/H32/T{}", LONG, fla("gla", "chunk_gla", gate="dim", beta=False)),
    Peer("fla chunk_simple_gla", "fla", "scalar_add/prefill/H32/T{}", LONG,
         fla("simple_gla", "chunk_simple_gla", beta=False)),
    Peer("cuDNN", "torch", ATTENTION, LONG, attention("CUDNN_ATTENTION")),
    Peer("FlashAttention-2", "torch", ATTENTION, LONG, attention("FLASH_ATTENTION")),
    Peer("fla causal_conv1d", "fla", "causal_conv/D8192_k4_silu/T{}", (32768,), convolution),
    Peer("fla fused_recurrent_gated_delta_rule", "fla", GDN_ROW, (256, 64, 1), fla_row),
)


def measured(only):
    """(hypic-bench's name, size, peer) of names that `only` finds: operation by operation, the longest size first."""
    order = list(dict.fromkeys(p.operation for p in PEERS))
    rows = [(p.operation.format(size), size, p) for p in PEERS for size in p.sizes]
    return sorted((r for r in rows if re.search(only, r[0])), key=lambda r: (order.index(r[2].operation), -r[1]))


def median_ms(run, flush):
    """(median, fastest and slowest replay, in ms; the output)."""
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
    return (statistics.median(times), min(times), max(times)), first.flatten().cpu()


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
    for peer in dict.fromkeys(peer for _, _, peer in rows if peer.module == "fla"):
        try:
            with torch.inference_mode():
                peer.make(peer.sizes[0])()
                torch.cuda.synchronize()
        except Exception as e:
            print(f"compile {share}: {peer.name}: {reason(e)}", flush=True)
        torch.cuda.empty_cache()


def again(args, *options):
    """This script in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, args.bench, args.site, args.out, "--only", args.only, *options])


def wait(process, end):
    try:
        process.wait(timeout=max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def compile_all(args, seconds):
    shares = max(1, min(12, (os.cpu_count() or 2) - 2))
    workers = [again(args, "--share", f"{i}/{shares}") for i in range(shares)]
    end = time.monotonic() + seconds
    for worker in workers:
        wait(worker, end)


def measure(module, rows, seconds, folder):
    """Times a module's rows. MODULE.json in the folder, written anew behind each, has the version and the results, or
    why it is missing; N.pt the output of row N."""
    import torch
    end = time.monotonic() + seconds
    found = {"results": {}}

    def write():
        (folder / f"{module}.json").write_text(json.dumps(found))
    try:
        found["version"] = getattr(importlib.import_module(module), "__version__", "")
    except Exception as e:
        found["missing"] = reason(e)
        return write()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for n, (name, size, peer) in enumerate(rows):
        if peer.module != module or time.monotonic() > end:
            continue
        try:
            torch.manual_seed(0)
            with torch.inference_mode():
                (median, low, high), output = median_ms(peer.make(size), flush)
            result = {"ms": median, "min_ms": low, "max_ms": high}
            torch.save(output, folder / f"{n}.pt")
        except Exception as e:
            result = {"error": reason(e)}
        found["results"][n] = result
        write()
        print(name, peer.name, result.get("error") or f"{result['ms']:.4g} ms", flush=True)
        torch.cuda.empty_cache()
    write()


def ask(module, args, end, folder):
    """What measure() found, in a process of its own."""
    left = max(0, end - time.monotonic())
    process = again(args, "--module", module, "--budget", str(left))
    wait(process, end + MODULE_SECONDS if module == "fla" else time.monotonic() + min(MODULE_SECONDS, left))
    path = folder / f"{module}.json"
    found = json.loads(path.read_text()) if path.exists() else {"results": {}}
    code = process.returncode
    found["else"] = "not begun: the time was over" if code == 0 or left == 0 else f"its process ended with {code}"
    return found


def compare(rows, results, folder):
    """Makes an error of outputs that are not those of the operation's first peer."""
    import torch
    norm, first = torch.linalg.vector_norm, {}
    for n, (name, _, peer) in enumerate(rows):
        if "ms" not in results[n]:
            continue
        output = torch.load(folder / f"{n}.pt").float()
        other, theirs = first.setdefault(name, (peer.name, output))
        apart = results[n]["apart"] = (norm(output - theirs) / norm(theirs)).item()
        if not apart <= SAME:
            results[n]["error"] = f"its output is {apart:.2g} apart from that of {other}"


def find_packages(site):
    """Puts what the folder holds on sys.path, its wheels unpacked: Triton reads sources, which no zip gives it. Returns
    where they and this run's files are."""
    folder = os.environ.get("HYPIC_PEERS")
    if not folder:
        folder = os.environ["HYPIC_PEERS"] = tempfile.mkdtemp(prefix="hypic-peers-")  # for the other processes too
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        for f in Path(site).glob("*.whl"):
            with zipfile.ZipFile(f) as z:
                z.extractall(folder)
    sys.path[:0] = [folder, os.path.abspath(site)]
    # fla hands its calls to these where it finds them, and its own kernels are what is measured under its name.
    os.environ.update(FLA_FLASH_QLA="0", FLA_FLASH_KDA="0", FLA_CACHE_RESULTS="0")
    return Path(folder)


def table(ours, rows, missing, context):
    """Markdown: a row a peer, its time over ours; `missing`: name → why."""
    times = {b["name"]: b for b in ours["benchmarks"] if "real_time" in b and not b.get("error_occurred")}
    head = ours["context"]
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    out = ["# Kernels beside public ones", ""]
    out += [f"- {k}: {v}" for k, v in
            [*((k, head[k]) for k in ("gpu", "hypic", "commit", "backend", "copy ceiling", "matmul ceiling", "L2")
               if k in head), *context.items()]]
    out += [f"- not there: {name} ({why})" for name, why in missing.items()]
    out += ["", "Medians in ms, nothing in L2. Ratio: the peer's time over ours, more than 1 where ours is faster.", "",
            "| operation | ours | of limit | kernels | peer | its time | ratio |", "|---|---:|---:|---|---|---:|---:|"]
    for row in rows:
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
    parser.add_argument("site")
    parser.add_argument("out")
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=500)
    parser.add_argument("--share", default="", help=argparse.SUPPRESS)
    parser.add_argument("--module", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    end = time.monotonic() + args.budget
    try:
        rows = measured(args.only)
    except re.error as e:
        parser.error(f"--only {args.only}: {e}")
    if not rows:
        parser.error(f"--only {args.only}: no operation that a peer has; they are "
                     + ", ".join(sorted({r[0] for r in measured("")})))
    if not os.access(args.bench, os.X_OK):
        parser.error(f"{args.bench}: no program; it is hypic-bench of a build with CUDA")
    if not os.path.isdir(args.site):
        parser.error(f"{args.site}: no folder; it has the packages or their wheels (pip download --no-deps)")
    folder = find_packages(args.site)
    if args.share:
        share, shares = map(int, args.share.split("/"))
        return compile_share(share, shares, rows)
    if args.module:
        return measure(args.module, rows, args.budget, folder)

    import torch
    import triton
    if not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch can use")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    names = "|".join(sorted({re.escape(r[0]) for r in rows}))
    # hypic-bench finds cuBLAS among PyTorch's libraries.
    libraries = {str(f.parent) for f in Path(torch.__file__).parent.parent.glob("nvidia/**/libcublasLt.so*")}
    paths = ":".join([*sorted(libraries), os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")
    ours = subprocess.run([args.bench, "--backend", "cuda", "--cold", "--replays", str(REPLAYS), "--filter",
                           f"^({names})$", "--json", str(out / "hypic.json")],
                          env={**os.environ, "LD_LIBRARY_PATH": paths})
    found = {}
    for module in sorted(dict.fromkeys(peer.module for _, _, peer in rows), key=lambda m: m == "fla"):
        if module == "fla":
            compile_all(args, min(COMPILE_SECONDS, args.budget / 2))
        found[module] = ask(module, args, end, folder)
    missing = {peer.name: found[peer.module]["missing"] for _, _, peer in rows if "missing" in found[peer.module]}
    results = [found[peer.module]["results"].get(str(n), {"error": found[peer.module]["else"]})
               for n, (_, _, peer) in enumerate(rows)]
    compare(rows, results, folder)
    results = [{"name": name, "peer": peer.name, **result} for (name, _, peer), result in zip(rows, results)
               if peer.name not in missing]
    versions = {"torch": torch.__version__, "triton": triton.__version__,
                **{module: f["version"] for module, f in found.items() if "version" in f}}
    context = {"peers": ", ".join(f"{p} {v}".strip() for p, v in versions.items())
               + f", cuDNN {torch.backends.cudnn.version()}"}
    written = {"context": context, "missing": missing, "results": results}
    (out / "peers-kernels.json").write_text(json.dumps(written, indent=1) + "\n")
    path = out / "hypic.json"
    mine = json.loads(path.read_text()) if path.exists() else {"context": {}, "benchmarks": []}
    report = table(mine, results, missing, context)
    (out / "peers-kernels.md").write_text(report)
    print(report)
    return int(ours.returncode != 0 or any("error" in r for r in results))


if __name__ == "__main__":
    sys.exit(main())
