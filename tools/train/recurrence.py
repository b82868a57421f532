"""Linear attention in chunks of 64 tokens, from batched matrix products, with gradients.

Every family is S_t = A_t S_{t-1} + B_t, o_t = S_t^T q_t, from S = 0. Tensors come cut into chunks, the first chunks of
all sequences before the second ones: q, k [n * B, H, C, dk], v [n * B, H, C, dv]; log decays g [n * B, H, C] (kda:
[n * B, H, C, dk]) and beta [n * B, H, C] in float32 or float64. q comes scaled. Outputs are as v. Where q, k, v are
bfloat16, the products inside a chunk are too; the triangular inverse and the states stay in float32.

What is compiled works on one chunk at a time, so that it does not depend on how n * B divides.
"""
import os

import torch

torch._dynamo.config.recompile_limit = 64  # each shape is a compilation of its own

CHUNK = 64
SUB = 16  # kda: rows that share a reference point of the decay
MIN_LOG_DECAY = -10.0  # kda: a channel that keeps less than 5e-5 of its state in a token is taken to keep that


def fused(function):
    """Elementwise chains: in training on a GPU compiled into single kernels, elsewhere run as written."""
    compiled = torch.compile(function, dynamic=False, fullgraph=True)
    eager = bool(os.environ.get("TRAIN_EAGER"))

    def call(*arguments):
        on_gpu = any(isinstance(a, torch.Tensor) and a.is_cuda for a in arguments)
        return (compiled if on_gpu and torch.is_grad_enabled() and not eager else function)(*arguments)
    return call


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower A [..., C, C]: blocks of 8 as sums of powers, then joined two by two (powers of a
    whole chunk would cancel: with equal keys they are as large as binomials)."""

    @staticmethod
    def blocks(a, s, below):
        """The diagonal blocks of s rows, or of each pair of them the one below the diagonal: [N, count, s, s]."""
        C = a.shape[-1]
        row, step = (s, 2 * s) if below else (0, s)
        size, stride = (a.shape[0], C // step, s, s), (a.stride(0), step * (a.stride(1) + a.stride(2)), *a.stride()[1:])
        return a.as_strided(size, stride, a.storage_offset() + row * a.stride(1))

    @staticmethod
    def forward(ctx, a):
        C = a.shape[-1]
        flat = a.reshape(-1, C, C)
        s = min(8, C)
        inverse = torch.zeros_like(flat)
        power = -UnitLowerInverse.blocks(flat, s, False)
        block = power + torch.eye(s, dtype=a.dtype, device=a.device)
        for _ in range(2):  # I + P + ... + P^7
            power = power @ power
            block = block + block @ power
        UnitLowerInverse.blocks(inverse, s, False).copy_(block)
        while s < C:
            first, second = UnitLowerInverse.blocks(inverse, s, False).unflatten(1, (-1, 2)).unbind(2)
            below = UnitLowerInverse.blocks(flat, s, True)
            UnitLowerInverse.blocks(inverse, s, True).copy_(second @ below @ first).neg_()
            s *= 2
        inverse = inverse.view(a.shape)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        inverse, = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT).tril(-1)


class Scan(torch.autograd.Function):
    """States before each chunk of S_{c+1} = P_c S_c + U_c from S_0 = 0: P [n, N, dk, dk], U [n, N, dk, dv]."""

    @staticmethod
    def forward(ctx, p, u):
        states = torch.empty_like(u)
        states[0] = 0
        for c in range(len(u) - 1):
            torch.baddbmm(u[c], p[c], states[c], out=states[c + 1])
        ctx.save_for_backward(p, states)
        return states

    @staticmethod
    def backward(ctx, grad):
        p, states = ctx.saved_tensors
        after = torch.empty_like(states)  # the gradient of the state after each chunk
        after[-1] = 0
        for c in range(len(states) - 2, -1, -1):
            torch.baddbmm(grad[c + 1], p[c + 1].mT, after[c + 1], out=after[c])
        return after @ states.mT, after


@fused
def decays(g):
    """Of log decays [..., C]: exp(G), exp(G_last - G), G_last, and exp(G_i - G_j) for j <= i, else 0; G their sum."""
    total = g.cumsum(-1)
    lower = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    return total.exp(), (total[..., -1:] - total).exp(), total[..., -1], between


@fused
def channel_decays(q, k, g):
    """kda: k exp(G), q exp(G), k exp(G_last - G), G_last; and what makes scores: rows of k and q [.., C/SUB, 2 SUB, dk]
    and columns [.., C/SUB, C, dk], each divided between them at the middle of the rows, so that no power overflows."""
    total = g.clamp(min=MIN_LOG_DECAY).cumsum(-2)
    wide = total.dtype
    last = total[..., -1:, :]
    start = total.exp()
    subs = total.unflatten(-2, (-1, SUB))
    middle = subs[..., SUB // 2 - 1, :]  # [.., C/SUB, dk]
    rows = (subs - middle[..., None, :]).exp()
    rows = torch.cat([k.unflatten(-2, (-1, SUB)).to(wide) * rows, q.unflatten(-2, (-1, SUB)).to(wide) * rows], -2)
    power = middle[..., :, None, :] - total[..., None, :, :]  # [.., C/SUB, C, dk]
    sub = torch.arange(power.shape[-3], device=g.device)
    later = torch.arange(power.shape[-2], device=g.device)[None, :] // SUB > sub[:, None]
    columns = k.to(wide)[..., None, :, :] * power.masked_fill(later[..., None], float("-inf")).exp()
    scaled = [(x.to(wide) * s).to(q.dtype) for x, s in ((k, start), (q, start), (k, (last - total).exp()))]
    return *scaled, last.squeeze(-2), rows.to(q.dtype), columns.to(q.dtype)


@fused
def strictly_lower(scores, beta, between):
    scores = scores.tril(-1).to(beta.dtype) * beta[..., None]  # above the diagonal they may be infinite
    return scores if between is None else scores * between


@fused
def weighed(scores, between):
    return (scores.to(between.dtype) * between).to(scores.dtype)


@fused
def row_scaled(x, scale):
    return (x.to(scale.dtype) * scale[..., None]).to(x.dtype)


@fused
def columns_scaled(t, beta, start, like):
    """T diag(beta exp(G)), if there is `start`, and T diag(beta), in the type of `like`."""
    t = t * beta[..., None, :]
    return None if start is None else (t * start[..., None, :]).to(like.dtype), t.to(like.dtype)


@fused
def transition(kw, last):
    """diag(exp(last)) - K^T W; `last` [...] or, by channel, [..., dk]."""
    eye = torch.eye(kw.shape[-1], dtype=last.dtype, device=kw.device)
    last = last.exp()
    return eye * (last[..., None] if last.dim() == kw.dim() - 1 else last[..., None, None]) - kw.to(last.dtype)


def _delta_outputs(q, k, weights, w, u, last, n):
    p = transition(k.mT @ w, last)
    added = (k.mT @ u).to(p.dtype)
    states = Scan.apply(*(x.view(n, -1, *x.shape[-2:]) for x in (p, added))).view_as(added).to(q.dtype)
    return q @ states + weights @ (u - w @ states)


def gated_delta(q, k, v, g, beta, n):
    """A_t = exp(g_t) (I - beta_t k_t k_t^T), B_t = beta_t k_t v_t^T; n chunks a sequence."""
    start, tail, last, between = decays(g)
    t = UnitLowerInverse.apply(strictly_lower(k @ k.mT, beta, between))
    for_w, for_u = columns_scaled(t, beta, start, k)
    weights = weighed(q @ k.mT, between)
    return _delta_outputs(row_scaled(q, start), row_scaled(k, tail), weights, for_w @ k, for_u @ v, last, n)


def kda(q, k, v, g, beta, n):
    """A_t = (I - beta_t k_t k_t^T) diag(exp(g_t)), B_t = beta_t k_t v_t^T; n chunks a sequence."""
    k_start, q_start, k_tail, last, rows, columns = channel_decays(q, k, g)
    scores = rows @ columns.mT
    t = UnitLowerInverse.apply(strictly_lower(scores[..., :SUB, :].flatten(-3, -2), beta, None))
    _, for_u = columns_scaled(t, beta, None, k)
    weights = scores[..., SUB:, :].flatten(-3, -2).tril()
    return _delta_outputs(q_start, k_tail, weights, for_u @ k_start, for_u @ v, last, n)


def scalar_add(q, k, v, g, n):
    """A_t = exp(g_t), B_t = k_t v_t^T; n chunks a sequence. q and k may have one head, g one chunk, for all."""
    start, tail, last, between = decays(g)
    last = last.expand(v.shape[:2]).reshape(n, -1).mT  # [B * H, n]
    total = last.cumsum(-1)
    earlier = torch.ones(n, n, dtype=torch.bool, device=g.device).tril(-1)
    carried = ((total - last)[..., :, None] - total[..., None, :]).masked_fill(~earlier, float("-inf")).exp()
    added = k.mT @ row_scaled(v, tail)
    states = carried @ added.to(carried.dtype).view(n, len(carried), -1).transpose(0, 1)
    states = states.transpose(0, 1).reshape(added.shape).to(q.dtype)
    return row_scaled(q @ states, start) + weighed(q @ k.mT, between) @ v
