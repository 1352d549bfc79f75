"""What `dalsegno bench first-token` asks for: every document, before anything is stored."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dalsegno_bench.vllm.first_token_model import Model

__all__ = ["FULL", "QUICK", "Cell", "Document", "Form", "Plan"]

# Tokens of the prompts.
SHORT, MIDDLE, LONG = 1024, 3072, 6144
# Disk rates, in units of the crossover. A model learns from its own loads that a disk is slower, so
# the rates fall. `after_step` measures the other direction.
RATES = (4.0, 2.0, 1.0, 0.5, 0.25)
# The rate at which a request is asked while another one loads.
BESIDE_RATE = 2.0


@dataclass(frozen=True)
class Cell:
    """Conditions that are measured.

    Attributes:
        rate: Of the disk, in units of the crossover.
        tokens: Of the prompt.
        hits: Share of the prompt that is stored.
    """

    rate: float
    tokens: int
    hits: float

    @property
    def name(self) -> str:
        """A short name."""
        return f"{self.rate:g}x {self.tokens} tokens {self.hits:.0%}"


@dataclass(frozen=True)
class Form:
    """How much is measured.

    Attributes:
        cells: What is measured.
        rounds: How often.
        warm_ups: Prompts at each rate that do not count; only `auto` is asked.
        step_requests: Prompts after each change of the rate.
        pairs: Pairs of a request that loads and one without hits.
        computed: Tokens of prompts without hits from which all engines learn how long computing
            takes.
        compute_s: About how many seconds it should take to compute a prompt of 3,072 tokens.
    """

    cells: tuple[Cell, ...]
    rounds: int
    warm_ups: int
    step_requests: int
    pairs: int
    computed: tuple[int, ...]
    compute_s: float

    @property
    def rates(self) -> list[float]:
        """The rates, in their order."""
        used = {cell.rate for cell in self.cells}
        return [rate for rate in RATES if rate in used]

    def at(self, rate: float) -> list[Cell]:
        """Returns the cells at a rate."""
        return [cell for cell in self.cells if cell.rate == rate]


FULL = Form(
    cells=(
        *(
            Cell(rate, tokens, hits)
            for rate in RATES
            for tokens in (SHORT, MIDDLE)
            for hits in (0.5, 1.0)
        ),
        Cell(1.0, LONG, 0.5),
        Cell(1.0, LONG, 1.0),
    ),
    rounds=5,
    warm_ups=4,
    step_requests=12,
    pairs=5,
    computed=(SHORT, MIDDLE, SHORT, MIDDLE),
    compute_s=3.2,
)
QUICK = Form(
    cells=(
        Cell(4.0, SHORT, 1.0),
        Cell(2.0, MIDDLE, 1.0),
        Cell(1.0, MIDDLE, 1.0),
        Cell(1.0, SHORT, 0.5),
        Cell(0.5, MIDDLE, 0.5),
        Cell(0.25, SHORT, 1.0),
    ),
    rounds=3,
    warm_ups=4,
    step_requests=4,
    pairs=1,
    computed=(SHORT, MIDDLE),
    compute_s=1.5,
)


@dataclass(frozen=True)
class Document:
    """A prompt whose beginning is stored.

    Attributes:
        prompt: Its tokens.
        stored: How many of them are stored.
    """

    prompt: list[int]
    stored: int

    @property
    def blocks(self) -> int:
        """How many blocks can be loaded: the last token is always computed."""
        return min(self.stored, len(self.prompt) - 1) // Model.BLOCK_TOKENS


@dataclass
class Plan:
    """All prompts of a run. Each engine is asked once about each stored document.

    Attributes:
        form: How much is measured.
        computed: Prompts without hits, from which engines learn how long computing takes.
        timed: Prompts without hits whose computing is timed.
        warm_ups: Those of `auto`, by rate.
        rounds: One document for each round, by cell.
        pairs: A document that is loaded, and a prompt without hits.
        steps: Documents of warm-up, of the change to a slow disk, and of the change back.
    """

    form: Form
    computed: list[list[int]] = field(default_factory=list)
    timed: list[list[int]] = field(default_factory=list)
    warm_ups: dict[float, list[Document]] = field(default_factory=dict)
    rounds: dict[Cell, list[Document]] = field(default_factory=dict)
    pairs: list[tuple[Document, list[int]]] = field(default_factory=list)
    steps: dict[str, list[Document]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Writes the documents, of random tokens."""
        noise, form = random.Random(3), self.form  # noqa: S311 - not a secret

        def text(tokens: int) -> list[int]:
            return [noise.randrange(2, Model.VOCABULARY) for _ in range(tokens)]

        def documents(count: int, tokens: int = SHORT, hits: float = 1.0) -> list[Document]:
            return [Document(text(tokens), int(tokens * hits)) for _ in range(count)]

        self.computed = [text(tokens) for tokens in form.computed]
        self.timed = [text(MIDDLE) for _ in range(3)]
        for rate in form.rates:
            self.warm_ups[rate] = documents(form.warm_ups)
        for cell in form.cells:
            self.rounds[cell] = documents(form.rounds, cell.tokens, cell.hits)
        self.pairs = [(one, text(SHORT)) for one in documents(form.pairs, LONG)]
        counts = {"warm_up": form.warm_ups, "slower": form.step_requests}
        for name, count in {**counts, "faster": form.step_requests}.items():
            self.steps[name] = documents(count)

    @property
    def stored(self) -> list[list[int]]:
        """What is stored before anything is measured."""
        groups = [*self.warm_ups.values(), *self.rounds.values(), *self.steps.values()]
        loaded = [one for one, _ in self.pairs]
        return [one.prompt[: one.stored] for group in [*groups, loaded] for one in group]

    @property
    def tokens(self) -> int:
        """How many tokens each engine may store."""
        asked = [*self.computed, *self.timed, *(other for _, other in self.pairs)]
        groups = [*self.warm_ups.values(), *self.rounds.values(), *self.steps.values()]
        documents = [*(one for group in groups for one in group), *(one for one, _ in self.pairs)]
        return sum(map(len, [*asked, *(one.prompt for one in documents)]))
