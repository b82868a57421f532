#!/usr/bin/env python3
"""Verdicts on flash-linear-attention's Triton kernels, against answers that hypic exported.

    hypic golden export goldens                # anywhere; 57 MB
    python3 tools/verdicts-fla.py goldens      # on a machine with a GPU

needs torch with CUDA, triton, numpy and flash-linear-attention (with fla-core and einops), and nothing of hypic but the
folder and tools/python/hypic_check beside this script. A kernel runs in a process of its own: one that crashes, hangs or
leaves the device unusable loses that workload, and the next process goes on behind it. Exits 1 if any verdict is not
PASS. --kernel REGEX chooses kernels, --jobs N runs so many at once (default 4), --budget S asks no more after so many
seconds. --markdown FILE has the table, written anew whenever a kernel is done.

Inputs are bfloat16 (gates and states float32), so the bound is that of bfloat16 operands: an RMS error ratio of 6e-3, or
8 times what rounding the inputs once in float32 moves where a result is ill-conditioned. Each workload runs three times
and must leave the same bits (docs/conformance.md, D10).
"""
import argparse
import concurrent.futures
import json
import os
import re
import selectors
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python", "hypic_check"))
import hypic_check

RUNS = 3


def for_value_heads(x, v):
    return x.repeat_interleave(v.shape[1] // x.shape[1], 1)


def call(function, q, k, v, S0, cu_seqlens, **gates):
    """fla's form: a batch of one, sequences by their bounds. Its heads are not grouped everywhere, so ours are spread."""
    q, k = (for_value_heads(x, v) for x in (q, k))
    gates = {name: x if name == "g_gamma" else x[None] for name, x in gates.items()}
    o, S = function(q=q[None], k=k[None], v=v[None], initial_state=S0.clone(), output_final_state=True,
                    cu_seqlens=cu_seqlens.long(), **gates)
    return o[0], S


def per_token(x, v):
    return x[None].expand(v.shape[0], -1).contiguous()


def delta(function):
    return lambda q, k, v, beta, S0, cu_seqlens: call(function, q, k, v, S0, cu_seqlens, beta=beta)


def gated_delta(function):
    return lambda q, k, v, g, beta, S0, cu_seqlens: call(function, q, k, v, S0, cu_seqlens, g=g, beta=beta)


def gla(gate):
    return lambda function: lambda q, k, v, g, S0, cu_seqlens: call(function, q, k, v, S0, cu_seqlens, **{gate: g})


def simple_gla(function):
    return lambda q, k, v, gamma, S0, cu_seqlens: call(function, q, k, v, S0, cu_seqlens, g=per_token(gamma.log(), v))


def simple_gla_constant(function):
    return lambda q, k, v, s, S0, cu_seqlens: call(function, q, k, v, S0, cu_seqlens, g_gamma=-s)


# name → (family of the goldens, module of fla.ops, function, adapter). fla's lightning attention fixes its slopes by the
# layer's number and runs simple_gla with a constant decay of each head: that kernel is judged, on hypic's slopes.
KERNELS = {
    "delta_rule/chunk": ("delta_net", "delta_rule", "chunk_delta_rule", delta),
    "delta_rule/fused_recurrent": ("delta_net", "delta_rule", "fused_recurrent_delta_rule", delta),
    "gated_delta_rule/chunk": ("gated_delta_net", "gated_delta_rule", "chunk_gated_delta_rule", gated_delta),
    "gated_delta_rule/fused_recurrent": ("gated_delta_net", "gated_delta_rule", "fused_recurrent_gated_delta_rule",
                                         gated_delta),
    "kda/chunk": ("kda", "kda", "chunk_kda", gated_delta),
    "kda/fused_recurrent": ("kda", "kda", "fused_recurrent_kda", gated_delta),
    "gla/chunk": ("gla", "gla", "chunk_gla", gla("g")),
    "gla/fused_recurrent": ("gla", "gla", "fused_recurrent_gla", gla("gk")),
    "simple_gla/chunk": ("retnet", "simple_gla", "chunk_simple_gla", simple_gla),
    "simple_gla/fused_recurrent": ("retnet", "simple_gla", "fused_recurrent_simple_gla", simple_gla),
    "lightning/chunk": ("lightning", "simple_gla", "chunk_simple_gla", simple_gla_constant),
    "lightning/fused_recurrent": ("lightning", "simple_gla", "fused_recurrent_simple_gla", simple_gla_constant),
}


def repeated(kernel, found):
    """The kernel, run several times; `found` receives what differs."""
    def run(**inputs):
        import torch
        first = kernel(**inputs)
        for i in range(1, RUNS):
            again = kernel(**inputs)
            torch.cuda.synchronize()
            for name, x, y in zip(("o", "S"), first, again):
                if not torch.equal(x.nan_to_num(nan=1e30), y.nan_to_num(nan=1e30)) and not found:
                    found.append(f"{name} has other bits in run {i + 1}")
        return first
    return run


def child(folder, name, todo):
    """One JSON line before and one after each workload."""
    import importlib
    family, module, function, adapter = KERNELS[name]
    kernel = adapter(getattr(importlib.import_module("fla.ops." + module), function))
    say = lambda **line: print(json.dumps(line), flush=True)
    for definition, workload in todo:
        say(begin=[definition, workload])
        differs = []
        report = hypic_check.check(folder, definition, repeated(kernel, differs), like="torch", device="cuda",
                                   workloads=[workload])
        lines = [{"tensor": x.tensor, "verdict": x.verdict, "rms": x.comparison.rms, "bound": x.comparison.bound,
                  "why": x.why} for x in report.lines]
        if differs:
            lines.append({"tensor": "", "verdict": "FAIL", "rms": 0.0, "bound": 0.0, "why": differs[0]})
        say(end=[definition, workload], lines=lines)
        if any("CUDA error" in line["why"] or "illegal memory" in line["why"] for line in lines):
            return  # the device is lost to this process


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it says nothing"


def run_child(folder, name, todo, seconds):
    """(results, workload that ended it or None, why). A workload that takes longer than `seconds` ends it."""
    command = [sys.executable, os.path.abspath(__file__), folder, "--child", name, json.dumps(todo)]
    errors = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"verdicts-fla-{os.getpid()}-{name.replace('/', '-')}.log")
    results, at, begun = [], None, time.monotonic()
    with open(errors, "w+") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        ready = selectors.DefaultSelector()
        ready.register(process.stdout, selectors.EVENT_READ)
        why = None
        while why is None:
            if not ready.select(max(0, begun + seconds - time.monotonic())):
                process.kill()
                why = f"no answer for {seconds} s"
                break
            text = process.stdout.readline()
            if not text:
                break
            if not text.startswith('{"begin"') and not text.startswith('{"end"'):
                continue  # what libraries print
            line = json.loads(text)
            at = line.get("begin")
            if "end" in line:
                results.append((line["end"], line["lines"]))
            begun = time.monotonic()
        code = process.wait()
        log.seek(0)
        why = why or (f"ended by signal {-code}" if code < 0 else f"exit status {code}: {last_line(log.read())}")
    os.remove(errors)
    return results, at, why


def verdicts(folder, name, seconds, end):
    family = KERNELS[name][0]
    line = lambda verdict, why: {"tensor": "", "verdict": verdict, "rms": 0.0, "bound": 0.0, "why": why}
    try:
        todo = [[d.name, w.uuid] for d in hypic_check.definitions(folder, family) for w in d.workloads()]
    except ValueError as error:
        return [(["–", "–"], [line("SKIP", str(error))])]
    todo.sort(key=lambda item: item[1] == "empty")  # a fault with empty sequences is an illegal access more often than not
    all_results = []
    while todo:
        left = end - time.monotonic()
        if left < 1:
            return all_results + [(item, [line("NOT ASKED", "the time was over")]) for item in todo]
        results, at, why = run_child(folder, name, todo, min(seconds, left))
        all_results += results
        done = [item for item, _ in results]
        if at is not None and time.monotonic() < end:
            all_results.append((at, [line("CRASH", why)]))
            done.append(at)
        rest = [item for item in todo if item not in done]
        if len(rest) == len(todo) and time.monotonic() < end:  # it does not even begin
            return all_results + [(rest[0], [line("ERROR", why)])]
        todo = rest
    return all_results


def table(rows):
    return "\n".join(["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])] +
                     ["| " + " | ".join(row) + " |" for row in rows[1:]])


def report(found):
    """Markdown, and whether all hold."""
    summary = [("kernel", "verdict", "hold", "worst of its bound", "where")]
    details = [("kernel", "workload", "tensor", "verdict", "RMS ratio", "bound", "why")]
    for name in sorted(found):
        lines = [(item, line) for item, some in found[name] for line in some]
        good = sum(line["verdict"] == "PASS" for _, line in lines)
        worst = max(lines, key=lambda x: x[1]["rms"] / x[1]["bound"] if x[1]["bound"] else 0)
        share = worst[1]["rms"] / worst[1]["bound"] if worst[1]["bound"] else 0
        kinds = sorted({line["verdict"] for _, line in lines} - {"PASS"})
        summary.append((name, ", ".join(kinds) or "PASS", f"{good} of {len(lines)}", f"{share:.2f}", "/".join(worst[0])))
        details += [(name, "/".join(item), line["tensor"], line["verdict"], f"{line['rms']:.2e}", f"{line['bound']:.2e}",
                     line["why"].replace("|", "\\|")) for item, line in lines if line["verdict"] != "PASS"]
    text = table(summary) + ("\n\nWhat does not hold:\n\n" + table(details) if len(details) > 1 else "")
    return text, len(details) == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--kernel", default="", metavar="REGEX")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=300, help="that one workload may take, its compilation included")
    parser.add_argument("--budget", type=float, default=3600, help="seconds, of all")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.folder, options.child[0], json.loads(options.child[1]))
    names = [name for name in KERNELS if re.search(options.kernel, name)]
    if not names:
        parser.error(f"no kernel matches {options.kernel!r}; there are {', '.join(KERNELS)}")
    end, found, text, good = time.monotonic() + options.budget, {}, "", True
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        asked = {pool.submit(verdicts, options.folder, name, options.seconds, end): name for name in names}
        for done in concurrent.futures.as_completed(asked):
            found[asked[done]] = done.result()
            text, good = report(found)
            print(f"{asked[done]}: {len(found)} of {len(names)} kernels are done", file=sys.stderr, flush=True)
            if options.markdown:
                with open(options.markdown, "w", encoding="utf-8") as file:
                    file.write(text + "\n")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
