"""Stands in for the wheel `sglang-kernel`, which needs CUDA.

SGLang's CPU engine imports names of this package unconditionally and calls one of them on the way
of every request; without the package's operators it takes torch's own everywhere else. Any other
name can be imported, and says what it is when it is called.
"""

from __future__ import annotations

from typing import Any

# The version that SGLang asks for.
__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    out_cache_loc: Any,
    pool_len: int | None = None,
) -> None:
    """Notes for each request where the KV of its new tokens lies.

    Args:
        req_pool_indices: Row of each request, `[requests]`.
        req_to_token: Places by request and token, `[rows, tokens]`; filled.
        start_offset: First new token of each request, `[requests]`.
        end_offset: One past its last new token, `[requests]`.
        out_cache_loc: Places of all new tokens, request by request.
        pool_len: Tokens of a row; not needed here.
    """
    del pool_len
    done = 0
    rows, starts, ends = (one.tolist() for one in (req_pool_indices, start_offset, end_offset))
    for row, start, end in zip(rows, starts, ends, strict=True):
        places = out_cache_loc[done : done + end - start]
        req_to_token[row, start:end] = places.to(req_to_token.dtype)
        done += end - start


def __getattr__(name: str) -> Any:
    """Gives every other name a function that says what it is."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU; this is its stand-in")

    missing.__name__ = name
    return missing
