#!/usr/bin/env python3
"""Makes the tokenizer of the small trained models, datasets/models/tokenizer, from rows of `hypic tasks`.

    python3 tools/train/make-tokenizer.py --hypic build/release/hypic

Byte-level BPE, merged until every word, with the space before it, and every two digits are one token; what the
tasks never write falls back to bytes. Needs Hugging Face's tokenizers. The same rows give the same file.
"""
import argparse
import json
import subprocess
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

OUT = Path(__file__).resolve().parents[2] / "datasets" / "models" / "tokenizer"
TASKS = ["fact", "two_hop", "headlines", "figures", "distance", "latest"]
END = "<|endoftext|>"
# Words, two digits, marks and white space apart; a space goes with the word after it.
PATTERN = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]|\s"
ROWS = 3000


def texts(hypic):
    for task in TASKS:
        for split in ("train", "test"):
            for segments in (8, 12):
                rows = subprocess.run([hypic, "tasks", "--task", task, "--split", split, "--rows", str(ROWS), "--tokens", "32",
                                       "--segments", str(segments), "--questions", "1000"], check=True, capture_output=True)
                for line in rows.stdout.splitlines():
                    row = json.loads(line)
                    yield from row["documents"]
                    for question in row["questions"]:
                        yield question["text"]
                        yield question["answer"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hypic", default="build/release/hypic")
    hypic = parser.parse_args().hypic
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    words = set()
    for text in texts(hypic):
        words.update(piece for piece, _ in split.pre_tokenize_str(text))
    words = sorted(words)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    # Each word once: pairs that many words share are merged first, which keeps the parts of words few.
    tokenizer.train_from_iterator(words, trainers.BpeTrainer(
        vocab_size=4096, min_frequency=1, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    tokenizer.add_special_tokens([END])
    long = [word for word in words if len(tokenizer.encode(word, add_special_tokens=False).ids) != 1]
    assert not long, f"more than one token: {long[:10]}"

    OUT.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(OUT / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END, "model_max_length": 32768,
              "clean_up_tokenization_spaces": False}
    (OUT / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"{OUT}: {tokenizer.get_vocab_size()} tokens, of which {len(words)} are whole words")


if __name__ == "__main__":
    main()
