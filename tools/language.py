"""Checks the language of the repository: words that are not used here, and long sentences.

    python3 tools/language.py              # everything, as the test does
    python3 tools/language.py crates/log   # some files or folders; lists every place

Words count in every text file, in names too (`tells` in a test's name is a word), but not in code
spans. Sentences count in the prose of guides: no tables, no code blocks; a code span is one word,
and each item of a list starts a sentence.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# What is written instead: "return, report, log, count"; "the caller"; "again, rebuild"; ...
WORDS = (
    "told", "tell", "tells", "telling", "whoever", "anew", "for ever", "errand", "errands",
    "in vain", "now and then", "begin anew", "mend", "mends", "mended", "mending", "dear",
    "have done", "have begun", "stand back", "stands back", "so it is where",
)  # fmt: skip

# (file or pattern, word, why it stays), at most twelve.
EXCEPTIONS: tuple[tuple[str, str, str], ...] = (
    ("tools/language.py", "*", "holds the list"),
    ("*/test_language.py", "*", "holds samples of bad text"),
    ("*/primer.txt", "*", "a text that somebody else wrote, which the demo asks about"),
)
MOST_EXCEPTIONS = 12

# Texts that are not ours, or not prose.
SKIPPED = re.compile(
    r"(^|/)(LICENSE|.*\.lock|.*\.svg|.*requirements.*\.txt|.*\.(bin|png|gz))$|golden/"
)

# Prose whose sentences are measured.
PROSE = re.compile(
    r"^(README|ARCHITECTURE|CHANGELOG|CONTRIBUTING|SECURITY)\.md$|^docs/(?!decisions/).*\.md$"
)
P90_WORDS = 26
LONG_WORDS = 45
MOST_LONG = 3


class Place(NamedTuple):
    """Where something was found."""

    path: str
    line: int
    text: str


def pattern_of(word: str) -> str:
    """Matches a word in prose and in names; its parts may be on two lines of a comment."""
    gap = r"(?:[ _]|\s*\n[ \t]*(?://[/!]?|\#|\*|--)?[ \t]*)"
    return gap.join(map(re.escape, word.split()))


PATTERN = re.compile(
    r"(?<![A-Za-z])(" + "|".join(map(pattern_of, WORDS)) + r")(?![A-Za-z])", re.IGNORECASE
)
CODE_SPAN = re.compile(r"(`+)[^`\n]+\1(?!`)")


def tracked(root: Path) -> list[str]:
    """Returns the files that git knows or would add."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted(name for name in names if name and (root / name).is_file())


def words_in(root: Path, name: str) -> Iterator[Place]:
    """Yields the unwanted words of a file."""
    try:
        text = (root / name).read_text()
    except UnicodeDecodeError:
        return
    text = CODE_SPAN.sub(lambda match: " " * len(match.group()), text)
    for match in PATTERN.finditer(text):
        yield Place(name, text.count("\n", 0, match.start()) + 1, match.group())


def is_excepted(place: Place) -> bool:
    """Reports whether a place is among the exceptions."""
    word = re.sub(r"[^a-z]+", " ", place.text.lower())
    return any(
        Path(place.path).match(path) and allowed in {"*", word} for path, allowed, _ in EXCEPTIONS
    )


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each paragraph and each item of a list, in plain words."""
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    start, fence = 0, ""
    held: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        mark = re.match(r"(```+|~~~+)", stripped)
        if fence or mark:
            fence = "" if fence and stripped.startswith(fence) else fence or (mark or [""])[0]
            stripped = ""
        starts_item = re.match(r"([-*+]|\d+[.)])\s+", stripped)
        ends = (
            not stripped or stripped[0] in "#|<" or starts_item or (line[:4] == "    " and not held)
        )
        if ends and held:
            yield start, " ".join(held)
            held = []
        if (
            not stripped
            or stripped[0] in "#|<"
            or (line[:4] == "    " and not held and not starts_item)
        ):
            continue
        if not held:
            start = number
        held.append(stripped[starts_item.end() :] if starts_item else stripped)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line of its paragraph, sentence) of a Markdown text."""
    for line, paragraph in paragraphs(text):
        plain = CODE_SPAN.sub("code", paragraph)
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
        plain = re.sub(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}", "", plain)
        for sentence in re.split(
            r"(?<=[.!?])[)\"']*\s+(?=[\"'(]?[A-Z0-9])|(?<=code[.!?])\s+", plain
        ):
            if sentence.strip():
                yield line, sentence.strip()


def length(sentence: str) -> int:
    """Counts the words of a sentence."""
    return len(re.findall(r"[^\s]*[A-Za-z0-9][^\s]*", sentence))


def check(root: Path, names: list[str], *, every: bool = False) -> list[str]:
    """Returns what breaks the rules in these files; `every` lists all long sentences as well."""
    found = []
    for name in names:
        if SKIPPED.search(name):
            continue
        found += [
            f"{place.path}:{place.line} says {place.text!r}"
            for place in words_in(root, name)
            if not is_excepted(place)
        ]
    measured = [
        (length(sentence), f"{name}:{line} {sentence}")
        for name in names
        if PROSE.match(name)
        for line, sentence in sentences((root / name).read_text())
    ]
    if measured:
        lengths = sorted(count for count, _ in measured)
        p90 = lengths[min(len(lengths) - 1, -(-9 * len(lengths) // 10) - 1)]
        long = [(count, where) for count, where in measured if count > LONG_WORDS]
        if p90 > P90_WORDS:
            found.append(f"a tenth of the sentences has more than {p90} words; {P90_WORDS} allowed")
        if len(long) > MOST_LONG or (every and long):
            found += [f"{count} words: {where[:160]}" for count, where in long]
        if every:
            print(f"{len(measured)} sentences, p90 {p90} words, {len(long)} over {LONG_WORDS}")
            found += [
                f"{count} words: {where[:160]}"
                for count, where in measured
                if 32 < count <= LONG_WORDS
            ]
    if len(EXCEPTIONS) > MOST_EXCEPTIONS:
        found.append(f"{len(EXCEPTIONS)} exceptions; {MOST_EXCEPTIONS} allowed")
    return found


def main() -> int:
    """Prints the complaints about the files and folders named on the command line."""
    names = tracked(ROOT)
    wanted = [Path(one).resolve().relative_to(ROOT).as_posix() for one in sys.argv[1:]]
    if wanted:
        names = [
            name
            for name in names
            if any(name == one or name.startswith(one + "/") for one in wanted)
        ]
    found = check(ROOT, names, every=bool(wanted))
    for complaint in found:
        print(complaint)
    print(f"{len(found)} complaints in {len(names)} files")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
