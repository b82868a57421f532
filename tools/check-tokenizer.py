#!/usr/bin/env python3
"""Golden ids for our tokenizer from an independent implementation, Hugging Face's.

    pip install tokenizers
    python3 tools/check-tokenizer.py            compares datasets/tokenizer/golden.jsonl with the library
    python3 tools/check-tokenizer.py --write    writes it anew, after training

models/tokenizer_test.cc holds our code to the same file. Rows: {text, ids, decoded} for odd strings;
{file, n, hash} for the corpus, hash = the first 16 bytes of SHA-256 over the ids as int32, little-endian.
"""
import hashlib
import json
import random
import struct
import sys
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "datasets" / "tokenizer" / "golden.jsonl"

ODD = ["", " ", "\n", "a", " a", "  a", "a  ", "a \n b", "\r\n\r\n x", "\t\tx", "it's IT'S we'LL I'd 'tis ''s",
       "can't\u017f '\u017f", "1234 12.5 ½ ² Ⅷ ٣", "foo_bar--baz...", "https://example.org/a?b=c&d=%20#e", "<|endoftext|>",
       "<|im_start|>user\nHi<|im_end|>\n", "<|im_end|", "<|im_start|><|im_start|>", "<<PIC_SEP>>", "x<<PIC_SEP>>y",
       "café cafe\u0301 CAFE\u0301", "\u0301start", "\u212b \u2126 \u1e9b\u0323", "a\u0323\u0307 a\u0307\u0323", "가 \u1100\u1161 한국어",
       "हिन्दी मात्रा", "العربية", "日本語の文。", "中文,逗号", "👍🏽 👩‍👩‍👧 🇫🇷", "\u00a0nbsp\u3000wide\u2028line", "\u0085next\u180emvs", "  \u180e\n x",
       "\u200bzero\u200dwidth\ufeff", "\u0000\u0001\u007f", "tab\tnew\nret\r", "    indented\n        more\n", "!!!???", " !", "\n!\n\n",
       "x" * 300, " " * 300, "\n" * 300, "ab" * 200, "\ufffd", "\U0010ffff\ue000", "Passage 1:\nTitle\n"]


def random_texts():
    pieces = [*"abcdeXYZ 019.,'\n\t", " the", "ing", "'s", "é", "e\u0301", "ß", "Ω", "я", "中", "한", "🙂", "\u00a0", "<|im_end|>", "  "]
    dice = random.Random(7).random
    return ["".join(pieces[int(dice() * len(pieces))] for _ in range(int(dice() * 40))) for _ in range(120)]


def rows():
    tokenizer = Tokenizer.from_file(str(ROOT / "datasets" / "tokenizer" / "tokenizer.json"))

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    for text in ODD + random_texts():
        ids = encode(text)
        yield {"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)}
    for path in sorted((ROOT / "datasets" / "text").iterdir()):
        ids = encode(path.read_text(encoding="utf-8"))
        digest = hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()[:32]
        yield {"file": str(path.relative_to(ROOT)), "n": len(ids), "hash": digest}


def main():
    text = "".join(json.dumps(row) + "\n" for row in rows())
    if sys.argv[1:] == ["--write"]:
        GOLDEN.write_text(text, encoding="utf-8")
    elif text != GOLDEN.read_text(encoding="utf-8"):
        sys.exit(f"{GOLDEN} differs from what Hugging Face's library gives; train again, or run with --write")
    print(f"{GOLDEN}: {text.count(chr(10))} rows")


if __name__ == "__main__":
    main()
