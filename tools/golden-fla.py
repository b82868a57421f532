#!/usr/bin/env python3
"""Golden outputs and states of linear-attention families from flash-linear-attention, an oracle that shares
nothing with hypic: its naive functions in float32 on the CPU, and, for the two families that have none that
agrees with its own kernels, the recurrent Triton kernels on a GPU.

    golden-fla.py FLA OUT        FLA: a folder that holds fla/ (the unpacked packages fla-core,
                                 flash-linear-attention and einops); needs torch and safetensors

writes OUT/NAME.safetensors: the family's inputs by the names of reference/families/NAME.cc without the batch
axis, S0 and S [H, d_k, d_v] (the family's own state), o [T, H, d_v].
"""
import importlib.util
import os
import sys
import traceback

import torch
from safetensors.torch import save_file

T, H, K, V, M, N_H = 37, 2, 8, 6, 5, 3  # tokens, heads, d_k, d_v, slots, steps a token
generator = torch.Generator().manual_seed(11)
SCALE = K ** -0.5


def normal(*shape):
    return torch.randn(*shape, generator=generator)


def uniform(low, high, *shape):
    return torch.rand(*shape, generator=generator) * (high - low) + low


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def naive(module, function):
    """A function of one file of fla, without importing the package (which wants a GPU)."""
    path = os.path.join(FLA, "fla", "ops", *module.split("/")) + ".py"
    spec = importlib.util.spec_from_file_location(module.replace("/", "_"), path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, function)


def b(x):  # [T, H, …] → [1, T, H, …]
    return x.unsqueeze(0)


def bh(x):  # [T, H, …] → [1, H, T, …]
    return x.transpose(0, 1).unsqueeze(0)


def qkv(unit_keys=False):
    k = normal(T, H, K)
    return dict(q=normal(T, H, K), k=unit(k) if unit_keys else k, v=normal(T, H, V)), normal(1, H, K, V)


def linear():
    i, _ = qkv()
    S0, z0 = normal(1, H, K, V), uniform(1, 2, 1, 1, H, K)
    phi = lambda x: torch.nn.functional.elu(x) + 1
    o, (S, z) = naive("linear_attn/naive", "naive_recurrent_linear_attn")(
        b(phi(i["q"])), b(phi(i["k"])), b(i["v"]), scale=1.0, initial_state=(S0, z0), output_final_state=True,
        normalize=True)
    join = lambda S, z: torch.cat([S[0], z.reshape(H, K, 1)], dim=-1)
    return dict(i, position=torch.zeros(T)), join(S0, z0), o[0], join(S, z)


def simple_gla(i, g, S0):
    o, S = naive("simple_gla/naive", "naive_recurrent_simple_gla")(
        b(i["q"]), b(i["k"]), b(i["v"]), b(g), initial_state=S0, output_final_state=True)
    return o[0], S[0]


def retnet():
    i, S0 = qkv()
    gamma = 1 - 2.0 ** (-5 - torch.arange(H))
    o, S = simple_gla(i, gamma.log().expand(T, H), S0)
    return dict(i, gamma=gamma), S0[0], o, S


def lightning():
    i, S0 = qkv()
    s = uniform(0.01, 0.5, H)
    o, S = simple_gla(i, (-s).expand(T, H), S0)
    return dict(i, s=s), S0[0], o, S


def gla():
    i, S0 = qkv()
    g = torch.nn.functional.logsigmoid(normal(T, H, K)) / 4
    o, S = naive("gla/naive", "naive_recurrent_gla")(b(i["q"]), b(i["k"]), b(i["v"]), b(g), initial_state=S0,
                                                     output_final_state=True)
    return dict(i, g=g), S0[0], o[0], S[0]


def hgrn2():
    i, S0 = qkv()
    f = uniform(0.3, 0.99, T, H, K)
    o, S = naive("gla/naive", "naive_recurrent_gla")(b(i["q"]), b(1 - f), b(i["v"]), b(f.log()), initial_state=S0,
                                                     output_final_state=True)
    return dict(q=i["q"], v=i["v"], f=f), S0[0], o[0], S[0]


def rwkv6():
    i, S0 = qkv()
    w, u = uniform(0.3, 0.99, T, H, K), normal(H, K)
    o, S = naive("rwkv6/recurrent_naive", "naive_recurrent_rwkv6")(
        bh(i["q"]), bh(i["k"]), bh(i["v"]), bh(w.log()), u, scale=1.0, initial_state=S0, output_final_state=True)
    return dict(r=i["q"], k=i["k"], v=i["v"], w=w, u=u), S0[0], o[0].transpose(0, 1), S[0]


def rwkv7():
    i, S0 = qkv()
    w, kappa, a = uniform(0.5, 0.99, T, H, K), unit(normal(T, H, K)), uniform(0, 1, T, H, K)
    o, S = naive("generalized_delta_rule/dplr/naive", "dplr_recurrence")(
        bh(i["q"] / SCALE), bh(i["k"]), bh(i["v"]), bh(kappa), bh(-kappa * a), bh(w.log()), initial_state=S0)
    return dict(r=i["q"], k=i["k"], v=i["v"], w=w, kappa=kappa, a=a), S0[0], o[0].transpose(0, 1), S[0]


def delta_net():
    i, S0 = qkv(True)
    beta = uniform(0, 1, T, H)
    o, S = naive("delta_rule/naive", "delta_rule_recurrence")(bh(i["q"]), bh(i["k"]), bh(i["v"]), bh(beta),
                                                              initial_state=S0)
    return dict(i, beta=beta), S0[0], o[0].transpose(0, 1), S[0]


def gated_delta_net():
    i, S0 = qkv(True)
    beta, g = uniform(0, 1, T, H), -uniform(0, 0.5, T, H)
    o, S = naive("gated_delta_rule/naive", "naive_recurrent_gated_delta_rule")(
        b(i["q"]), b(i["k"]), b(i["v"]), b(beta), b(g), initial_state=S0, output_final_state=True)
    return dict(i, beta=beta, g=g), S0[0], o[0], S[0]


def gated_delta_product():
    q, S0 = normal(T, H, K), normal(1, H, K, V)
    k, v, beta = unit(normal(T, N_H, H, K)), normal(T, N_H, H, V), uniform(0, 2, T, N_H, H)
    g = -uniform(0, 0.5, T, H)
    flat = lambda x: b(x.reshape(T * N_H, *x.shape[2:]))
    # Its scale argument is not applied in every version: the queries carry it.
    o, S = naive("gated_delta_product/naive", "naive_recurrent_gated_delta_product")(
        b(q * SCALE), flat(k), flat(v), b(g), flat(beta), 1.0, initial_state=S0.clone(), output_final_state=True,
        num_householder=N_H)
    return dict(q=q, k=k, v=v, g=g, beta=beta), S0[0], o[0], S[0]


def kda():
    i, S0 = qkv(True)
    beta, g = uniform(0, 1, T, H), -uniform(0, 0.5, T, H, K)
    o, S = naive("kda/naive", "naive_recurrent_kda")(b(i["q"]), b(i["k"]), b(i["v"]), b(g), b(beta),
                                                     initial_state=S0, output_final_state=True)
    return dict(i, beta=beta, g=g), S0[0], o[0], S[0]


def gdn2():
    i, S0 = qkv(True)
    g, e, w = -uniform(0, 0.5, T, H, K), uniform(0, 1, T, H, K), uniform(0, 1, T, H, V)
    o, S = naive("gdn2/naive", "naive_recurrent_gdn2")(b(i["q"]), b(i["k"]), b(i["v"]), b(g), b(e), b(w),
                                                       initial_state=S0, output_final_state=True)
    return dict(i, g=g, b=e, w=w), S0[0], o[0], S[0]


def gsa():
    i, _ = qkv()
    alpha, K0, V0 = uniform(0.3, 0.99, T, H, M), normal(1, H, K, M), normal(1, H, M, V)
    o, (Ks, Vs) = naive("gsa/naive", "naive_recurrent_gsa")(
        b(i["q"]), b(i["k"]), b(i["v"]), b(1 - alpha), b(alpha.log()), scale=1.0, initial_state=(K0, V0),
        output_final_state=True)
    join = lambda Ks, Vs: torch.cat([Ks[0].transpose(-1, -2), Vs[0]], dim=-1)
    return dict(i, alpha=alpha), join(K0, V0), o[0], join(Ks, Vs)


def comba():
    from fla.ops.comba import fused_recurrent_comba
    i, S0 = qkv(True)
    beta, g, c, D = uniform(0, 1, T, H), -uniform(0, 0.5, T, H), normal(H), normal(H)
    p = torch.sigmoid(c)[:, None] * i["k"]
    cuda = lambda x: b(x).cuda().contiguous()
    o, S = fused_recurrent_comba(q=cuda(i["q"] - D[:, None] * p), k=cuda(i["k"]), p=cuda(p), v=cuda(i["v"]),
                                 g=cuda(g), beta=cuda(beta), scale=SCALE, initial_state=S0.cuda(),
                                 output_final_state=True)
    return dict(i, beta=beta, g=g, c=c, D=D), S0[0], o[0].cpu(), S[0].cpu()


def gated_oja():
    from fla.ops.gated_oja_rule import fused_recurrent_gated_oja_rule
    i, S0 = qkv()
    i["v"] = unit(i["v"])
    beta, g = uniform(0, 1, T, H), -uniform(0, 0.5, T, H, V)
    cuda = lambda x: b(x).cuda().contiguous()
    o, S = fused_recurrent_gated_oja_rule(q=cuda(i["q"]), k=cuda(i["k"]), v=cuda(i["v"]), gv=cuda(g),
                                          beta=cuda(beta), scale=SCALE, initial_state=S0.cuda(),
                                          output_final_state=True)
    return dict(i, beta=beta, g=g), S0[0], o[0].cpu(), S[0].cpu()


FAMILIES = [linear, retnet, lightning, gla, hgrn2, rwkv6, rwkv7, delta_net, gated_delta_net, gated_delta_product,
            kda, gdn2, gsa, comba, gated_oja]


def main():
    os.makedirs(OUT, exist_ok=True)
    failed = 0
    for family in FAMILIES:
        generator.manual_seed(11)
        try:
            inputs, S0, o, S = family()
            tensors = dict(inputs, S0=S0, o=o, S=S)
            save_file({name: x.float().contiguous() for name, x in tensors.items()},
                      os.path.join(OUT, family.__name__ + ".safetensors"))
            print(f"{family.__name__}: |o| {o.norm():.3f}, |S| {S.norm():.3f}", flush=True)
        except Exception:
            failed += 1
            print(f"{family.__name__}: FAILED\n{traceback.format_exc(limit=-3)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    FLA, OUT = sys.argv[1], sys.argv[2]
    sys.path.insert(0, FLA)
    sys.exit(main())
