"""Checks a linear-attention kernel in Python against float64 answers that `hypic golden export` wrote.

    report = hypic_check.check("goldens", "gated_delta_net", kernel, like="torch", device="cuda")
    print(report)
    assert report.passed
"""
from .check import Line, Report, check
from .compare import Comparison, compare, tolerance
from .dlpack import to_numpy
from .folder import Definition, Workload, definitions
from .safetensors import load, save

__all__ = ["Comparison", "Definition", "Line", "Report", "Workload", "check", "compare", "definitions", "load", "save",
           "to_numpy", "tolerance"]
