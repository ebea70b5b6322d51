"""Questions for a model of which nothing but its folder is known, and how to have it answer without long thinking."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from tasks.plan.settings.questions import Golden

LONG = 1024  # tokens for an answer of a model that always thinks; a sum took such models 300 to 800
# Words of a chat template, the first that it holds decides: what to send with a question, how long an answer can be.
SWITCHES: dict[str, tuple[dict[str, Any], int]] = {
    "enable_thinking": ({"enable_thinking": False}, 64),  # Qwen3, GLM-4.5 and later
    "reasoning_effort": ({"reasoning_effort": "low"}, LONG),  # gpt-oss
    "thinking is defined": ({"thinking": False}, 64),  # DeepSeek-V3.1, Kimi-K2.5
    "<think>": ({}, LONG),
}


def switch(words: Set[str]) -> dict[str, Any]:
    """chat_template_kwargs that keep thinking short, by the words of the chat template."""
    return next((kwargs for word, (kwargs, _) in SWITCHES.items() if word in words), {})


def questions(words: Set[str]) -> list[Golden]:
    """Three questions that every chat model answers right, each with room for what it thinks first."""
    tokens = next((tokens for word, (_, tokens) in SWITCHES.items() if word in words), 64)
    primes = r"\b2\s*,\s*3\s*,\s*5\s*,\s*7\s*,\s*(and\s+)?11\b"
    return [
        Golden(
            name="arithmetic", prompt="What is 17*23? Answer with the number only.", expect="391", max_tokens=tokens
        ),
        Golden(
            name="capital", prompt="What is the capital of France? Answer with one word.", expect="Paris",
            max_tokens=tokens,
        ),
        Golden(
            name="primes", prompt="List the first five prime numbers, separated by commas.", expect=primes,
            match="regex", max_tokens=tokens,
        ),
    ]  # fmt: skip
