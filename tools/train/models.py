"""Four tiny hybrids, each in the architecture, tensor names and config.json of a published one.

A model is its config (a dict, as config.json) and its parameters (a dict, by tensor name). `shapes` lists the tensors,
`initial` draws them, `hidden_states` is the forward up to the final norm, `logits` the rest.
"""
import math

import torch
import torch.nn.functional as F

from recurrence import CHUNK, fused, gated_delta, kda, scalar_add

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 256, 256, 4, 2, 64
LINEAR, FULL = "linear_attention", "full_attention"
LAYERS = [LINEAR, LINEAR, FULL] * 2
SHORT, SHORT_FFN = [LINEAR] * 3 + [FULL], 512  # docs/tiny-models.md says why
CONV = 4
EPS = 1e-6

COMMON = dict(hidden_size=HIDDEN, num_attention_heads=HEADS, hidden_act="silu", rms_norm_eps=EPS,
              max_position_embeddings=32768)
CONFIGS = {
    "tiny-qwen3.5": dict(
        COMMON, architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM, num_hidden_layers=len(SHORT), layer_types=SHORT, intermediate_size=SHORT_FFN,
        linear_num_key_heads=HEADS, linear_num_value_heads=HEADS, linear_key_head_dim=HEAD_DIM,
        linear_value_head_dim=HEAD_DIM, linear_conv_kernel_dim=CONV, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
                             mrope_section=[6, 5, 5], mrope_interleaved=True)),
    "tiny-ring": dict(
        COMMON, architectures=["BailingMoeLinearV2ForCausalLM"], model_type="bailing_moe_linear",
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, num_hidden_layers=len(LAYERS), layer_group_size=3,
        intermediate_size=FFN, first_k_dense_replace=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
        num_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=True,
        score_function="sigmoid", moe_router_enable_expert_bias=True, group_norm_size=2, partial_rotary_factor=0.5,
        rope_theta=10000.0, use_qk_norm=True, use_bias=False, use_qkv_bias=False, linear_silu=False,
        tie_word_embeddings=True),
    "tiny-kimi": dict(
        {k: v for k, v in COMMON.items() if k != "max_position_embeddings"}, architectures=["KimiLinearForCausalLM"],
        model_type="kimi_linear", num_key_value_heads=HEADS, num_hidden_layers=len(LAYERS), intermediate_size=FFN,
        model_max_length=32768, kv_lora_rank=64, qk_nope_head_dim=48, qk_rope_head_dim=16, v_head_dim=64,
        q_lora_rank=None,
        linear_attn_config=dict(kda_layers=[i + 1 for i, t in enumerate(LAYERS) if t == LINEAR],
                                full_attn_layers=[i + 1 for i, t in enumerate(LAYERS) if t == FULL],
                                num_heads=HEADS, head_dim=HEAD_DIM, short_conv_kernel_size=CONV),
        first_k_dense_replace=len(LAYERS), num_experts=4, num_experts_per_token=2, moe_intermediate_size=64,
        num_shared_experts=1, num_expert_group=1, topk_group=1, moe_renormalize=True, routed_scaling_factor=1.0,
        moe_router_activation_func="sigmoid", mla_use_nope=True, tie_word_embeddings=False),
    "tiny-granite": dict(
        COMMON, architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid",
        num_key_value_heads=KV_HEADS, num_hidden_layers=len(SHORT),
        layer_types=["mamba" if t == LINEAR else "attention" for t in SHORT],
        mamba_n_heads=8, mamba_d_head=64, mamba_d_state=64, mamba_n_groups=1, mamba_d_conv=CONV, mamba_expand=2,
        mamba_chunk_size=64, mamba_conv_bias=True, mamba_proj_bias=False, num_local_experts=0, num_experts_per_tok=0,
        intermediate_size=SHORT_FFN, shared_intermediate_size=SHORT_FFN, embedding_multiplier=12.0,
        attention_multiplier=0.125, residual_multiplier=0.5, logits_scaling=2.0,
        position_embedding_type="nope", attention_bias=False, tie_word_embeddings=True),
}


def config_of(name, vocabulary, end):
    return dict(CONFIGS[name], vocab_size=vocabulary, eos_token_id=end, bos_token_id=None, pad_token_id=end,
                dtype="bfloat16")


# Shapes and initial values

def _swiglu(out, prefix, inner, hidden):
    out[prefix + "gate_proj.weight"] = out[prefix + "up_proj.weight"] = (inner, hidden)
    out[prefix + "down_proj.weight"] = (hidden, inner)


def _qwen(c, out):
    H, D, n = c["hidden_size"], c["head_dim"], c["num_attention_heads"]
    k, v = (c[f"linear_num_{x}_heads"] * c[f"linear_{x}_head_dim"] for x in ("key", "value"))
    nv = c["linear_num_value_heads"]
    for l, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{l}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (H,)
        if kind == LINEAR:
            a = p + "linear_attn."
            out[a + "in_proj_qkv.weight"], out[a + "in_proj_z.weight"] = (2 * k + v, H), (v, H)
            out[a + "in_proj_b.weight"] = out[a + "in_proj_a.weight"] = (nv, H)
            out[a + "conv1d.weight"] = (2 * k + v, 1, c["linear_conv_kernel_dim"])
            out[a + "dt_bias"] = out[a + "A_log"] = (nv,)
            out[a + "norm.weight"] = (c["linear_value_head_dim"],)
            out[a + "out_proj.weight"] = (H, v)
        else:
            a = p + "self_attn."
            out[a + "q_proj.weight"] = (2 * n * D, H)
            out[a + "k_proj.weight"] = out[a + "v_proj.weight"] = (c["num_key_value_heads"] * D, H)
            out[a + "o_proj.weight"] = (H, n * D)
            out[a + "q_norm.weight"] = out[a + "k_norm.weight"] = (D,)
        _swiglu(out, p + "mlp.", c["intermediate_size"], H)


def ring_is_full(c, l):
    G = c["layer_group_size"]
    return (l + 1) % G == 0 or l >= c["num_hidden_layers"] // G * G


def _ring(c, out):
    H, D, n, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (H,)
        a = p + "attention."
        out[a + "query_key_value.weight"] = ((n + 2 * kv) * D if ring_is_full(c, l) else 3 * n * D, H)
        out[a + "query_layernorm.weight"] = out[a + "key_layernorm.weight"] = (D,)
        out[a + "dense.weight"] = (H, n * D)
        if not ring_is_full(c, l):
            out[a + "g_proj.weight"], out[a + "g_norm.weight"] = (n * D, H), (n * D,)
        if l < c["first_k_dense_replace"]:
            _swiglu(out, p + "mlp.", c["intermediate_size"], H)
            continue
        out[p + "mlp.gate.weight"], out[p + "mlp.gate.expert_bias"] = (c["num_experts"], H), (c["num_experts"],)
        for e in range(c["num_experts"]):
            _swiglu(out, p + f"mlp.experts.{e}.", c["moe_intermediate_size"], H)
        _swiglu(out, p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["num_shared_experts"], H)


def _kimi(c, out):
    H, n, linear = c["hidden_size"], c["num_attention_heads"], c["linear_attn_config"]
    D, width = linear["head_dim"], linear["num_heads"] * linear["head_dim"]
    latent, nope, shared, value = (c[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (H,)
        a = p + "self_attn."
        if l + 1 in linear["kda_layers"]:
            for x in "qkv":
                out[a + f"{x}_proj.weight"] = (width, H)
                out[a + f"{x}_conv1d.weight"] = (width, 1, linear["short_conv_kernel_size"])
            out[a + "b_proj.weight"] = (linear["num_heads"], H)
            out[a + "f_a_proj.weight"] = out[a + "g_a_proj.weight"] = (D, H)
            out[a + "f_b_proj.weight"] = out[a + "g_b_proj.weight"] = (width, D)
            out[a + "dt_bias"], out[a + "A_log"] = (width,), (1, 1, linear["num_heads"], 1)
            out[a + "o_norm.weight"], out[a + "o_proj.weight"] = (D,), (H, width)
        else:
            out[a + "q_proj.weight"] = (n * (nope + shared), H)
            out[a + "kv_a_proj_with_mqa.weight"], out[a + "kv_a_layernorm.weight"] = (latent + shared, H), (latent,)
            out[a + "kv_b_proj.weight"] = (n * (nope + value), latent)
            out[a + "o_proj.weight"] = (H, n * value)
        _swiglu(out, p + "mlp.", c["intermediate_size"], H)


def _granite(c, out):
    H, n, D = c["hidden_size"], c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
    heads, inner = c["mamba_n_heads"], c["mamba_n_heads"] * c["mamba_d_head"]
    channels = inner + 2 * c["mamba_n_groups"] * c["mamba_d_state"]
    for l, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{l}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (H,)
        if kind == "mamba":
            a = p + "mamba."
            out[a + "in_proj.weight"] = (inner + channels + heads, H)
            out[a + "conv1d.weight"], out[a + "conv1d.bias"] = (channels, 1, c["mamba_d_conv"]), (channels,)
            out[a + "dt_bias"] = out[a + "A_log"] = out[a + "D"] = (heads,)
            out[a + "norm.weight"], out[a + "out_proj.weight"] = (inner,), (H, inner)
        else:
            a = p + "self_attn."
            out[a + "q_proj.weight"], out[a + "o_proj.weight"] = (n * D, H), (H, n * D)
            out[a + "k_proj.weight"] = out[a + "v_proj.weight"] = (c["num_key_value_heads"] * D, H)
        out[p + "shared_mlp.input_linear.weight"] = (2 * c["shared_intermediate_size"], H)
        out[p + "shared_mlp.output_linear.weight"] = (H, c["shared_intermediate_size"])


def embedding_name(c):
    return "model.word_embeddings.weight" if c["model_type"] == "bailing_moe_linear" else "model.embed_tokens.weight"


def shapes(c):
    out = {embedding_name(c): (c["vocab_size"], c["hidden_size"]), "model.norm.weight": (c["hidden_size"],)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], c["hidden_size"])
    {"qwen3_5_text": _qwen, "bailing_moe_linear": _ring, "kimi_linear": _kimi, "granitemoehybrid": _granite}[
        c["model_type"]](c, out)
    return out


OUTPUTS = ("out_proj.weight", "o_proj.weight", "dense.weight", "down_proj.weight", "output_linear.weight")


def _inverse_softplus(x):
    return x + torch.log(-torch.expm1(-x))


def initial(c, seed):
    """Forget gates that remember 6 to 3000 tokens, log-spaced over heads (kda: and channels); outputs scaled down."""
    generator = torch.Generator().manual_seed(seed)
    plus_one = c["model_type"] == "qwen3_5_text"
    mamba_step = 0.3
    out = {}
    for name, shape in shapes(c).items():
        last = name.rsplit(".", 1)[-1] if not name.endswith(".weight") else name.split(".")[-2] + ".weight"
        noise = torch.randn(shape, generator=generator)
        heads = shape[0]
        rates = 1 / torch.logspace(math.log10(6), math.log10(3000), heads) if len(shape) == 1 else None
        if last == "A_log":
            x = torch.log(rates / mamba_step) if c["model_type"] == "granitemoehybrid" else torch.zeros(shape)
        elif last == "dt_bias":
            x = _inverse_softplus(torch.full(shape, mamba_step) if c["model_type"] == "granitemoehybrid" else rates)
        elif last == "D":
            x = torch.full(shape, 0.5)
        elif "norm" in last:
            x = torch.zeros(shape) if plus_one and "linear_attn.norm" not in name else torch.ones(shape)
        elif last in ("expert_bias", "bias"):
            x = torch.zeros(shape)
        elif "conv1d" in last:
            x = 0.2 * noise
            x[:, :, -1] += 1
        elif "embed" in last or last == "lm_head.weight":
            x = 0.05 * noise
        else:
            x = noise * shape[-1] ** -0.5 * (0.2 if name.endswith(OUTPUTS) else 0.7)
        out[name] = x
    return out


# The forward. Rows go in chunks, the first chunks of all sequences before the second ones: x [n * B, CHUNK, hidden].
# p holds parameters, matrices in the type of x. What is compiled does not depend on how n * B divides.

def wide(x):
    return x.float() if x.dtype == torch.bfloat16 else x


def normed(x, weight, eps):
    x = wide(x)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@fused
def rms(x, weight, eps, plus_one):
    return normed(x, weight + 1 if plus_one else weight, eps).to(x.dtype)


@fused
def add_rms(h, y, mix, weight, eps, plus_one):
    """h + mix y, and that normed."""
    h = (wide(h) + mix * wide(y)).to(h.dtype)
    return h, normed(h, weight + 1 if plus_one else weight, eps).to(h.dtype)


@fused
def swiglu(x):
    """Of [gate | up]."""
    gate, up = wide(x).chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


def feed_forward(p, name, x):
    up = torch.cat([p[name + "gate_proj.weight"], p[name + "up_proj.weight"]])
    return F.linear(swiglu(F.linear(x, up)), p[name + "down_proj.weight"])


def by_head(x, heads):
    """[N, C, heads * D] to [N, heads, C, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def before(x, sequences):
    """The CONV - 1 rows before each chunk, zeros before the first: [n * B, CONV - 1, channels]."""
    return torch.cat([x.new_zeros(sequences, CONV - 1, x.shape[-1]), x[:-sequences, 1 - CONV:]])


def convolved(x, halo, weight, bias=0):
    padded = wide(torch.cat([halo, x], 1))
    return F.silu(sum(padded[:, j:j + x.shape[1]] * weight[:, 0, j] for j in range(CONV)) + bias)


@fused
def delta_inputs(x, halo, weight, heads, more):
    """Of [q | k | v | more parts]: q, k of unit norm by head, q scaled, v, and each of the other parts."""
    qkv, *rest = x.split([halo.shape[-1], *more], -1)
    q, k, v = (by_head(part, heads) for part in convolved(qkv, halo, weight).chunk(3, -1))
    q, k = (y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    return *(y.to(x.dtype).contiguous() for y in (q * q.shape[-1] ** -0.5, k, v)), *(y.contiguous() for y in rest)


@fused
def gated_norm(o, z, weight, groups, eps, sigmoid):
    """o [N, H, C, D] normed by group of channels, then gated by z [N, C, H * D]."""
    o = o.transpose(1, 2).reshape(*z.shape[:2], groups, -1)
    o = normed(o, weight.view(-1, o.shape[-1]), eps)
    gate = wide(z)
    return (o.flatten(-2) * (torch.sigmoid(gate) if sigmoid else F.silu(gate))).to(z.dtype)


@fused
def delta_gates(decay, beta, A_log, dt_bias):
    g = -A_log.exp() * F.softplus(wide(decay) + dt_bias)
    return g.mT.contiguous(), torch.sigmoid(wide(beta)).mT.contiguous()


@fused
def kda_gates(decay, beta, A_log, dt_bias):
    g = -A_log.exp().view(-1, 1, 1) * by_head(F.softplus(wide(decay) + dt_bias), beta.shape[-1])
    return g.contiguous(), torch.sigmoid(wide(beta)).mT.contiguous()


def normed_rotated(x, weight, cos, sin, eps):
    """x [N, C, heads, D] normed by head, the first dims rotated in pairs (i, i + half); cos, sin [N, C, half]."""
    y = normed(x, weight, eps)
    half = cos.shape[-1]
    cos, sin = cos[:, :, None], sin[:, :, None]
    a, b, rest = y[..., :half], y[..., half:2 * half], y[..., 2 * half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


@fused
def attention_inputs(x, q_weight, k_weight, cos, sin, eps, heads, kv_heads, gated):
    """Of [q | k | v], each head of q with its gate if `gated`: q, k, v [N, C, heads, D], gate [N, C, heads * D]."""
    D = q_weight.shape[-1]
    q, k, v = x.unflatten(-1, (-1, D)).split([heads * (1 + gated), kv_heads, kv_heads], -2)
    gate = None
    if gated:
        q, gate = q.unflatten(-2, (heads, 2)).unbind(-2)
        gate = gate.flatten(-2).contiguous()
    q, k = (normed_rotated(y, w, cos, sin, eps).to(x.dtype) for y, w in ((q, q_weight), (k, k_weight)))
    return q, k, v.contiguous(), gate


@fused
def lightning_inputs(x, q_weight, k_weight, cos, sin, eps, heads):
    """Of [q | k | v | z]: q, k normed and rotated, q scaled, v, z."""
    q, k, v, z = x.unflatten(-1, (4, heads, -1)).unbind(2)
    q = normed_rotated(q, q_weight, cos, sin, eps) * q.shape[-1] ** -0.5
    k = normed_rotated(k, k_weight, cos, sin, eps)
    return *(y.to(x.dtype).transpose(1, 2).contiguous() for y in (q, k, v)), z.flatten(-2).contiguous()


def attend(q, k, v, scale, n):
    """Causal; q [n * B, C, heads, D], k, v [n * B, C, kv heads, D]; gives [n * B, C, heads * D]."""
    q, k, v = (x.unflatten(0, (n, -1)).permute(1, 3, 0, 2, 4).flatten(2, 3) for x in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return o.unflatten(2, (n, -1)).permute(2, 0, 3, 1, 4).flatten(0, 1).flatten(-2)


@fused
def sigmoid_gated(o, gate):
    return (wide(o) * torch.sigmoid(wide(gate))).to(o.dtype)


def qwen_mixer(c, p, l, x, n, rope):
    eps = c["rms_norm_eps"]
    if c["layer_types"][l] == LINEAR:
        m, heads = f"model.layers.{l}.linear_attn.", c["linear_num_value_heads"]
        into = [p[m + f"in_proj_{part}.weight"] for part in ("qkv", "z", "a", "b")]
        x = F.linear(x, torch.cat(into))
        halo = before(x[..., :len(into[0])], len(x) // n)
        q, k, v, z, decay, beta = delta_inputs(x, halo, p[m + "conv1d.weight"], heads, [len(w) for w in into[1:]])
        o = gated_delta(q, k, v, *delta_gates(decay, beta, p[m + "A_log"], p[m + "dt_bias"]), n)
        return F.linear(gated_norm(o, z, p[m + "norm.weight"], heads, eps, False), p[m + "out_proj.weight"])
    m, heads, D = f"model.layers.{l}.self_attn.", c["num_attention_heads"], c["head_dim"]
    x = F.linear(x, torch.cat([p[m + f"{part}_proj.weight"] for part in "qkv"]))
    q, k, v, gate = attention_inputs(x, p[m + "q_norm.weight"] + 1, p[m + "k_norm.weight"] + 1, *rope, eps, heads,
                                     c["num_key_value_heads"], True)
    return F.linear(sigmoid_gated(attend(q, k, v, D ** -0.5, n), gate), p[m + "o_proj.weight"])


def slopes(c, l, dtype, device):
    n = c["num_attention_heads"]
    factor = 1 - l / (c["num_hidden_layers"] - 1) + 1e-5
    return factor * torch.exp2(torch.arange(1, n + 1, dtype=torch.float64, device=device) * (-8 / n)).to(dtype)


def ring_mixer(c, p, l, x, n, rope):
    m, heads, D, eps = f"model.layers.{l}.attention.", c["num_attention_heads"], c["head_dim"], c["rms_norm_eps"]
    norms = p[m + "query_layernorm.weight"], p[m + "key_layernorm.weight"]
    if ring_is_full(c, l):
        x = F.linear(x, p[m + "query_key_value.weight"])
        q, k, v, _ = attention_inputs(x, *norms, *rope, eps, heads, c["num_key_value_heads"], False)
        return F.linear(attend(q, k, v, D ** -0.5, n), p[m + "dense.weight"])
    x = F.linear(x, torch.cat([p[m + "query_key_value.weight"], p[m + "g_proj.weight"]]))
    q, k, v, z = lightning_inputs(x, *norms, *rope, eps, heads)
    g = -slopes(c, l, rope[0].dtype, x.device)
    o = scalar_add(q, k, v, g.view(1, heads, 1).expand(1, heads, CHUNK), n)
    return F.linear(gated_norm(o, z, p[m + "g_norm.weight"], c["group_norm_size"], eps, True), p[m + "dense.weight"])


@fused
def routed(scores, bias, active, scale):
    """Weights of all experts, zero for those not chosen, and the share of rows that chose each."""
    scores = torch.sigmoid(scores)
    chosen = scores.detach() + bias
    # The k-th largest: a pair of equal ones is as likely as in any other order.
    rank = (chosen[..., None, :] > chosen[..., :, None]).sum(-1)
    mask = (rank < active).to(scores.dtype)
    weights = scores * mask
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale, mask.mean((0, 1))


@fused
def expert_swiglu(x, weights):
    """[gates of all experts | ups of all experts], each expert's part times its weight."""
    gate, up = wide(x).chunk(2, -1)
    y = (F.silu(gate) * up).unflatten(-1, (weights.shape[-1], -1)) * weights[..., None]
    return y.flatten(-2).to(x.dtype)


def ring_feed_forward(c, p, l, x, loads):
    a = f"model.layers.{l}.mlp."
    if l < c["first_k_dense_replace"]:
        return feed_forward(p, a, x)
    experts = [a + f"experts.{e}." for e in range(c["num_experts"])]
    weights, load = routed(F.linear(wide(x), wide(p[a + "gate.weight"])), p[a + "gate.expert_bias"],
                           c["num_experts_per_tok"], c["routed_scaling_factor"])
    loads.append(load)
    up = torch.cat([p[e + part] for part in ("gate_proj.weight", "up_proj.weight") for e in experts])
    down = torch.cat([p[e + "down_proj.weight"] for e in experts], 1)
    return F.linear(expert_swiglu(F.linear(x, up), weights), down) + feed_forward(p, a + "shared_experts.", x)


def kimi_mixer(c, p, l, x, n):
    m, eps, linear = f"model.layers.{l}.self_attn.", c["rms_norm_eps"], c["linear_attn_config"]
    if l + 1 in linear["kda_layers"]:
        heads = linear["num_heads"]
        into = [p[m + f"{part}_proj.weight"] for part in ("q", "k", "v", "f_a", "g_a", "b")]
        x = F.linear(x, torch.cat(into))
        conv = torch.cat([p[m + f"{part}_conv1d.weight"] for part in "qkv"])
        q, k, v, decay, z, beta = delta_inputs(x, before(x[..., :len(conv)], len(x) // n), conv, heads,
                                               [len(w) for w in into[3:]])
        g, beta = kda_gates(F.linear(decay, p[m + "f_b_proj.weight"]), beta, p[m + "A_log"], p[m + "dt_bias"])
        o = kda(q, k, v, g, beta, n)
        o = gated_norm(o, F.linear(z, p[m + "g_b_proj.weight"]), p[m + "o_norm.weight"], heads, eps, True)
        return F.linear(o, p[m + "o_proj.weight"])
    heads, latent, shared = c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, value = c["qk_nope_head_dim"], c["v_head_dim"]
    into = torch.cat([p[m + "q_proj.weight"], p[m + "kv_a_proj_with_mqa.weight"]])
    q, kv, k_shared = F.linear(x, into).split([heads * (nope + shared), latent, shared], -1)
    kv = F.linear(rms(kv, p[m + "kv_a_layernorm.weight"], eps, False), p[m + "kv_b_proj.weight"])
    k, v = kv.unflatten(-1, (heads, -1)).split([nope, value], -1)
    k = torch.cat([k, k_shared[..., None, :].expand(*k.shape[:3], shared)], -1)
    o = attend(q.unflatten(-1, (heads, -1)), k, v, (nope + shared) ** -0.5, n)
    return F.linear(o, p[m + "o_proj.weight"])


@fused
def mamba_inputs(x, halo, weight, bias, A_log, dt_bias, heads, state):
    """Of [z | x | B | C | step]: C, B [N, 1, c, state], x and step x [N, H, c, D], log decays [N, H, c], z."""
    z, xbc, dt = x.split([halo.shape[-1] - 2 * state, halo.shape[-1], heads], -1)
    x, b, c = convolved(xbc, halo, weight, bias).split([z.shape[-1], state, state], -1)
    step = F.softplus(wide(dt) + dt_bias).mT
    x = by_head(x, heads)
    out = by_head(c, 1), by_head(b, 1), x, x * step[..., None]
    return *(y.to(z.dtype).contiguous() for y in out), (-A_log.exp()[:, None] * step).contiguous(), z.contiguous()


@fused
def mamba_output(o, x, z, D, weight, eps):
    """(o + D x) silu(z), normed over all channels."""
    y = wide(o) + D[:, None, None] * wide(x)
    return normed(y.transpose(1, 2).flatten(-2) * F.silu(wide(z)), weight, eps).to(z.dtype)


def granite_mixer(c, p, l, x, n):
    if c["layer_types"][l] == "mamba":
        m, heads, state = f"model.layers.{l}.mamba.", c["mamba_n_heads"], c["mamba_d_state"]
        inner = heads * c["mamba_d_head"]
        x = F.linear(x, p[m + "in_proj.weight"])
        halo = before(x[..., inner:2 * inner + 2 * state], len(x) // n)
        q, k, x, stepped, g, z = mamba_inputs(x, halo, p[m + "conv1d.weight"], p[m + "conv1d.bias"], p[m + "A_log"],
                                              p[m + "dt_bias"], heads, state)
        o = scalar_add(q, k, stepped, g, n)
        o = mamba_output(o, x, z, p[m + "D"], p[m + "norm.weight"], c["rms_norm_eps"])
        return F.linear(o, p[m + "out_proj.weight"])
    m, heads = f"model.layers.{l}.self_attn.", c["num_attention_heads"]
    D = c["hidden_size"] // heads
    into = [p[m + f"{part}_proj.weight"] for part in "qkv"]
    q, k, v = F.linear(x, torch.cat(into)).unflatten(-1, (-1, D)).split([len(w) // D for w in into], -2)
    return F.linear(attend(q, k, v, c["attention_multiplier"], n), p[m + "o_proj.weight"])


def rotation(c, n, sequences, dtype, device):
    """cos, sin [n * B, CHUNK, half], from angles in float64."""
    r = c.get("rope_parameters", c)
    size = int(c["head_dim"] * r["partial_rotary_factor"])
    rate = r["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64, device=device) / size)
    angle = torch.arange(n * CHUNK, dtype=torch.float64, device=device)[:, None] * rate
    angle = angle.view(n, 1, CHUNK, -1).expand(n, sequences, CHUNK, -1).flatten(0, 1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def hidden_states(c, p, tokens, loads=None):
    """Final, normed states [B, L, hidden] of tokens [B, L], L a multiple of CHUNK. `loads` receives, per MoE layer, the
    share of rows that chose each expert."""
    kind, eps, plus_one = c["model_type"], c["rms_norm_eps"], c["model_type"] == "qwen3_5_text"
    B, n = tokens.shape[0], tokens.shape[1] // CHUNK
    h = F.embedding(tokens.view(B, n, CHUNK).transpose(0, 1).flatten(0, 1), p[embedding_name(c)])
    if kind == "granitemoehybrid":
        h = h * c["embedding_multiplier"]
    if kind in ("qwen3_5_text", "bailing_moe_linear"):
        rope = rotation(c, n, B, wide(h[:0]).dtype, h.device)
    loads = [] if loads is None else loads
    mix = float(c.get("residual_multiplier", 1))
    layers = range(c["num_hidden_layers"])
    x = rms(h, p["model.layers.0.input_layernorm.weight"], eps, plus_one)
    for l in layers:
        a = f"model.layers.{l}."
        if kind == "qwen3_5_text":
            y = qwen_mixer(c, p, l, x, n, rope)
        elif kind == "bailing_moe_linear":
            y = ring_mixer(c, p, l, x, n, rope)
        elif kind == "kimi_linear":
            y = kimi_mixer(c, p, l, x, n)
        else:
            y = granite_mixer(c, p, l, x, n)
        h, x = add_rms(h, y, mix, p[a + "post_attention_layernorm.weight"], eps, plus_one)
        if kind == "granitemoehybrid":
            y = swiglu(F.linear(x, p[a + "shared_mlp.input_linear.weight"]))
            y = F.linear(y, p[a + "shared_mlp.output_linear.weight"])
        elif kind == "bailing_moe_linear":
            y = ring_feed_forward(c, p, l, x, loads)
        else:
            y = feed_forward(p, a + "mlp.", x)
        after = "model.norm.weight" if l == layers[-1] else f"model.layers.{l + 1}.input_layernorm.weight"
        h, x = add_rms(h, y, mix, p[after], eps, plus_one)
    return x.unflatten(0, (n, B)).transpose(0, 1).flatten(1, 2)


def logits(c, p, h):
    head = p[embedding_name(c) if c["tie_word_embeddings"] else "lm_head.weight"]
    return F.linear(h, head) / c.get("logits_scaling", 1.0)
