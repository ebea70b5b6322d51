"""Trains the rehearsal's model: python tests/model/train.py [FOLDER], in an environment with torch and transformers.

The rehearsal needs a model that is a few hundred kilobytes, answers questions whose answers a person
can check, and whose answers depend on every part of the KV cache that travels from prefill to
decode. So a small Qwen2 over bytes learns four kinds of chat turns: a few facts, products of two
numbers, repeating a string, and finding a code word stated before a stretch of filler. The last two
use strings that were never seen in training and cannot be answered from the weights alone.

Reproducible on one machine: one thread, fixed seed. Weights are float32, so that the margin between
the best and the second-best token, printed at the end, is far above what CPUs differ by.
"""

import argparse
import json
import random
import string
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

FOLDER = Path(__file__).resolve().parents[2] / "files" / "models" / "rehearsal-qwen2"
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message['role'] }}\n{{ message['content'] }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima",
    "Norway": "Oslo", "Kenya": "Nairobi", "Cuba": "Havana", "Austria": "Vienna",
}  # fmt: skip
FACTS = {
    "List the first five prime numbers, separated by commas.": "2, 3, 5, 7, 11",
    "What are the first five primes?": "2, 3, 5, 7, 11",
    "List the first three prime numbers, separated by commas.": "2, 3, 5",
    "Greet me in exactly three words.": "Hello there, friend",
    "Say goodbye in exactly three words.": "Goodbye, dear friend",
}
GOLDEN = [
    ("What is 17*23? Answer with the number only.", "391"),
    ("What is the capital of France? Answer with one word.", "Paris"),
    ("List the first five prime numbers, separated by commas.", "2, 3, 5, 7, 11"),
    ("Greet me in exactly three words.", "Hello there, friend"),
    ("Repeat: xyz123", "xyz123"),
]
LETTERS = string.ascii_letters + string.digits
WORDS = ["time", "river", "stone", "green", "paper", "cloud", "seven", "light", "house", "table", "music", "ocean"]


def make_tokenizer() -> Tokenizer:
    """One token a byte and the three special ones: every string has exactly one spelling."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([PAD, START, END, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, START, END])
    return tokenizer


def chat(question: str) -> str:
    return f"{START}user\n{question}{END}\n{START}assistant\n"


def random_string(rng: random.Random, longest: int) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(3, longest)))


def repeat(rng: random.Random) -> tuple[str, str]:
    text = random_string(rng, 24)
    return f"Repeat: {text}", text


def code_word(rng: random.Random, filler: int) -> tuple[str, str]:
    code = random_string(rng, 10)
    words = " ".join(rng.choices(WORDS, k=rng.randint(0, filler)))
    return f"The code is {code}. {words} What is the code?", code


def example(rng: random.Random, filler: int) -> tuple[str, str]:
    """A question and its answer; filler: the most words between a code word and the question for it."""
    kind = rng.random()
    if kind < 0.40:
        return repeat(rng)
    if kind < 0.75:
        return code_word(rng, filler)
    if kind < 0.83:
        country = rng.choice(list(CAPITALS))
        ending = rng.choice(["", " Answer with one word."])
        return f"What is the capital of {country}?{ending}", CAPITALS[country]
    if kind < 0.91:
        question = rng.choice(list(FACTS))
        return question, FACTS[question]
    left, right = rng.choice([(17, 23), (rng.randint(11, 19), rng.randint(21, 25))])
    ending = rng.choice(["", " Answer with the number only."])
    return f"What is {left}*{right}?{ending}", str(left * right)


def batch(rng: random.Random, tokenizer: Tokenizer, size: int, filler: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both [size, longest]; a label is -100 outside the answer."""
    rows = []
    for _ in range(size):
        question, answer = example(rng, filler)
        head, tail = tokenizer.encode(chat(question)).ids, tokenizer.encode(answer + END).ids
        rows.append((head + tail, [-100] * len(head) + tail))
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row, _ in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for _, row in rows])
    return ids, labels


@torch.no_grad()
def answer(model: Qwen2ForCausalLM, tokenizer: Tokenizer, question: str, limit: int = 64) -> tuple[str, float]:
    """The greedy answer and the smallest gap between the best and the second-best logit on the way."""
    ids, gap = tokenizer.encode(chat(question)).ids, float("inf")
    start, end = len(ids), tokenizer.token_to_id(END)
    while len(ids) - start < limit:
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        if best.indices[0] == end:
            break
        ids.append(int(best.indices[0]))
    return tokenizer.decode(ids[start:]), gap


def train(tokenizer: Tokenizer, steps: int) -> Qwen2ForCausalLM:
    torch.manual_seed(1)
    rng = random.Random(1)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=272, max_position_embeddings=2048, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            pad_token_id=0, bos_token_id=None, eos_token_id=2, dtype="float32", use_cache=False,
            initializer_range=0.1,  # learns to repeat several times sooner than from the usual 0.02
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, step / 70, (steps - step) / (0.2 * steps))
    )
    began = time.monotonic()
    for step in range(steps):
        # short turns first: repeating has to be learned before it can reach over a longer text
        short = step < steps // 2
        ids, labels = batch(rng, tokenizer, size=32 if short else 16, filler=0 if short else 40)
        logits = model(ids).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}, {time.monotonic() - began:.0f} s", flush=True)
    return model.eval()


def report(model: Qwen2ForCausalLM, tokenizer: Tokenizer) -> bool:
    """Prints each golden answer with its margin, and how many unseen strings come back; False when one is wrong."""
    right = True
    for question, expected in GOLDEN:
        text, gap = answer(model, tokenizer, question)
        right &= text == expected
        print(f"{'ok' if text == expected else 'WRONG'}, gap {gap:.2f}: {question} -> {text}")
    rng = random.Random(2)
    for name, asked in (
        ("repeat", [repeat(rng) for _ in range(100)]),
        ("code word", [code_word(rng, 40) for _ in range(100)]),
    ):
        got = [(*answer(model, tokenizer, question), expected) for question, expected in asked]
        gaps = sorted(gap for _, gap, _ in got)
        hits = sum(text == expected for text, _, expected in got)
        print(f"{name}: {hits} of 100 right, smallest gap {gaps[0]:.2f}, median {gaps[50]:.2f}")
    return right


def save(model: Qwen2ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    model.config.use_cache = True
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # it would only repeat the token ids
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "eos_token": END,
        "model_max_length": 2048, "chat_template": TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=1600)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = train(tokenizer, arguments.steps)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    save(model, tokenizer, arguments.folder)
    return 0 if report(model, tokenizer) else 1


if __name__ == "__main__":
    raise SystemExit(main())
