"""A folder of hypic golden export: definitions and workloads in FlashInfer-Bench's layout."""
import json
import os
import re
from dataclasses import dataclass

from .safetensors import load

OP = "linear_attention"
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


def _plain(text):
    if not isinstance(text, str) or not PLAIN.fullmatch(text):
        raise ValueError(f"{text!r} is no plain file name")
    return text


@dataclass
class Workload:
    folder: str
    definition: str
    uuid: str
    axes: dict

    def _file(self, kind):
        return os.path.join(self.folder, kind, self.definition, self.uuid + ".safetensors")

    def inputs(self):
        return load(self._file(os.path.join("blob", "workloads")))

    def expected(self):
        return load(self._file(os.path.join("blob", "expected")))


@dataclass
class Definition:
    folder: str
    name: str
    family: str
    inputs: dict     # name → {"shape": [axis], "dtype": text}
    outputs: dict
    reference: str   # a slow reference in Python, on torch tensors

    def workloads(self):
        path = os.path.join(self.folder, "workloads", OP, self.name + ".jsonl")
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    workload = json.loads(line)["workload"]
                    yield Workload(self.folder, self.name, _plain(workload["uuid"]), workload["axes"])


def definitions(folder, name=None):
    """Those of a folder, in order of names; `name`: of this family, or this one alone. ValueError: there is none."""
    lists = os.path.join(folder, "definitions", OP)
    if not os.path.isdir(lists):
        raise ValueError(f"{lists}: no such folder; hypic golden export makes one")
    found = []
    for file_name in sorted(os.listdir(lists)):
        if not file_name.endswith(".json"):
            continue
        with open(os.path.join(lists, file_name), encoding="utf-8") as file:
            text = json.load(file)
        family = next((tag[7:] for tag in text.get("tags", []) if tag.startswith("family:")), "")
        if name in (None, family, text["name"]):
            found.append(Definition(folder, _plain(text["name"]), family, text["inputs"], text["outputs"],
                                    text["reference"]))
    if not found:
        raise ValueError(f"{folder}: has no definition or family {name!r}")
    return found
