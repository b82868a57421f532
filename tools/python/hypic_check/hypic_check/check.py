"""Runs a function on the workloads of a definition and judges what it returns."""
import os
import traceback
from dataclasses import dataclass, field

import numpy as np

from .compare import ROUNDINGS, ROUNDOFF, SMALLEST, Comparison, compare, tolerance
from .dlpack import to_numpy
from .folder import definitions
from .safetensors import save


@dataclass
class Line:
    definition: str
    workload: str
    tensor: str  # "o", "S"; "" where the kernel gave none
    verdict: str  # "PASS", "FAIL", "ERROR": it raised
    comparison: Comparison = field(default_factory=Comparison)
    why: str = ""


@dataclass
class Report:
    lines: list

    @property
    def passed(self):
        return bool(self.lines) and all(line.verdict == "PASS" for line in self.lines)

    def __str__(self):
        rows = [("definition", "workload", "tensor", "verdict", "RMS ratio", "bound", "why")]
        for line in self.lines:
            c = line.comparison
            rows.append((line.definition, line.workload, line.tensor, line.verdict, f"{c.rms:.2e}" if c.bound else "",
                         f"{c.bound:.2e}" if c.bound else "", line.why))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        text = "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths + [0])).rstrip() for row in rows)
        bad = sum(line.verdict != "PASS" for line in self.lines)
        return f"{text}\n{'PASS' if self.passed else 'FAIL'}: {len(self.lines) - bad} of {len(self.lines)} hold"


def _given(inputs, like, device):
    if like == "numpy":  # bfloat16 as float32, which holds the same values
        return {name: x.numbers(np.float32) if x.dtype == "bfloat16" else np.array(x.bits) for name, x in inputs.items()}
    import torch

    def tensor(x):
        bits = torch.from_numpy(np.array(x.bits.view(np.int16) if x.dtype == "bfloat16" else x.bits))
        return (bits.view(torch.bfloat16) if x.dtype == "bfloat16" else bits).to(device)

    return {name: tensor(x) for name, x in inputs.items()}


def judge(workload, outputs, compute=None):
    """The lines of one workload; outputs: name → Array."""
    want = workload.expected()
    dtypes = [compute] if compute else [x.dtype for x in outputs.values()]
    dtype = max(dtypes, key=lambda name: ROUNDOFF[name])
    allowed = tolerance(dtype, bool(want["repeated"].numbers()[0]))
    rounding = ROUNDOFF[dtype] / ROUNDOFF["float32"] if dtype == "float64" else 1
    lines = []
    for name, got in outputs.items():
        right = want[name].numbers()
        if got.shape != right.shape:
            lines.append(Line(workload.definition, workload.uuid, name, "FAIL",
                              why=f"has shape {list(got.shape)}, expected {list(right.shape)}"))
            continue
        x, axis = got.numbers(), 1
        if name == "S":  # a head of a sequence is a group
            x, right = (a.reshape((-1,) + a.shape[2:]) for a in (x, right))
            axis = 0
        moved = want[name + ".moved"].numbers()
        bounds = np.where(np.isfinite(moved), np.maximum(allowed, ROUNDINGS * rounding * moved), allowed)
        floors = want["o.floor"].numbers() if name == "o" else np.zeros(len(bounds))
        c = compare(x, right, axis, bounds, np.maximum(floors, SMALLEST[dtype] / bounds))
        lines.append(Line(workload.definition, workload.uuid, name, "FAIL" if c.wrong else "PASS", c, c.wrong))
    return lines


def check(folder, name, function, like="numpy", device="cpu", compute=None, outputs=None, workloads=None):
    """Calls function(**inputs) → (o, S) on every workload of a family, or of one definition.

    like      "numpy" or "torch": what the inputs are
    device    of torch's
    compute   what the kernel computes in: float64, float32, float16 or bfloat16; by default the coarser dtype of what
              it returns, so numpy's float64 from float32 inputs is held to float64 unless this says float32
    outputs   a folder that receives what it returned, for hypic golden check
    workloads names of those to run; by default all
    """
    if like not in ("numpy", "torch"):
        raise ValueError(f'like: must be "numpy" or "torch", is {like!r}')
    if compute is not None and compute not in ROUNDOFF:
        raise ValueError(f"compute: must be {', '.join(ROUNDOFF)} or None, is {compute!r}")
    lines = []
    for definition in definitions(folder, name):
        for workload in definition.workloads():
            if workloads is not None and workload.uuid not in workloads:
                continue
            inputs = _given(workload.inputs(), like, device)
            try:
                returned = function(**inputs)
                names = list(definition.outputs)
                if not isinstance(returned, (tuple, list)) or len(returned) != len(names):
                    raise TypeError(f"it must return {names}, returned {type(returned).__name__}"
                                    + (f" of {len(returned)}" if isinstance(returned, (tuple, list)) else ""))
                got = {key: to_numpy(x) for key, x in zip(names, returned)}
                for key, x in got.items():
                    if x.dtype not in ROUNDOFF:
                        raise TypeError(f"{key} must be {', '.join(ROUNDOFF)}, is {x.dtype}")
            except Exception as error:  # whatever a kernel raises is its verdict
                frame = traceback.extract_tb(error.__traceback__)[-1]
                text = (str(error).strip().splitlines() or [""])[0][:200]
                lines.append(Line(definition.name, workload.uuid, "", "ERROR",
                                  why=f"{type(error).__name__}: {text} ({os.path.basename(frame.filename)}:{frame.lineno})"))
                continue
            if outputs is not None:
                os.makedirs(os.path.join(outputs, definition.name), exist_ok=True)
                save(os.path.join(outputs, definition.name, workload.uuid + ".safetensors"), got)
            lines += judge(workload, got, compute)
    return Report(lines)
