"""python -m unittest discover -s tests, with HYPIC, the program, in the environment for the tests that need exports."""
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import hypic_check
from hypic_check.compare import compare
from hypic_check.safetensors import Array

try:
    import torch
except ImportError:
    torch = None
HYPIC = os.environ.get("HYPIC")


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_what_is_saved_is_loaded(self):
        tensors = {"a": Array(np.arange(6, dtype=np.float32).reshape(2, 3)), "none": Array(np.zeros((0, 4))),
                   "b": Array(np.array([0x3f80, 0xc000], np.uint16), "bfloat16")}
        hypic_check.save(self.path("x"), tensors)
        again = hypic_check.load(self.path("x"))
        self.assertEqual({name: (x.dtype, x.shape) for name, x in again.items()},
                         {name: (x.dtype, x.shape) for name, x in tensors.items()})
        self.assertEqual(again["b"].numbers().tolist(), [1.0, -2.0])
        self.assertEqual(again["a"].numbers().tolist(), [[0, 1, 2], [3, 4, 5]])

    def test_other_files_are_refused(self):
        header = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,8]}}'
        for data in (b"", b"1234", b"\xff" * 16, b"\x02" + bytes(7) + b"[]", len(header).to_bytes(8, "little") + header):
            with open(self.path("bad"), "wb") as file:
                file.write(data)
            with self.assertRaises((ValueError, AttributeError)):
                hypic_check.load(self.path("bad"))


class Comparing(unittest.TestCase):
    want = np.linspace(-1, 1, 24).reshape(4, 2, 3)

    def judge(self, got, want=None):
        return compare(got, self.want if want is None else want, 1, [1e-5, 1e-5], [0, 0])

    def test_equal_holds(self):
        self.assertEqual(self.judge(self.want).wrong, "")
        self.assertEqual(self.judge(self.want).rms, 0)

    def test_the_element_is_named(self):
        got = self.want.copy()
        got[2, 1, 0] += 1
        self.assertTrue(self.judge(got).wrong.startswith("[2, 1, 0] is "), self.judge(got).wrong)

    def test_all_digits_where_few_do_not_tell_apart(self):
        self.assertIn("is -1.00002, expected -1.0", self.judge(self.want * (1 + 2e-5)).wrong)

    def test_nan_and_infinity_keep_their_places(self):
        got = self.want.copy()
        got[3, 0, 2] = np.nan
        self.assertIn("[3, 0, 2] is nan", self.judge(got).wrong)
        self.assertEqual(self.judge(got, got).wrong, "")
        want = self.want.copy()
        want[0, 0, 0] = np.inf
        self.assertIn("expected inf", self.judge(self.want, want).wrong)

    def test_a_group_is_judged_by_its_rms(self):
        self.assertNotEqual(self.judge(self.want * (1 + 2e-5)).wrong, "")
        self.assertEqual(self.judge(self.want * (1 + 5e-6)).wrong, "")


@unittest.skipIf(torch is None, "no torch")
class Tensors(unittest.TestCase):
    def test_torch(self):
        x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            for tensor in (x.to(dtype), x.to(dtype).T, x.to(dtype)[:, 1:3], x.to(dtype)[:0]):
                self.assertEqual(hypic_check.to_numpy(tensor).numbers().tolist(), tensor.double().tolist())
        self.assertEqual(hypic_check.to_numpy(x.bfloat16()).dtype, "bfloat16")

    def test_what_is_none_is_refused(self):
        with self.assertRaisesRegex(TypeError, "no tensor"):
            hypic_check.to_numpy([1.0])


def gated_delta_rule(q, k, v, g, beta, S0, cu_seqlens, dtype=np.float64):
    q, k, v, g, beta = (x.astype(dtype) for x in (q, k, v, g, beta))
    q, k = (np.repeat(x, v.shape[1] // x.shape[1], 1) for x in (q, k))
    S, o = S0.astype(dtype), np.empty_like(v)
    for n in range(len(S)):
        for t in range(cu_seqlens[n], cu_seqlens[n + 1]):
            S[n] *= np.exp(g[t])[:, None, None]
            error = v[t] - np.einsum("hij,hi->hj", S[n], k[t])
            S[n] += np.einsum("hi,hj->hij", beta[t][:, None] * k[t], error)
            o[t] = np.einsum("hij,hi->hj", S[n], q[t]) * k.shape[-1] ** -0.5
    return o, S


@unittest.skipIf(HYPIC is None, "no HYPIC in the environment")
class Exported(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.goldens = os.path.join(cls.folder.name, "goldens")
        subprocess.run([HYPIC, "golden", "export", cls.goldens, "--family", "gated_delta_net", "--family", "gla"],
                       check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, function, **options):
        return hypic_check.check(self.goldens, "gated_delta_net", function, **options)

    def test_right_ones_pass_and_the_program_agrees(self):
        outputs = os.path.join(self.folder.name, "outputs")
        report = self.check(gated_delta_rule, outputs=outputs)
        self.assertTrue(report.passed, report)
        self.assertEqual(len(report.lines), 34)
        command = [HYPIC, "golden", "check", self.goldens, "--outputs", outputs, "--out", outputs + "/report", "--quiet"]
        self.assertEqual(subprocess.run(command, stdout=subprocess.DEVNULL).returncode, 0)  # gla: SKIP

    def test_float32_is_held_to_its_own_bound(self):
        report = self.check(lambda **x: gated_delta_rule(**x, dtype=np.float32), workloads=["random", "lengths"])
        self.assertTrue(report.passed, report)
        self.assertEqual(report.lines[0].comparison.bound, 1e-5)

    def test_broken_ones_fail_and_the_program_agrees(self):
        def late_gate(**x):
            o, S = gated_delta_rule(**x)
            return o, S * np.exp(-x["g"][-1])[:, None, None]

        def transposed(**x):
            o, S = gated_delta_rule(**x)
            return o, S.swapaxes(2, 3)

        def forgets_lengths(**x):
            bounds = np.array(x["cu_seqlens"])
            bounds[1:-1] = 0
            return gated_delta_rule(**dict(x, cu_seqlens=bounds))

        def one_element(**x):
            o, S = gated_delta_rule(**x)
            o.flat[-1] += 1
            return o, S

        for broken, workload in ((late_gate, "random"), (transposed, "random"), (forgets_lengths, "lengths"),
                                 (one_element, "random")):
            outputs = os.path.join(self.folder.name, broken.__name__)
            report = self.check(broken, workloads=[workload], outputs=outputs)
            self.assertFalse(report.passed, broken.__name__)
            self.assertIn("FAIL", str(report))
            command = [HYPIC, "golden", "check", self.goldens, "--outputs", outputs, "--out", outputs + "/report",
                       "--quiet"]
            self.assertEqual(subprocess.run(command, stdout=subprocess.DEVNULL).returncode, 1)

    def test_what_is_raised_is_a_verdict(self):
        report = self.check(lambda **x: 1 / 0, workloads=["random"])
        self.assertEqual({line.verdict for line in report.lines}, {"ERROR"})
        self.assertIn("ZeroDivisionError", str(report))
        report = self.check(lambda **x: (x["v"],), workloads=["random"])
        self.assertIn("it must return ['o', 'S'], returned tuple of 1", str(report))
        report = self.check(lambda **x: None, workloads=["random"])
        self.assertIn("it must return ['o', 'S'], returned NoneType", str(report))
        report = self.check(lambda **x: (x["v"], x["cu_seqlens"]), workloads=["random"])
        self.assertIn("S must be float64, float32, float16, bfloat16, is int", str(report))

    def test_a_mistake_of_the_caller_is_no_verdict(self):
        with self.assertRaisesRegex(ValueError, "like: must be"):
            self.check(gated_delta_rule, like="cupy")
        with self.assertRaisesRegex(ValueError, "compute: must be"):
            self.check(gated_delta_rule, compute="int8")
        if torch is None:
            with self.assertRaises(ModuleNotFoundError):
                self.check(gated_delta_rule, like="torch")

    @unittest.skipIf(torch is None, "no torch")
    def test_references_are_right(self):
        for definition in hypic_check.definitions(self.goldens):
            names = {}
            exec(definition.reference, names)
            report = hypic_check.check(self.goldens, definition.name, names["run"], like="torch",
                                       workloads=["random", "empty", "strong_decay"])
            self.assertTrue(report.passed, report)
            self.assertEqual(report.lines[0].comparison.bound, 1e-12)


if __name__ == "__main__":
    unittest.main()
