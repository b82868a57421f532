"""Training data from `hypic tasks --mix`: shards made in the background while others are trained on."""
import json
import os
import subprocess
import tempfile
import threading

import numpy as np
import torch

TEST_SEED = 1 << 20


class Generator:
    """Runs `hypic tasks`; `curriculum` is the parsed file, its paths relative to `folder`."""

    def __init__(self, hypic, curriculum, folder):
        self.hypic = hypic
        self.tokenizer = os.path.join(folder, curriculum["tokenizer"])
        self.scratch = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.count = 0
        self.lock = threading.Lock()

    def rows(self, mix, split, seed, sequences, length):
        """(ids int16 [sequences, length], classes uint8: 0 padding, 1 context, 2 answer)."""
        with self.lock:
            self.count += 1
            path = os.path.join(self.scratch.name, str(self.count))
        with open(path + ".json", "w") as f:
            json.dump(mix, f)
        command = [self.hypic, "tasks", "--mix", path + ".json", "--split", split, "--seed", str(seed), "--sequences",
                   str(sequences), "--length", str(length), "--tokenizer", self.tokenizer, "--out", path]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
        raw = np.fromfile(path, dtype=np.uint8)
        os.remove(path)
        cells = sequences * length
        ids = raw[:2 * cells].view(np.int16).reshape(sequences, length)
        return torch.from_numpy(ids), torch.from_numpy(raw[2 * cells:].reshape(sequences, length))


class Shards:
    """Shards `first`, `first` + 1, … of a stage, each of its own seed, one made while another is trained on."""

    def __init__(self, generator, stage, first, tokens, pin):
        self.make = lambda shard: self._pinned(generator.rows(
            stage["mix"], "train", shard + 1, max(tokens // stage["length"], 1), stage["length"]), pin)
        self.next, self.waiting = first, {}
        self._start()

    @staticmethod
    def _pinned(pair, pin):
        return tuple(x.pin_memory() for x in pair) if pin else pair

    def _start(self):
        self.waiting[self.next] = result = {}
        result["thread"] = threading.Thread(target=self._run, args=(self.next, result), daemon=True)
        result["thread"].start()

    def _run(self, shard, result):
        try:
            result["pair"] = self.make(shard)
        except BaseException as error:  # raised where it is asked for
            result["error"] = error

    def take(self):
        result = self.waiting.pop(self.next)
        result["thread"].join()
        if "error" in result:
            raise result["error"]
        self.next += 1
        self._start()
        return result["pair"]
