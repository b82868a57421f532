#!/usr/bin/env python3
"""Trains a tiny hybrid on synthetic tasks, in slices of limited time that resume from each other.

    python3 tools/train/train.py --model tiny-qwen3.5 --data tools/train/curriculum.json --state STATE --seconds 240
    python3 tools/train/train.py --model tiny-qwen3.5 --data … --state STATE --seconds 240 --final --export FOLDER

A slice goes on where STATE's left off, and writes STATE anew: weights (float32) and moments (bfloat16), each file
below 15 MiB. --final lets the learning rate fall to zero within the slice. --export writes a Hugging Face folder:
config.json, model.safetensors (bfloat16), tokenizer.json, README.md. After each slice the test split is scored.
Several models may train on one GPU at the same time: together they are as fast as each alone.
Needs PyTorch, safetensors and, to make the data, a built `hypic` (--hypic).
"""
import argparse
import datetime
import json
import os
import shutil
import sys
import time

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402
from data import TEST_SEED, Generator, Shards  # noqa: E402
from optimiser import BETAS, Parameters  # noqa: E402

RATES = {"muon": 0.02, "embedding": 0.004, "adam": 0.004}
WARM_UP = 100  # steps
# Weights of a token of a document or question, and of one of the first answer, where one of other answers has 1.
CONTEXT, FIRST = 0.1, 3.0
REPORT = 50  # steps between readings of the running numbers
PIECE = 15 << 20  # bytes of a file of the state


def answer_numbers(classes):
    """1 at the tokens of a row's first answer, 2 at those of its second, …, else 0; classes [B, L]."""
    answer = classes == 2
    begins = answer & (F.pad(classes[:, :-1], (1, 0)) != 2)
    return begins.cumsum(1) * answer


class Trainer:
    def __init__(self, name, vocabulary, end, device, seed=1):
        self.name, self.device = name, device
        self.config = models.config_of(name, vocabulary, end)
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        values = models.initial(self.config, seed)
        fixed = [k for k in values if k.endswith("expert_bias")]
        self.parameters = Parameters(values, vocabulary, device, fixed)
        self.rates = torch.zeros(3, device=device)
        self.sums = torch.zeros(4, device=device)  # of a step: loss, right, answer tokens, 1
        self.step = self.tokens = self.age = 0  # age: steps since the moments were zero
        self.slices = []  # what each did, in words
        self.graphs, self.pool = {}, None

    # One step

    def _train_on(self, ids, classes):
        tokens = ids.long()
        p = self.parameters.by_name(self.dtype)
        loads = []
        hidden = models.hidden_states(self.config, p, tokens, loads)
        # Of the positions, all before answers and some of the others.
        first = answer_numbers(classes)[:, 1:].flatten() == 1
        target, kind = tokens[:, 1:].flatten(), classes[:, 1:].flatten()
        order = kind.float() * 2 + torch.rand(kind.shape, device=self.device)
        chosen = order.topk(kind.numel() // 4, sorted=False).indices
        target, kind, first = target[chosen], kind[chosen], first[chosen]
        logits = models.logits(self.config, p, hidden[:, :-1].flatten(0, 1)[chosen]).float()
        answer = (kind == 2).float()
        weight = answer + (FIRST - 1) * first + CONTEXT * (kind == 1)
        loss = (F.cross_entropy(logits, target, reduction="none") * weight).sum() / weight.sum()
        gradients = torch.autograd.grad(loss, self.parameters.leaves())
        self.parameters.step(gradients, self.rates)
        with torch.no_grad():
            right = ((logits.argmax(-1) == target) * answer).sum()
            self.sums += torch.stack([loss.detach(), right, answer.sum(), torch.ones_like(loss)])
            biases = list(self.parameters.fixed.values())
            for bias, load in zip(biases, loads):  # evens the experts out (arXiv 2408.15664)
                bias += 1e-3 * torch.sign(load.mean() - load)

    def _captured(self, shape):
        ids = torch.zeros(shape, dtype=torch.int16, device=self.device)
        classes = torch.ones(shape, dtype=torch.uint8, device=self.device)
        classes[:, 1::8] = 2
        if self.device != "cuda":
            return ids, classes, lambda: self._train_on(ids, classes)
        changed = self.parameters.tensors() + [self.sums]
        kept = [t.detach().clone() for t in changed]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._train_on(ids, classes)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._train_on(ids, classes)
        self.pool = graph.pool()
        with torch.no_grad():
            for t, value in zip(changed, kept):
                t.copy_(value)
        return ids, classes, graph.replay

    def train_on(self, ids, classes, scale):
        """ids, classes [B, L] on any device; `scale` of the learning rates."""
        key = tuple(ids.shape)
        if key not in self.graphs:
            self.graphs[key] = self._captured(key)
        into_ids, into_classes, run = self.graphs[key]
        into_ids.copy_(ids, non_blocking=True)
        into_classes.copy_(classes, non_blocking=True)
        self.step, self.age = self.step + 1, self.age + 1
        scale *= min(1, self.age / WARM_UP)
        bias = (1 - BETAS[1] ** self.age) ** 0.5 / (1 - BETAS[0] ** self.age)
        self.rates.copy_(torch.tensor([RATES["muon"] * scale, RATES["embedding"] * scale * bias,
                                       RATES["adam"] * scale * bias]))
        if self.device != "cuda":
            torch.manual_seed(self.step)
        run()
        self.tokens += ids.numel()

    def running(self):
        """Mean loss and share of right answer tokens since the last reading."""
        loss, right, answers, steps = self.sums.tolist()
        self.sums.zero_()
        return loss / max(steps, 1), right / max(answers, 1)

    # Scores

    @torch.no_grad()
    def exact(self, ids, classes, weights=None, batch=32):
        """Of each row whether its first answer is exact, and the share of all that are. Greedy decoding gives the
        answer if and only if each of its tokens is the most likely one after those before it."""
        p = weights if weights is not None else self.parameters.by_name(self.dtype)
        first, every = [], []
        for at in range(0, len(ids), batch):
            x, kind = ids[at:at + batch].to(self.device).long(), classes[at:at + batch].to(self.device)
            best = models.logits(self.config, p, models.hidden_states(self.config, p, x)).argmax(-1)
            wrong = F.pad((best[:, :-1] != x[:, 1:]), (1, 0)) & (kind == 2)
            number = answer_numbers(kind)
            missed = torch.zeros(len(x), int(number.max()) + 1, device=self.device)
            missed.scatter_add_(1, number, wrong.float())
            asked = torch.zeros_like(missed).scatter_(1, number, 1.0)[:, 1:]
            good = (missed[:, 1:] == 0) * asked
            first += good[:, 0].tolist()
            every.append((good.sum() / asked.sum()).item())
        return sum(first) / len(first), sum(every) / len(every)

    # State

    def save(self, folder, more):
        os.makedirs(folder, exist_ok=True)
        weights, moments = self.parameters.state()
        for name, tensors in (("weights", weights), ("moments", moments)):
            path = os.path.join(folder, name + ".safetensors")
            save_file({k: t.cpu().contiguous() for k, t in tensors.items()}, path + ".new")
            if os.path.getsize(path + ".new") > PIECE:
                raise SystemExit(f"{path}: more than {PIECE >> 20} MiB; the model is too large to carry")
            os.replace(path + ".new", path)
        known = {k: getattr(self, k) for k in ("step", "tokens", "age", "slices")}
        with open(os.path.join(folder, "state.json"), "w") as f:
            json.dump(dict(model=self.name, **known, **more), f, indent=1)

    def load(self, folder):
        with open(os.path.join(folder, "state.json")) as f:
            state = json.load(f)
        if state["model"] != self.name:
            raise SystemExit(f"{folder}: the state of {state['model']}; give another --state")
        pieces = (load_file(os.path.join(folder, f"{part}.safetensors")) for part in ("weights", "moments"))
        self.parameters.load(*pieces)
        self.step, self.tokens, self.age, self.slices = (state[k] for k in ("step", "tokens", "age", "slices"))
        return state

    def load_exported(self, folder):
        path = os.path.join(folder, "model.safetensors")
        self.parameters.load(load_file(path), None)
        with safe_open(path, "pt") as file:
            known = file.metadata()
        self.step, self.tokens, self.slices = (json.loads(known[k]) for k in ("step", "tokens", "slices"))

    def rounded(self):
        """The weights as a checkpoint stores them."""
        weights, _ = self.parameters.state()
        return {k: t.float() if k.endswith("expert_bias") else t.bfloat16() for k, t in weights.items()}

    def export(self, folder, tokenizer, card):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "model.safetensors")
        known = {k: json.dumps(getattr(self, k)) for k in ("step", "tokens", "slices")}
        weights = {k: t.cpu().contiguous() for k, t in self.rounded().items()}
        save_file(weights, path, metadata={"format": "pt", **known})
        os.chmod(path, 0o644)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(self.config, f, indent=2)
            f.write("\n")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if os.path.exists(os.path.join(tokenizer, name)):
                shutil.copyfile(os.path.join(tokenizer, name), os.path.join(folder, name))
        with open(os.path.join(folder, "README.md"), "w") as f:
            f.write(card)


def read_tokenizer(folder):
    """Vocabulary size and the id of the end of text."""
    with open(os.path.join(folder, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    ids = dict(tokenizer["model"]["vocab"])
    ids.update({t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])})
    return max(ids.values()) + 1, ids["<|endoftext|>"]


def score(trainer, generator, scores):
    """[(what, n, share of first answers exact, share of all)] on the test split, with the weights as exported."""
    weights = {k: t.to(trainer.dtype) if t.dim() == 2 else t.float() for k, t in trainer.rounded().items()}
    out = []
    for one in scores:
        part = dict(task=one["task"], segments=[one["segments"]] * 2, tokens=[one["tokens"]] * 2, weight=1)
        rows = generator.rows([part], "test", TEST_SEED, one.get("rows", 512), one["length"])
        first, every = trainer.exact(*rows, weights)
        out.append((f"{one['task']} {one['segments']} x {one['tokens']}", len(rows[0]), first, every))
        print(f"{out[-1][0]:24} n {out[-1][1]}  first answer {100 * first:5.1f}  all answers {100 * every:5.1f}",
              flush=True)
    return out


def card(trainer, curriculum, curve, scores):
    count = sum(t.numel() for t in trainer.rounded().values())
    kind = trainer.config["model_type"]
    lines = [
        f"# {trainer.name}", "",
        f"A {count / 1e6:.1f} M parameter model of the `{kind}` architecture, for judging reuse of caches: it answers "
        "questions over synthetic documents, and nothing else.", "",
        f"- Made by `tools/train/train.py --model {trainer.name}`, {datetime.date.today().isoformat()}.",
        f"- Data: the train split of `hypic tasks`, {trainer.tokens / 1e6:.0f} M tokens in {trainer.step} steps, from "
        f"short rows to long ones. Slices: {'; '.join(trainer.slices)}.",
        f"- Loss at the end: {curve[-1][2]:.4f}; answer tokens right: {100 * curve[-1][3]:.2f} %."
        if curve else "- Not trained.",
        "", "Exact match of full recompute on the test split, whose names, headlines, places and figures were never in "
        "training:", "", "| task, documents x tokens | rows | first answer | all answers |", "|---|---|---|---|"]
    lines += [f"| {what} | {n} | {100 * first:.1f} | {100 * every:.1f} |" for what, n, first, every in scores]
    return "\n".join(lines) + "\n"


def main():
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", required=True, choices=list(models.CONFIGS))
    parser.add_argument("--data", required=True, help="a curriculum: see curriculum.json")
    parser.add_argument("--state", required=True, help="folder that a slice resumes from and writes")
    parser.add_argument("--init", help="exported folder to begin from where there is no state; its moments are lost")
    parser.add_argument("--hypic", default="build/release/hypic", help="the program that makes the data")
    parser.add_argument("--seed", type=int, default=1, help="of the initial values")
    parser.add_argument("--seconds", type=float, default=240, help="of the slice, start-up included, scores not")
    parser.add_argument("--steps", type=int, help="end after so many instead")
    parser.add_argument("--final", action="store_true", help="let the learning rate fall to zero in this slice")
    parser.add_argument("--decay", type=float, default=0.6, help="the part of a final slice in which it falls")
    parser.add_argument("--export", help="write a Hugging Face folder")
    arguments = parser.parse_args()

    with open(arguments.data) as f:
        curriculum = json.load(f)
    generator = Generator(arguments.hypic, curriculum, os.path.dirname(os.path.abspath(arguments.data)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")
    trainer = Trainer(arguments.model, *read_tokenizer(generator.tokenizer), device, arguments.seed)
    stages, at, curve, scores = curriculum["stages"], dict(stage=0, shard=0, row=0, tokens=0), [], []
    if os.path.exists(os.path.join(arguments.state, "state.json")):
        state = trainer.load(arguments.state)
        at, curve = state["at"], state["curve"]
    elif arguments.init:
        trainer.load_exported(arguments.init)
        at.update(stage=curriculum["repeat"], shard=trainer.step)  # no shard of before
    before = trainer.tokens
    batch_tokens, shard_tokens = curriculum["batch"], curriculum.get("shard", 128 * curriculum["batch"])

    steps, began, shards, stage, pair = 0, None, None, None, None
    reported = (start, 0)
    while True:
        if began is None or arguments.steps is not None:
            progress = steps / arguments.steps if arguments.steps else 0.0
        else:
            progress = (time.monotonic() - began) / max(start + arguments.seconds - began, 1e-9)
        if progress >= 1 or arguments.steps == 0:
            break
        if shards is None:
            stage = stages[at["stage"]]
            shards = Shards(generator, stage, at["shard"], shard_tokens, device == "cuda")
            pair = shards.take()
        size = max(batch_tokens // stage["length"], 1)
        if at["row"] + size > len(pair[0]):
            at["shard"], at["row"] = at["shard"] + 1, 0
            pair = shards.take()
        scale = min(1.0, (1 - progress) / arguments.decay) if arguments.final else 1.0
        batch = (x[at["row"]:at["row"] + size] for x in pair)
        trainer.train_on(*batch, scale)
        steps, done = steps + 1, False
        at["row"] += size
        at["tokens"] += size * stage["length"]
        if began is None:  # compiled and captured
            began = time.monotonic()
            print(f"{trainer.name}: first step after {began - start:.1f} s", flush=True)
        if steps % REPORT == 0:
            loss, right = trainer.running()
            if loss != loss:
                raise SystemExit(f"{trainer.name}: step {trainer.step} has no loss; {arguments.state} is as it was")
            now = time.monotonic()
            speed = (trainer.tokens - reported[1]) / (now - reported[0]) if reported[1] else 0
            reported = (now, trainer.tokens)
            curve.append([trainer.tokens, at["stage"], round(loss, 4), round(right, 4)])
            print(f"{now - start:6.1f} s  step {trainer.step}  {trainer.tokens / 1e6:7.1f} M tokens  "
                  f"stage {at['stage']}  loss {loss:.4f}  answers {100 * right:6.2f} %  {speed / 1e6:.2f} M tokens/s",
                  flush=True)
            done = right >= stage.get("until", 2)
        if done or at["tokens"] >= stage["tokens"]:
            following = at["stage"] + 1 if at["stage"] + 1 < len(stages) else curriculum["repeat"]
            at = dict(stage=following, shard=at["shard"] + 1, row=0, tokens=0)
            shards = None
    trainer.running()
    what = ", the learning rate falling to zero" if arguments.final else ""
    if trainer.age == steps and arguments.init:
        what = " from the rounded weights of the slice before" + what
    trainer.slices.append(f"{(trainer.tokens - before) / 1e6:.0f} M tokens{what}")
    trainer.save(arguments.state, dict(at=at, curve=curve))
    print(f"{trainer.name}: {steps} steps, {trainer.tokens / 1e6:.1f} M tokens in all; state in {arguments.state}",
          flush=True)
    scores = score(trainer, generator, curriculum["scores"])
    if arguments.export:
        trainer.export(arguments.export, generator.tokenizer, card(trainer, curriculum, curve, scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
