"""The document of the demonstration and what is asked about it.

1. The document comes before the question, so that two questions share every block of the document.
2. The text is part of the package: the same release always gives the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Question:
    """One question about the document.

    Attributes:
        text: What the model is asked.
        answer: What the document says, in the words of a careful reader.
    """

    text: str
    answer: str


# The glossary that closes the text answers both: a model this small reads the end best.
QUESTIONS = (
    Question(text='What does "dal segno" mean?', answer='"From the sign".'),
    Question(
        text="What is the difference between prefill and decode?",
        answer="In prefill the model reads the prompt; in decode it writes its answer.",
    ),
)

# For any other document.
ANY_QUESTIONS = (
    Question(text="What is this text about?", answer=""),
    Question(text="What does its last paragraph say?", answer=""),
)

# Asked first by every engine process: loads code and memory, shares no block with the document.
WARM_UP = "Name three colours."


def document() -> str:
    """Returns the primer, about 6,660 tokens of SmolLM2."""
    return resources.files(__package__).joinpath("primer.txt").read_text(encoding="utf-8")


def messages(question: str, text: str = "") -> list[dict[str, str]]:
    """Returns the chat messages that ask a question about a document, the document first.

    Args:
        question: The question.
        text: The document; the primer if empty.
    """
    if text:
        return [{"role": "user", "content": f"{text}\n\nAccording to the text above: {question}"}]
    return [{"role": "user", "content": f"{document()}\n\nAccording to the glossary: {question}"}]
