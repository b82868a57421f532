"""Parameters kept in stacks of equal shape, and their optimiser: Muon (arXiv 2502.16982) for matrices, Adam for the
rest. Everything runs on device tensors, so that a step can be captured in a CUDA graph."""
import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MOMENTUM, BETAS, DECAY = 0.95, (0.9, 0.99), 0.1
FEWEST_ROWS = 32  # smaller matrices are left to Adam


def orthogonalised(x):
    """Nearly the orthogonal factor of each matrix of x [N, r, c]."""
    a, b, c = NEWTON_SCHULZ
    turned = x.shape[1] > x.shape[2]
    y = x.mT if turned else x
    y = y / (y.norm(dim=(1, 2), keepdim=True) + 1e-7)
    y = y.bfloat16() if y.is_cuda else y
    for _ in range(5):
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return (y.mT if turned else y).to(x.dtype)


class Parameters:
    """Float32 masters, one tensor [n, *shape] for each shape and kind. `fixed` names take no gradient."""

    def __init__(self, values, vocabulary, device, fixed=()):
        self.fixed = {name: values[name].to(device) for name in fixed}
        groups = {}
        for name, value in values.items():
            if name in self.fixed:
                continue
            matrix = value.dim() == 2 and min(value.shape) >= FEWEST_ROWS and value.shape[0] != vocabulary
            kind = "muon" if matrix else "embedding" if value.shape[0] == vocabulary else "adam"
            groups.setdefault((kind, tuple(value.shape)), []).append(name)
        self.names = groups
        self.masters = {key: torch.stack([values[name] for name in names]).to(device).requires_grad_()
                        for key, names in groups.items()}
        self.slots = {key: self._slots(key, master) for key, master in self.masters.items()}

    @staticmethod
    def _slots(key, master):
        return [torch.zeros_like(master, requires_grad=False) for _ in range(1 if key[0] == "muon" else 2)]

    def by_name(self, dtype):
        """The forward's parameters; two-dimensional ones in `dtype`."""
        out = dict(self.fixed)
        for key, names in self.names.items():
            master = self.masters[key]
            out.update(zip(names, (master.to(dtype) if len(key[1]) == 2 else master).unbind(0)))
        return out

    def leaves(self):
        return list(self.masters.values())

    def tensors(self):
        """All that a step changes."""
        return self.leaves() + [slot for slots in self.slots.values() for slot in slots] + list(self.fixed.values())

    @torch.no_grad()
    def step(self, gradients, rates):
        """`rates` [3]: of muon, embedding and adam; the latter two with Adam's bias correction in them."""
        blocks = {}
        for (key, master), gradient in zip(self.masters.items(), gradients):
            if key[0] != "muon":
                continue
            momentum, = self.slots[key]
            momentum.lerp_(gradient, 1 - MOMENTUM)
            rows, columns = key[1]
            size = columns if rows > columns and rows % columns == 0 else rows  # [q | k | v] are three
            update = torch.lerp(gradient, momentum, MOMENTUM).view(-1, size, columns)
            blocks.setdefault((size, columns), []).append((master, update))
        for (rows, columns), members in blocks.items():
            update = orthogonalised(torch.cat([u for _, u in members])) * max(1, rows / columns) ** 0.5
            for (master, _), part in zip(members, update.split([u.shape[0] for _, u in members])):
                master.sub_((part.view_as(master) + DECAY * master) * rates[0])
        for index, kind in enumerate(("embedding", "adam"), 1):
            keys = [key for key in self.masters if key[0] == kind]
            p = [self.masters[key] for key in keys]
            g = [gradient for key, gradient in zip(self.masters, gradients) if key[0] == kind]
            m, v = ([self.slots[key][i] for key in keys] for i in (0, 1))
            torch._foreach_lerp_(m, g, 1 - BETAS[0])
            torch._foreach_mul_(v, BETAS[1])
            torch._foreach_addcmul_(v, g, g, 1 - BETAS[1])
            scale = torch._foreach_sqrt(v)
            torch._foreach_add_(scale, 1e-10)
            update = torch._foreach_div(m, scale)
            torch._foreach_mul_(update, rates[index])
            torch._foreach_sub_(p, update)

    def state(self):
        """Tensors to save, by name: weights in float32, moments in bfloat16."""
        weights, moments = dict(self.fixed), {}
        for key, names in self.names.items():
            for i, name in enumerate(names):
                weights[name] = self.masters[key][i].detach()
                for j, slot in enumerate(self.slots[key]):
                    moments[f"{name}.{j}"] = slot[i].bfloat16()
        return weights, moments

    @torch.no_grad()
    def load(self, weights, moments):
        """What `state` gave; without `moments` they stay."""
        for name, value in self.fixed.items():
            value.copy_(weights[name])
        for key, names in self.names.items():
            for i, name in enumerate(names):
                self.masters[key][i].copy_(weights[name])
                for j, slot in enumerate(self.slots[key] if moments else []):
                    slot[i].copy_(moments[f"{name}.{j}"])
