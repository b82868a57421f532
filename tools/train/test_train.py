"""The four models against other implementations, and the trainer.

    python3 -m unittest discover tools/train        (HYPIC=build/release/hypic, or transformers missing: those skip)
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch
from safetensors.torch import save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402
import train  # noqa: E402
from optimiser import orthogonalised  # noqa: E402

VOCABULARY = 96
SMALL = dict(models.CONFIGS["tiny-qwen3.5"], hidden_size=64, intermediate_size=64, num_hidden_layers=3,
             layer_types=[models.LINEAR, models.LINEAR, models.FULL], linear_num_key_heads=2, linear_num_value_heads=2,
             num_attention_heads=2, linear_key_head_dim=32, linear_value_head_dim=32)


def perturbed(config):
    """No norm, bias or gate keeps its initial value."""
    generator = torch.Generator().manual_seed(3)
    out = {}
    for name, x in models.initial(config, 1).items():
        if x.dim() == 1 and not name.endswith(("A_log", "dt_bias")):
            x = x + 0.2 * torch.randn(x.shape, generator=generator)
        out[name] = (1.7 * x if x.dim() > 1 else x).bfloat16().float()
    return out


class Models(unittest.TestCase):
    def test_logits_are_those_of_others(self):
        """Of transformers, where it has the architecture, and of `hypic validate`: within 1e-4."""
        hypic = os.environ.get("HYPIC")
        if not hypic and not importlib.util.find_spec("transformers"):
            self.skipTest("neither transformers nor $HYPIC")
        for name in models.CONFIGS:
            config = models.config_of(name, VOCABULARY, 0)
            weights = perturbed(config)
            tokens = torch.randint(0, VOCABULARY, (1, 256), generator=torch.Generator().manual_seed(4))
            with torch.no_grad():
                ours = models.logits(config, weights, models.hidden_states(config, weights, tokens))[0]
            with tempfile.TemporaryDirectory() as folder, self.subTest(name):
                with open(os.path.join(folder, "config.json"), "w") as f:
                    json.dump(config, f)
                save_file({k: x if k.endswith("expert_bias") else x.bfloat16() for k, x in weights.items()},
                          os.path.join(folder, "model.safetensors"))
                if importlib.util.find_spec("transformers") and name != "tiny-ring":
                    import transformers
                    model = transformers.AutoModelForCausalLM.from_pretrained(
                        folder, dtype=torch.float32, attn_implementation="eager").eval()
                    with torch.no_grad():
                        theirs = model(tokens).logits[0]
                    self.assertLess(((ours - theirs).abs().max() / theirs.std()).item(), 1e-4)
                if hypic:
                    golden = {f"logits.{n}": ours[n - 1].clone() for n in (1, 3, 4, 63, 64, 65, 200)}
                    logits = os.path.join(folder, "golden.safetensors")
                    save_file(dict(golden, tokens=tokens[0].int()), logits)
                    done = subprocess.run([hypic, "validate", folder, "--logits", logits, "--out", folder + "/out"],
                                          capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Training(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)  # so small that more only wait for each other
        models.CONFIGS["small"] = SMALL
        self.addCleanup(models.CONFIGS.pop, "small")

    @staticmethod
    def batch(step):
        """Pairs of a key and a value, then keys whose values are asked for, four times."""
        generator = torch.Generator().manual_seed(step)
        ids, classes = torch.zeros(16, 64, dtype=torch.int16), torch.ones(16, 64, dtype=torch.uint8)
        for row in range(16):
            keys = torch.randperm(8, generator=generator)
            values = 8 + torch.randint(0, 8, (8,), generator=generator)
            orders = [torch.arange(8)] + [torch.randperm(8, generator=generator) for _ in range(3)]
            ids[row] = torch.cat([torch.stack([keys[o], values[o]], 1).flatten() for o in orders])
        classes[:, 17::2] = 2
        return ids, classes

    def trainer(self):
        return train.Trainer("small", VOCABULARY, 0, "cpu")

    def run_steps(self, trainer, count):
        for _ in range(count):
            trainer.train_on(*self.batch(trainer.step), 1.0)
        return trainer.running()

    def test_learns_to_recall(self):
        trainer = self.trainer()
        self.run_steps(trainer, 150)
        loss, right = self.run_steps(trainer, 20)
        self.assertGreater(right, 0.5, f"loss {loss}")  # by chance 1/8

    def test_resumes(self):
        whole, first, second = self.trainer(), self.trainer(), self.trainer()
        self.run_steps(whole, 6)
        self.run_steps(first, 3)
        with tempfile.TemporaryDirectory() as folder:
            first.save(folder, {})
            second.load(folder)
        self.run_steps(second, 3)
        for key, master in whole.parameters.masters.items():
            error = (second.parameters.masters[key] - master).norm() / master.norm()
            self.assertLess(error.item(), 1e-3, key)  # moments are kept in bfloat16

    def test_begins_from_an_export(self):
        first, second = self.trainer(), self.trainer()
        self.run_steps(first, 2)
        with tempfile.TemporaryDirectory() as folder:
            first.export(folder, folder, "")
            second.load_exported(folder)
        self.assertEqual((second.step, second.tokens), (first.step, first.tokens))
        for name, value in first.rounded().items():
            self.assertTrue(torch.equal(second.rounded()[name], value), name)

    def test_exact_is_first_answer_and_all(self):
        """A model that repeats its input answers a row of repeated tokens, and no other."""
        trainer = self.trainer()
        embedding = torch.randn(VOCABULARY, 64, generator=torch.Generator().manual_seed(1))
        weights = {k: torch.zeros(x.shape) for k, x in trainer.rounded().items()}
        weights["model.embed_tokens.weight"] = torch.nn.functional.normalize(embedding)
        ids, classes = torch.full((2, 64), 5, dtype=torch.int16), torch.ones(2, 64, dtype=torch.uint8)
        classes[:, 10:13] = classes[:, 20:22] = 2
        ids[1, 11] = 6
        self.assertEqual(trainer.exact(ids, classes, weights), (0.5, 0.75))


class Muon(unittest.TestCase):
    def test_orthogonalised(self):
        x = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(1))
        for y in (orthogonalised(x), orthogonalised(x.mT).mT):
            values = torch.linalg.svdvals(y)
            self.assertTrue(0.6 < values.min() and values.max() < 1.3, values)


if __name__ == "__main__":
    unittest.main()
