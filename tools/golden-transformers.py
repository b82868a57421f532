#!/usr/bin/env python3
"""Golden logits from Hugging Face transformers, an oracle that shares nothing with hypic.

For each architecture: a tiny checkpoint with every parameter and buffer perturbed (initial values hide
bugs), rounded to bfloat16, and the float32 logits of the last token of prefixes of a random prompt:
prefilled whole (logits.LENGTH), in two chunks (chunked.200) and token by token after 60 (decoded.65). What
transformers' own cache does not reproduce to 1e-4 is left out and printed. bfloat16.LENGTH are its own logits in
bfloat16: the noise floor of such a backend.

    golden-transformers.py OUT [NAME ...]      needs torch and transformers; runs on CPU in a minute

writes OUT/NAME/{config.json, model.safetensors (BF16), golden.safetensors (tokens and logits)}.
"""
import json
import os
import sys
import traceback

import torch
import transformers
from safetensors.torch import save_file

LENGTHS = [1, 3, 4, 63, 64, 65, 200]
VOCAB = 128
ROPE = dict(rope_type="default", rope_theta=1e4)


def qwen3_5_text(layers, **more):
    return dict(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=len(layers), num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=16, linear_value_head_dim=8, linear_conv_kernel_dim=4, layer_types=layers,
        tie_word_embeddings=False, max_position_embeddings=4096,
        rope_parameters=dict(ROPE, partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True),
        **more)


HYBRID = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
MOE = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, shared_expert_intermediate_size=24)

ARCHITECTURES = {
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", qwen3_5_text(HYBRID + HYBRID[2:], intermediate_size=80)),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", qwen3_5_text(HYBRID, **MOE)),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", dict(
        qwen3_5_text(HYBRID, intermediate_size=80, decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[],
                     **MOE), rope_parameters=dict(ROPE, partial_rotary_factor=0.25))),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, linear_num_key_heads=4, linear_num_value_heads=4, linear_key_head_dim=12,
        linear_value_head_dim=24, linear_conv_kernel_dim=4, layer_types=HYBRID, max_position_embeddings=4096,
        rope_parameters=None, pad_token_id=None, eos_token_id=1, bos_token_id=None)),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM", dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
        num_experts=8, num_experts_per_token=2, num_shared_experts=1, moe_intermediate_size=16,
        first_k_dense_replace=1, max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        linear_attn_config=dict(full_attn_layers=[4], kda_layers=[1, 2, 3], head_dim=16, num_heads=4,
                                short_conv_kernel_size=4))),
    "nemotron_h": ("NemotronHConfig", "NemotronHForCausalLM", dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=6,
        layers_block_type=["mamba", "moe", "mamba", "attention", "mlp", "mamba"],
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, mamba_num_heads=8, mamba_head_dim=6,
        ssm_state_size=16, n_groups=2, conv_kernel=4, chunk_size=32, n_routed_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, n_shared_experts=1, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, max_position_embeddings=4096,
        use_mamba_kernels=False)),
    "granite_moe_hybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["mamba", "mamba", "attention", "mamba"], mamba_n_heads=8,
        mamba_d_head=12, mamba_d_state=16, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=32,
        num_local_experts=8, num_experts_per_tok=2, shared_intermediate_size=48, embedding_multiplier=12.0,
        attention_multiplier=0.03, residual_multiplier=0.22, logits_scaling=6.0, tie_word_embeddings=True,
        position_embedding_type="nope", max_position_embeddings=4096, pad_token_id=0)),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, mamba_d_ssm=48, mamba_n_heads=8, mamba_d_head=6, mamba_n_groups=1,
        mamba_d_state=16, mamba_d_conv=4, mamba_chunk_size=32, mamba_rms_norm=False, max_position_embeddings=4096,
        embedding_multiplier=1.7, lm_head_multiplier=0.6, mlp_multipliers=[0.8, 0.7], key_multiplier=0.5,
        attention_out_multiplier=0.9, attention_in_multiplier=1.1, ssm_multipliers=[0.5, 0.8, 1.2, 0.9, 0.7],
        ssm_in_multiplier=1.3, ssm_out_multiplier=0.75, rope_parameters=dict(ROPE), tie_word_embeddings=False)),
    "minimax": ("MiniMaxConfig", "MiniMaxForCausalLM", dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, layer_types=HYBRID, block_size=32, num_local_experts=4,
        num_experts_per_tok=2, full_attn_alpha_factor=2.1, full_attn_beta_factor=0.9, linear_attn_alpha_factor=1.9,
        linear_attn_beta_factor=1.1, mlp_alpha_factor=2.3, mlp_beta_factor=0.8, max_position_embeddings=4096,
        rope_parameters=dict(ROPE), tie_word_embeddings=False)),
}

# The options that the tiny ones above leave aside.
def variant(name, **changes):
    config, model, arguments = ARCHITECTURES[name]
    return config, model, dict(arguments, **changes)


ARCHITECTURES["kimi_linear_groups"] = variant("kimi_linear", num_hidden_layers=2, num_expert_group=4, topk_group=2,
    linear_attn_config=dict(full_attn_layers=[2], kda_layers=[1], head_dim=16, num_heads=4, short_conv_kernel_size=4))
ARCHITECTURES["nemotron_h_groups"] = variant("nemotron_h", num_hidden_layers=3, n_group=4, topk_group=2,
    layers_block_type=["mamba", "attention", "moe"])
ARCHITECTURES["falcon_h1_norm"] = variant("falcon_h1", num_hidden_layers=2, mamba_rms_norm=True,
    mamba_norm_before_gate=False, mamba_n_groups=2)
ARCHITECTURES["granite_dense_rope"] = variant("granite_moe_hybrid", num_hidden_layers=3, num_local_experts=0,
    num_experts_per_tok=0, layer_types=["mamba", "attention", "mamba"], position_embedding_type="rope",
    rope_parameters=dict(ROPE), time_step_limit=[0.01, 0.4])
ARCHITECTURES["qwen3_next_dense"] = variant("qwen3_next", num_hidden_layers=2, mlp_only_layers=[0],
    norm_topk_prob=False, layer_types=["linear_attention", "full_attention"], tie_word_embeddings=True)


def perturb(model, seed):
    """Half of the heads forget within tokens, half remember; no norm, bias or buffer keeps its initial value."""
    generator = torch.Generator().manual_seed(seed)
    uniform = lambda t, low, high: t.copy_(torch.rand(t.shape, generator=generator) * (high - low) + low)
    normal = lambda t, mean, std: t.copy_(torch.randn(t.shape, generator=generator) * std + mean)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"):
                uniform(p, -2, 1.5)
            elif name.endswith("dt_bias"):
                uniform(p, -6, 1)
            elif "norm" in name and p.dim() == 1:
                p.add_(torch.randn(p.shape, generator=generator) * 0.2)
            elif p.dim() == 1:
                normal(p, 0, 0.3)
            else:
                normal(p, 0, 1.2 / p.shape[-1] ** 0.5 if "conv" not in name else 0.5)
        for name, b in model.named_buffers():
            if "bias" in name:  # router corrections
                normal(b, 0, 0.2)
        for p in list(model.parameters()) + [b for n, b in model.named_buffers() if "bias" in n]:
            p.copy_(p.to(torch.bfloat16).float())


def through_cache(model, tokens, cuts):
    cache = None
    for begin, end in zip(cuts, cuts[1:]):
        result = model(tokens[:, begin:end], past_key_values=cache, use_cache=True)
        cache = result.past_key_values
    return result.logits[0, -1].float().clone()


def make(name, out):
    config_class, model_class, arguments = ARCHITECTURES[name]
    config = getattr(transformers, config_class)(**arguments)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(config).float().eval()
    perturb(model, seed=len(name))
    tokens = torch.randint(0, VOCAB, (1, max(LENGTHS)), generator=torch.Generator().manual_seed(7))
    golden = {"tokens": tokens[0].to(torch.int32)}
    with torch.no_grad():
        for length in LENGTHS:
            golden[f"logits.{length}"] = model(tokens[:, :length], use_cache=False).logits[0, -1].float().clone()
        for key, cuts in (("chunked.200", [0, 100, 200]), ("decoded.65", [0, 60, 61, 62, 63, 64, 65])):
            try:
                cached = through_cache(model, tokens, cuts)
            except RuntimeError as error:
                print(f"{name}: transformers cannot do {key}: {error}: left out")
                continue
            off = (cached - golden["logits." + key.split(".")[1]]).abs().max().item()
            if off <= 1e-4:
                golden[key] = cached
            else:
                print(f"{name}: {key} of transformers differs from its own full prefill by {off:.1e}: left out")
        model.to(torch.bfloat16)
        for length in LENGTHS:  # how far transformers itself is off in bfloat16
            golden[f"bfloat16.{length}"] = model(tokens[:, :length], use_cache=False).logits[0, -1].float().clone()
    noise = max((golden[f"bfloat16.{n}"] - golden[f"logits.{n}"]).abs().max().item() for n in LENGTHS)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    model.save_pretrained(folder)
    save_file(golden, os.path.join(folder, "golden.safetensors"))
    for extra in ("generation_config.json",):
        path = os.path.join(folder, extra)
        if os.path.exists(path):
            os.remove(path)
    spread = golden[f"logits.{max(LENGTHS)}"].std().item()
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    return f"{name}: {sum(p.numel() for p in model.parameters())} parameters, logit std {spread:.2f}, bfloat16 noise {noise:.3f}, {size >> 10} KiB"


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(max(1, os.cpu_count() // 2))
    out, names = sys.argv[1], sys.argv[2:] or list(ARCHITECTURES)
    failed = 0
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for name in names:
        try:
            print(make(name, out), flush=True)
        except Exception:
            failed += 1
            print(f"{name}: FAILED\n{traceback.format_exc(limit=-4)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
