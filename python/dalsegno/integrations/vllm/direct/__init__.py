"""The direct path: blocks go from places of the pool into vLLM's KV cache, with one copy.

| module | what it does |
|---|---|
| `choice` | whether an engine can take this path, and whether a load may run inside a step |
| `memory` | where vLLM's KV cache is, and the order of copies and compute |
| `layout` | where the bytes of a block are in vLLM's KV cache |
| `space` | the store and the namespace, as the halves of a process share them |
| `step` | what the scheduler's half says to the worker's half, and back |
| `requests` | what the scheduler's half knows of a request |
| `planned` | the loads and saves that it has planned, until all workers have ended them |
| `announcing` | the KV events of blocks that all ranks have |
| `scheduler` | the half that finds blocks, and decides what is loaded and saved |
| `saving` | the saves of a worker |
| `worker` | the half that copies |
| `connector` | vLLM's `KVConnectorBase_V1` over the two halves |
"""
