"""One suite of faults for any store: ours, one file per object, and those of serving engines.

1. A *probe* does something to a store that happens to stores in service: it kills its process,
   damages its files, fills its disk, overloads it. Then it checks what the store returns.
2. A store is reached through an :class:`~dalsegno_bench.faultbench.adapter.Adapter` alone.
   It runs in a process of its own, which a probe may kill, and every call to it has a time limit: a
   store that hangs or crashes is counted, and the suite goes on.
3. Every block says which block it is, so wrong bytes are recognised wherever they come from.
4. A *cell* is one probe on one store, in an empty directory; a seed replays it.

docs/guides/faultbench.md describes each probe, and how to add a store.
"""
