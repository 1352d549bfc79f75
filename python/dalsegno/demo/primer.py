"""The text of the demo and the questions about it.

The text comes before the question, so that two questions share every block of the text.
"""

from __future__ import annotations

from importlib import resources

# The glossary that closes the text answers both: a model this small reads the end best.
QUESTIONS = (
    'What does "dal segno" mean?',
    "What is the difference between prefill and decode?",
)
# About any other text.
ANY_QUESTIONS = ("What is this text about?", "What does its last paragraph say?")


def document() -> str:
    """Returns the primer, about 6,660 tokens of SmolLM2."""
    return resources.files(__package__).joinpath("primer.txt").read_text(encoding="utf-8")


def prompt(question: str, text: str = "") -> str:
    """Returns a prompt that asks a question about a text, or about the primer."""
    source = "text above" if text else "glossary"
    return f"{text or document()}\n\nAccording to the {source}: {question}"
