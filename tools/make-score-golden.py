#!/usr/bin/env python3
"""Writes datasets/score_golden.jsonl: scores that LongBench's description of its metrics gives.

    pip install rouge==1.0.1
    python3 tools/make-score-golden.py

qa_f1 is written here from that description; ROUGE-L is the package that LongBench uses, called at
the depth that its eval.py calls it at, since rouge recurses and a failure scores 0. Made with Python
3.11. Rows: {metric, prediction, answers, score}; the texts are our own.
"""
import collections
import json
import random
import re
import string
from pathlib import Path

from rouge import Rouge

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "datasets" / "score_golden.jsonl"


def words_of(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def qa_f1(prediction, answer):
    a, b = words_of(prediction), words_of(answer)
    same = sum((collections.Counter(a) & collections.Counter(b)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(a), same / len(b)
    return (2 * precision * recall) / (precision + recall)


def rouge_l(prediction, answer):
    rouge = Rouge()
    try:
        scores = rouge.get_scores([prediction], [answer], avg=True)
    except Exception:  # as LongBench has it: no sentence, or too deep a recursion
        return 0.0
    return scores["rouge-l"]["f"]


def best(metric, prediction, answers):
    score = 0.0
    for answer in answers:
        score = max(score, metric(prediction, answer))
    return score


def numbered(letter, count):
    return " ".join(f"{letter}{i}" for i in range(count))


def random_pieces(dice, pieces, most):
    return [pieces[int(dice() * len(pieces))] for _ in range(int(dice() * most))]


def changed(dice, pieces, text):
    """`text` with some of its pieces dropped, doubled, moved to the front or joined by others."""
    out = []
    for piece in text:
        act = int(dice() * 24)
        out = [piece] + out if act == 0 else out + [[], [piece] * 2, [pieces[int(dice() * len(pieces))], piece], [piece]][min(act, 4) - 1]
    return out


def pairs():
    dice = random.Random(11).random
    odd = ["the", "a", "an", "The", "A.", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\u180e", "\u200b", "_", "-",
           "\u2013", "\u201c", "\u201d", "'", "$", "\u20ac", "10,000", "\u0663", "\u00bd", "\u2167", "\u4e2d", "\u304b\u3099", "\u00df", "\u1e9e", "\u0130",
           "\u03a3", "\u039f\u03a3", "\u03a3\u0391", "\u01c5", "e\u0301", "a\u0301", "\u0301", "\U0001d7d8", "\U00010400", "\U0001f642",
           "stone", "Stone", "river", "x"]
    for _ in range(150):
        text = random_pieces(dice, odd, 30)
        yield qa_f1, "".join(text), ["".join(changed(dice, odd, text)) for _ in range(1 + int(dice() * 2))]
    for prediction, answers in [("", ["x"]), ("x", [""]), ("the", ["a"]), ("an apple a day", ["apple day"]), ("U.S.A.", ["USA"]),
                                ("\u201cthe\u201d", ["\u201c \u201d"]), ("the_end", ["theend"]), ("x", []), ("yes, no", ["no", "yes no"])]:
        yield qa_f1, prediction, answers
        yield rouge_l, prediction, answers
    plain = ["a ", "b ", "c ", "d ", "B ", "the ", ". ", ".", " ", "..", "\n", "\u00a0", "\u2003", "e\u0301 ", "3.14 "]
    for _ in range(150):
        text = random_pieces(dice, plain, 40)
        yield rouge_l, "".join(text), ["".join(changed(dice, plain, text)) for _ in range(1 + int(dice() * 2))]
    lines = (ROOT / "datasets" / "text" / "essays.txt").read_text(encoding="utf-8").split("\n\n")
    texts = [line for line in lines if len(line) > 200][:12]
    for first, second in zip(texts, texts[1:]):
        yield rouge_l, first, [second, first[: len(first) // 2]]
    for count in (600, 990, 991, 1100):  # what recursion bears: 991 calls
        yield rouge_l, numbered("w", count), ["w0"]
        yield rouge_l, "w0", [numbered("w", count)]
        yield rouge_l, numbered("w", count), [numbered("w", count)]
    yield rouge_l, numbered("w", 490), ["w0 " + numbered("v", 490)]
    yield rouge_l, numbered("w", 1500), [numbered("w", 980)]
    yield rouge_l, numbered("w", 980), [numbered("w", 1500)]
    yield rouge_l, numbered("w", 1500) + ". v", ["v. " + numbered("w", 700)]


if __name__ == "__main__":
    with OUT.open("w", encoding="utf-8") as file:
        rows = 0
        for metric, prediction, answers in pairs():
            score = best(metric, prediction, answers)
            row = {"metric": metric.__name__, "prediction": prediction, "answers": answers, "score": score}
            file.write(json.dumps(row) + "\n")
            rows += 1
    print(f"{OUT}: {rows} rows")
