#!/usr/bin/env python3
"""Golden outputs and states of the families that flash-linear-attention has no naive function for, from the
torch functions of Hugging Face transformers in float32 (mamba1, mamba2, mlstm).

    golden-ssm.py OUT        needs torch, transformers and safetensors; runs on CPU in seconds

writes OUT/NAME.safetensors in the form of golden-fla.py: the family's inputs by the names of
reference/families/NAME.cc, S0 and S [H, d_k, d_v], o [T, H, d_v].
"""
import os
import sys

import torch
from safetensors.torch import save_file

T, H, G, K, V = 37, 4, 2, 8, 6  # tokens, heads, groups of B and C, d_k, d_v
generator = torch.Generator().manual_seed(17)


def normal(*shape):
    return torch.randn(*shape, generator=generator)


def uniform(low, high, *shape):
    return torch.rand(*shape, generator=generator) * (high - low) + low


def mamba1():
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan
    x, delta, D = normal(T, 1, V), uniform(0.01, 0.5, T, 1, V), normal(1, V)
    A, B, C = -uniform(0.1, 2, 1, K, V), normal(T, 1, K), normal(T, 1, K)
    channels = lambda t: t[:, 0].t()[None]  # [T, 1, n] → [1, n, T]
    o, S = mamba_selective_scan(channels(x), channels(delta), A[0].t(), channels(B), channels(C), D=D[0],
                                return_last_state=True)
    return dict(x=x, delta=delta, A=A, B=B, C=C, D=D, S0=torch.zeros(1, K, V), S=S[0].t()[None],
                o=o[0].t()[:, None])


def mamba2():
    from transformers.models.granitemoehybrid import modeling_granitemoehybrid as granite
    scan = next(getattr(granite, n) for n in ("mamba2_chunk_scan", "mamba_chunk_scan_combined") if hasattr(granite, n))
    x, delta, D = normal(T, H, V), uniform(0.01, 0.5, T, H), normal(H)
    A, B, C, S0 = -uniform(0.1, 2, H), normal(T, G, K), normal(T, G, K), normal(H, K, V)
    o, S = scan(x[None], delta[None], A, B[None], C[None], chunk_size=16, D=D,
                initial_states=S0.transpose(1, 2)[None], return_final_states=True)
    return dict(x=x, delta=delta, A=A, B=B, C=C, D=D, S0=S0, S=S[0].transpose(1, 2), o=o[0])


def mlstm():
    from transformers.models.xlstm.modeling_xlstm import mlstm_recurrent_sequence_native
    q, k, v, i, f = normal(T, H, K), normal(T, H, K), normal(T, H, V), normal(T, H), normal(T, H) + 2
    C0, n0 = normal(H, K, V), normal(H, K)
    heads = lambda t: t.transpose(0, 1)[None]
    o, (C, n, m) = mlstm_recurrent_sequence_native(
        heads(q), heads(k), heads(v), heads(i), heads(f), C0[None], n0[None], torch.zeros(1, H, 1),
        return_last_states=True, eps=0.0)
    # The definition scales k where this function scales q, and its state is e^m [C | n].
    state = lambda C, n, m: torch.cat([C, n[:, :, None]], -1) * m.exp()[:, :, None] * K ** -0.5
    return dict(q=q, k=k, v=v, i=i, log_f=torch.nn.functional.logsigmoid(f), S0=state(C0, n0, torch.zeros(H, 1)),
                S=state(C[0], n[0], m[0]), o=o[0].transpose(0, 1))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    os.makedirs(sys.argv[1], exist_ok=True)
    for family in (mamba1, mamba2, mlstm):
        tensors = {name: t.float().contiguous() for name, t in family().items()}
        save_file(tensors, os.path.join(sys.argv[1], family.__name__ + ".safetensors"))
        print(family.__name__, {name: list(t.shape) for name, t in tensors.items()})
