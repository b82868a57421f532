"""Each chunked form against its definition, token by token in float64: outputs and gradients.

    python3 -m unittest discover tools/train
"""
import os
import sys
import unittest

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recurrence as r  # noqa: E402


def chunked(x):  # [B, H, L, ...] to [n * B, H, C, ...]
    return x.unflatten(2, (-1, r.CHUNK)).movedim(2, 0).flatten(0, 1)


def whole(x, n):
    return x.unflatten(0, (n, -1)).movedim(0, 2).flatten(2, 3)


def by_token(family, q, k, v, g, beta):
    """Inputs [B, H, L, ...]."""
    state = torch.zeros(*v.shape[:2], k.shape[-1], v.shape[-1], dtype=v.dtype)
    out = []
    for t in range(v.shape[2]):
        decay = g[:, :, t].exp()
        state = state * (decay[..., None] if family == "kda" else decay[..., None, None])
        value = v[:, :, t]
        if family != "scalar_add":
            value = beta[:, :, t, None] * (value - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t]))
        state = state + k[:, :, t, :, None] * value[:, :, None, :]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(out, 2)


def inputs(family, dtype, B=2, H=2, L=192, dk=16, dv=24, decay=0.3, equal_keys=False):
    torch.manual_seed(1)
    q, k = (torch.nn.functional.normalize(torch.randn(B, H, L, dk, dtype=torch.float64), dim=-1) for _ in range(2))
    if equal_keys:
        k = k[:, :, :1].expand_as(k).contiguous()
    v = torch.randn(B, H, L, dv, dtype=torch.float64)
    g = -decay * torch.rand(*((B, H, L, dk) if family == "kda" else (B, H, L)), dtype=torch.float64)
    beta = torch.full((B, H, L), 0.9, dtype=torch.float64) if equal_keys else torch.rand(B, H, L, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, v, g, beta)]


class Recurrences(unittest.TestCase):
    def check(self, family, dtype, tolerance, **how):
        exact, ours = inputs(family, torch.float64, **how), inputs(family, dtype, **how)
        used = 4 if family == "scalar_add" else 5
        expected = by_token(family, *exact)
        n = expected.shape[2] // r.CHUNK
        got = whole(getattr(r, family)(*(chunked(x) for x in ours[:used]), n), n)
        weight = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        grads = torch.autograd.grad((got * weight.to(dtype)).sum(), ours[:used])
        for name, a, b in zip(["out", "q", "k", "v", "g", "beta"], [got, *grads],
                              [expected, *torch.autograd.grad((expected * weight).sum(), exact[:used])]):
            error = ((a.double() - b).norm() / b.norm()).item()
            self.assertLess(error, tolerance, f"{family}, {dtype}, {how}: {name}")

    def test_float64(self):
        for family in ("gated_delta", "kda", "scalar_add"):
            self.check(family, torch.float64, 1e-10)

    def test_float32(self):
        for family in ("gated_delta", "kda", "scalar_add"):
            self.check(family, torch.float32, 2e-5)

    def test_forgets_in_a_token(self):
        for family in ("gated_delta", "kda", "scalar_add"):
            self.check(family, torch.float32, 2e-5, decay=9.9)

    def test_remembers_equal_keys(self):
        for family in ("gated_delta", "kda"):
            self.check(family, torch.float32, 1e-4, decay=1e-3, equal_keys=True)


if __name__ == "__main__":
    unittest.main()
