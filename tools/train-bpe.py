#!/usr/bin/env python3
"""Trains our small byte-level BPE on datasets/text/*.txt and writes datasets/tokenizer/tokenizer.json.

    python3 tools/train-bpe.py

Layout and pre-tokenizer are Qwen3's, so that one loader reads both. The standard library only; the same
corpus gives the same file. tools/check-tokenizer.py compares the result with Hugging Face's library.
"""
import collections
import heapq
import json
import re
import unicodedata
from pathlib import Path

DATASETS = Path(__file__).resolve().parent.parent / "datasets"
SIZE = 2048
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def words(text):
    """The pieces of PATTERN. re has no \\p, so the letters and digits of this very text are spelled out."""
    pattern = PATTERN
    for name, category in ((r"\p{L}", "L"), (r"\p{N}", "N")):
        members = "".join(re.escape(c) for c in sorted(set(text)) if unicodedata.category(c)[0] == category)
        # Inside [] they go in as they are, outside they need brackets of their own.
        pattern = re.sub(r"\[.*?\]|" + re.escape(name),
                         lambda m: f"[{members}]" if m[0] == name else m[0].replace(name, members), pattern)
    return re.findall(pattern, text)


def byte_alphabet():
    """GPT-2's: byte → character, in the order of the ids."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def train(counts, merges_wanted):
    """The merges, most frequent pair first; ties go to the smaller pair. counts: word in symbols → count."""
    words_ = [list(word) for word in counts]
    weights = list(counts.values())
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, word in enumerate(words_):
        for pair in zip(word, word[1:]):
            pairs[pair] += weights[i]
            where[pair].add(i)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(heap)
    merges = []
    while heap and len(merges) < merges_wanted:
        count, best = heapq.heappop(heap)
        if -count != pairs[best]:
            continue  # a newer entry of this pair is in the heap
        merges.append(best)
        changed = set()
        for i in where[best]:
            word, out, at = words_[i], [], 0
            while at < len(word):
                step = 2 if tuple(word[at:at + 2]) == best else 1
                out.append("".join(word[at:at + step]))
                at += step
            if len(out) == len(word):
                continue
            for pair in zip(word, word[1:]):
                pairs[pair] -= weights[i]
                changed.add(pair)
            for pair in zip(out, out[1:]):
                pairs[pair] += weights[i]
                where[pair].add(i)
                changed.add(pair)
            words_[i] = out
        for pair in changed:
            if pairs[pair] > 0:
                heapq.heappush(heap, (-pairs[pair], pair))
    return merges


def main():
    alphabet = byte_alphabet()
    counts = collections.Counter()
    for path in sorted((DATASETS / "text").glob("*.txt")):
        for word in words(unicodedata.normalize("NFC", path.read_text(encoding="utf-8"))):
            counts["".join(alphabet[byte] for byte in word.encode("utf-8"))] += 1
    merges = train(counts, SIZE - 256 - len(ADDED))
    tokens = [*alphabet.values(), *("".join(pair) for pair in merges)]
    assert len(set(tokens)) == len(tokens), "two merges make the same token"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(tokens) + i, "content": content, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True} for i, content in enumerate(ADDED)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [" ".join(pair) for pair in merges]},
    }
    out = DATASETS / "tokenizer" / "tokenizer.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(f"{out}: {len(tokens) + len(ADDED)} tokens from {sum(counts.values()):,} words, {len(counts):,} different")


if __name__ == "__main__":
    main()
