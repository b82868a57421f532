#!/usr/bin/env python3
"""Golden logits of Ring-linear-2.0 (bailing_moe_linear), for which transformers has no class: a float32 torch
loop, token by token, written from the architecture's description (Ring-linear technical report, arXiv
2510.19338, and its published configuration), sharing nothing with hypic.

    golden-ring.py OUT      needs torch and safetensors; runs on CPU in seconds

writes OUT/{bailing_moe_linear, bailing_moe_linear_hf}/{config.json, model.safetensors (BF16),
golden.safetensors (tokens, logits.LENGTH)}: the two slope forms that sources give.
"""
import json
import math
import os
import sys

import torch
from safetensors.torch import save_file

LENGTHS = [1, 3, 4, 63, 64, 65, 200]
CONFIG = dict(
    architectures=["BailingMoeLinearV2ForCausalLM"], model_type="bailing_moe_linear", vocab_size=128, hidden_size=48,
    num_hidden_layers=5, layer_group_size=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    intermediate_size=80, first_k_dense_replace=1, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16,
    num_shared_experts=1, n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
    score_function="sigmoid", moe_router_enable_expert_bias=True, group_norm_size=2, partial_rotary_factor=0.5,
    rope_theta=10000.0, rms_norm_eps=1e-6, use_qk_norm=True, use_bias=False, use_qkv_bias=False, linear_silu=False,
    hidden_act="silu", tie_word_embeddings=False, max_position_embeddings=4096)


def is_full(c, l):
    G = c["layer_group_size"]
    return (l + 1) % G == 0 or l >= c["num_hidden_layers"] // G * G


def shapes(c):
    H, D, n, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    out = {"model.word_embeddings.weight": (c["vocab_size"], H), "model.norm.weight": (H,),
           "lm_head.weight": (c["vocab_size"], H)}
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (H,)
        rows = (n + 2 * kv) * D if is_full(c, l) else 3 * n * D
        out[p + "attention.query_key_value.weight"] = (rows, H)
        out[p + "attention.query_layernorm.weight"] = out[p + "attention.key_layernorm.weight"] = (D,)
        out[p + "attention.dense.weight"] = (H, n * D)
        if not is_full(c, l):
            out[p + "attention.g_proj.weight"] = (n * D, H)
            out[p + "attention.g_norm.weight"] = (n * D,)

        def mlp(q, I):
            out[q + "gate_proj.weight"] = out[q + "up_proj.weight"] = (I, H)
            out[q + "down_proj.weight"] = (H, I)
        if l < c["first_k_dense_replace"]:
            mlp(p + "mlp.", c["intermediate_size"])
            continue
        out[p + "mlp.gate.weight"] = (c["num_experts"], H)
        out[p + "mlp.gate.expert_bias"] = (c["num_experts"],)
        for e in range(c["num_experts"]):
            mlp(p + f"mlp.experts.{e}.", c["moe_intermediate_size"])
        mlp(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["num_shared_experts"])
    return out


def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rope(x, position, c):  # x [heads, D], pairs (i, i + half)
    rotary = int(c["head_dim"] * c["partial_rotary_factor"])
    half = rotary // 2
    angle = position * c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) * 2 / rotary)
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = x[:, :half], x[:, half:rotary]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[:, rotary:]], dim=-1)


def slopes(c, l):
    n, L = c["num_attention_heads"], c["num_hidden_layers"]
    assert n & (n - 1) == 0
    index = l - 1 if c.get("slope_form") == "huggingface" else l
    factor = 1 - index / (L - 1) + 1e-5
    return torch.tensor([2.0 ** (-8 * (h + 1) / n) * factor for h in range(n)])


def swiglu(w, p, x):
    return w[p + "down_proj.weight"] @ (torch.nn.functional.silu(w[p + "gate_proj.weight"] @ x)
                                        * (w[p + "up_proj.weight"] @ x))


def moe(c, w, p, x):
    scores = torch.sigmoid(w[p + "gate.weight"] @ x)
    choice = scores + w[p + "gate.expert_bias"]
    groups = choice.view(c["n_group"], -1)
    best = groups.topk(2, dim=-1).values.sum(-1).topk(c["topk_group"]).indices
    allowed = torch.full_like(groups, -math.inf)
    allowed[best] = groups[best]
    chosen = allowed.flatten().topk(c["num_experts_per_tok"]).indices
    weights = scores[chosen] / (scores[chosen].sum() + 1e-20) * c["routed_scaling_factor"]
    y = swiglu(w, p + "shared_experts.", x)
    for e, weight in zip(chosen.tolist(), weights):
        y = y + weight * swiglu(w, p + f"experts.{e}.", x)
    return y


def logits_of(c, w, tokens):
    """Logits after each token."""
    n, kv, D, eps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
    L = c["num_hidden_layers"]
    states = {l: torch.zeros(n, D, D) for l in range(L) if not is_full(c, l)}
    keys, values = ({l: [] for l in range(L) if is_full(c, l)} for _ in range(2))
    out = []
    for position, token in enumerate(tokens):
        h = w["model.word_embeddings.weight"][token]
        for l in range(L):
            p = f"model.layers.{l}."
            x = rms(h, w[p + "input_layernorm.weight"], eps)
            a = p + "attention."
            qkv = (w[a + "query_key_value.weight"] @ x).view(-1, D)
            heads = kv if is_full(c, l) else n
            q, k, v = qkv[:n], qkv[n:n + heads], qkv[n + heads:]
            q = rope(rms(q, w[a + "query_layernorm.weight"], eps), position, c)
            k = rope(rms(k, w[a + "key_layernorm.weight"], eps), position, c)
            if is_full(c, l):
                keys[l].append(k)
                values[l].append(v)
                K, V = torch.stack(keys[l], 1), torch.stack(values[l], 1)
                o = []
                for head in range(n):
                    g = head // (n // kv)
                    o.append(torch.softmax(K[g] @ q[head] * D ** -0.5, 0) @ V[g])
                o = torch.cat(o)
            else:
                decay = torch.exp(-slopes(c, l))
                states[l] = states[l] * decay[:, None, None] + k[:, :, None] * v[:, None, :]
                o = torch.einsum("hk,hkv->hv", q, states[l]) * D ** -0.5
                groups = o.reshape(c["group_norm_size"], -1)
                o = rms(groups, 1.0, eps).flatten() * w[a + "g_norm.weight"]
                o = o * torch.sigmoid(w[a + "g_proj.weight"] @ x)
            h = h + w[a + "dense.weight"] @ o
            x = rms(h, w[p + "post_attention_layernorm.weight"], eps)
            h = h + (swiglu(w, p + "mlp.", x) if l < c["first_k_dense_replace"] else moe(c, w, p + "mlp.", x))
        out.append(w["lm_head.weight"] @ rms(h, w["model.norm.weight"], eps))
    return out


def make(name, config, out):
    generator = torch.Generator().manual_seed(5)
    w = {}
    for key, shape in shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        w[key] = (1 + 0.2 * noise if "norm" in key else 0.2 * noise if "bias" in key else
                  noise * 1.2 / shape[-1] ** 0.5).bfloat16().float()
    tokens = torch.randint(0, config["vocab_size"], (max(LENGTHS),), generator=torch.Generator().manual_seed(7))
    logits = logits_of(config, w, tokens.tolist())
    golden = {"tokens": tokens.to(torch.int32)}
    golden.update({f"logits.{n}": logits[n - 1].clone() for n in LENGTHS})
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    stored = {k: t if k.endswith("expert_bias") else t.bfloat16() for k, t in w.items()}
    save_file({k: t.contiguous() for k, t in stored.items()}, os.path.join(folder, "model.safetensors"))
    save_file(golden, os.path.join(folder, "golden.safetensors"))
    print(f"{name}: {sum(t.numel() for t in w.values())} parameters, logit std {logits[-1].std():.2f}")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    make("bailing_moe_linear", CONFIG, sys.argv[1])
    make("bailing_moe_linear_hf", dict(CONFIG, slope_form="huggingface"), sys.argv[1])
