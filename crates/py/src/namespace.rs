//! `Namespace`.

use std::collections::BTreeMap;

use dalsegno_serve::{Allocation, Handle};
use dalsegno_store::{
    GetReport, LayerSpan, LayerTimes, LoadTarget, LoadTiming, Namespace, Put, Scope, Terms,
};
use pyo3::prelude::*;

use crate::access::Access;
use crate::allocation::PyAllocation;
use crate::arguments::{Number, keep, seconds, timeout};
use crate::buffers::{blocks, hashes};
use crate::errors::OrRaise;
use crate::gpu::PyGpu;
use crate::json::to_python;
use crate::lease::PyLease;
use crate::load::PyLoad;
use crate::pages::PyPagedBlocks;
use crate::transfer::{PyPutReport, PyTransfer, hits};
use crate::writer::PyLayerWriter;

/// Blocks of one identity and shape in a store. Threads may share it.
#[pyclass(name = "Namespace", module = "dalsegno._native", frozen)]
pub(crate) struct PyNamespace {
    store: Handle,
    namespace: Namespace,
}

impl PyNamespace {
    pub(crate) fn new(store: Handle, namespace: Namespace) -> Self {
        Self { store, namespace }
    }

    fn get(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        scope: Scope,
        timeout_s: Option<f64>,
    ) -> PyResult<GetReport> {
        let (chain, out) = (hashes(chain)?, blocks(out, Access::Write)?);
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let id = self.namespace.id();
        py.detach(|| self.store.get_batch(id, &chain, out, scope, &terms)).or_raise()
    }
}

#[pymethods]
impl PyNamespace {
    /// Hash of all fields and of the shape, 32 hexadecimal digits.
    #[getter]
    fn id(&self) -> String {
        self.namespace.id().to_hex()
    }

    /// Layers per block.
    #[getter]
    fn layers(&self) -> u32 {
        self.namespace.layout().layers()
    }

    /// Bytes of one layer of one block.
    #[getter]
    fn slice_bytes(&self) -> u32 {
        self.namespace.layout().slice_bytes()
    }

    /// Bytes of a block: ``layers * slice_bytes``.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.namespace.layout().block_bytes()
    }

    /// The fields that identify the namespace.
    #[getter]
    fn fields(&self) -> BTreeMap<String, String> {
        self.namespace.fields().clone()
    }

    /// Puts the blocks ``chain[first:first + len(blocks)]``.
    ///
    /// The hashes before ``first`` only help to place the blocks next to their prefix.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
    ///     blocks: One block per hash, ``block_bytes`` bytes each, one layer after the other.
    ///         Without a timeout, memory aligned to the device's sectors (512 or 4096 bytes) is
    ///         written in place; other memory goes through a staging buffer.
    ///     first: Position in ``chain`` of the first block given.
    ///     timeout_s: Seconds from now after which the remaining blocks fail; ``None`` waits.
    ///     pool_only: Whether the blocks are kept in the DRAM pool only, and never written. Then
    ///         they are gone when the pool evicts them or the store is closed. Blocks for which
    ///         the pool has no place are declined.
    ///
    /// Returns:
    ///     The outcome of each block. A full disk, a timeout and a failing device are outcomes, not
    ///     errors.
    ///
    /// Raises:
    ///     InvalidError: A length disagrees with the shape; nothing was written.
    ///     PoisonedError: A sync failed, now or earlier.
    ///     ClosedError: The store is closed.
    ///
    /// Source: docs/formats/log.md; oracle ``tests/contract/reference_store.py``.
    #[pyo3(
        signature = (chain, blocks, *, first=Number::new(0), timeout_s=None, pool_only=false),
        text_signature = "($self, chain, blocks, *, first=0, timeout_s=None, pool_only=False)"
    )]
    fn put_batch(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        first: Number<usize>,
        timeout_s: Option<f64>,
        pool_only: bool,
    ) -> PyResult<PyPutReport> {
        let first = first.named("first")?;
        let (chain, blocks) = (hashes(chain)?, self::blocks(blocks, Access::Read)?);
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let id = self.namespace.id();
        let put = Put { chain: &chain, first, blocks, keep: keep(pool_only) };
        let report = py.detach(|| self.store.put_batch(id, put, &terms)).or_raise()?;
        Ok(PyPutReport::new(report))
    }

    /// Returns how many leading blocks of ``chain`` are present, without reading payload.
    ///
    /// These blocks count as used, with all blocks that they depend on: a load usually follows.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
    ///
    /// Raises:
    ///     ClosedError: The store is closed.
    fn probe(&self, py: Python<'_>, chain: &Bound<'_, PyAny>) -> PyResult<usize> {
        let chain = hashes(chain)?;
        py.detach(|| self.store.probe(self.namespace.id(), &chain)).or_raise()
    }

    /// Returns for each block whether it is present, wherever it comes in its prompt.
    ///
    /// Present blocks count as used.
    ///
    /// Args:
    ///     hashes: Block hashes, 32 bytes each, in any order.
    ///
    /// Raises:
    ///     ClosedError: The store is closed.
    fn contains(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let hashes = self::hashes(hashes)?;
        py.detach(|| self.store.contains(self.namespace.id(), &hashes)).or_raise()
    }

    /// Returns the same as :meth:`contains`, but no block counts as used.
    fn peek(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let hashes = self::hashes(hashes)?;
        py.detach(|| self.store.peek(self.namespace.id(), &hashes)).or_raise()
    }

    /// Returns which tiers would serve the leading present blocks of ``chain``; never waits.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
    ///
    /// Returns:
    ///     Runs in order; :class:`dalsegno.stats.Located` describes each.
    ///
    /// Raises:
    ///     ClosedError: The store is closed.
    fn locate(&self, py: Python<'_>, chain: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let chain = hashes(chain)?;
        let located = py.detach(|| self.store.locate(self.namespace.id(), &chain)).or_raise()?;
        Ok(to_python(py, &serde_json::json!(located))?.unbind())
    }

    /// Marks the blocks of a prompt as used without loading them.
    ///
    /// Call it for blocks that an engine serves from its own memory. Without it they look idle to
    /// eviction, and a system prompt could be evicted before the blocks that depend on it. Reads no
    /// payload and never waits for the disk.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
    ///
    /// Returns:
    ///     How many leading blocks are present; these count as used, with all blocks that they
    ///     depend on.
    ///
    /// Raises:
    ///     ClosedError: The store is closed.
    fn touch(&self, py: Python<'_>, chain: &Bound<'_, PyAny>) -> PyResult<usize> {
        let chain = hashes(chain)?;
        py.detach(|| self.store.touch(self.namespace.id(), &chain)).or_raise()
    }

    /// Fills ``out`` with the longest present run of ``chain``.
    ///
    /// The call returns when every filled buffer is verified.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
    ///     out: One writable block per hash, ``block_bytes`` bytes each. Without a timeout, memory
    ///         aligned to the device's sectors is read into directly; other memory is filled by a
    ///         copy.
    ///     timeout_s: Seconds from now after which the remaining blocks count as misses; ``None``
    ///         waits.
    ///
    /// Returns:
    ///     How many leading buffers hold their block. The contents of the others are undefined.
    ///
    /// Raises:
    ///     InvalidError: A length disagrees with the shape; nothing was read.
    ///     ClosedError: The store is closed.
    ///
    /// Source: docs/formats/log.md; oracle ``tests/contract/reference_store.py``.
    #[pyo3(signature = (chain, out, *, timeout_s=None))]
    fn get_batch(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<usize> {
        Ok(self.get(py, chain, out, Scope::Prefix, timeout_s)?.leading_blocks())
    }

    /// Allocates memory for blocks that are written in place and then put.
    ///
    /// With a server, this saves the copy that :meth:`put_batch` makes of the caller's buffers.
    ///
    /// Args:
    ///     count: Number of blocks, at least one.
    ///
    /// Raises:
    ///     InvalidError: ``count`` is 0 or too large.
    ///     UnavailableError: The system cannot provide the memory.
    fn allocate(&self, py: Python<'_>, count: Number<usize>) -> PyResult<PyAllocation> {
        self.store.check_process().or_raise()?;
        let count = count.named("count")?;
        let memory = py.detach(|| Allocation::new(&self.namespace, count)).or_raise()?;
        Ok(PyAllocation::new(self.store.clone(), self.namespace.clone(), memory))
    }

    /// Leases the longest present run of ``chain``, to be read in the store's memory.
    ///
    /// Nothing is copied. Blocks that are only on disk are read into the DRAM tier first, and
    /// verified. With ``dram`` 0 there is no memory to lease.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
    ///     timeout_s: Seconds from now after which the remaining blocks count as misses; ``None``
    ///         waits.
    ///
    /// Returns:
    ///     The leading blocks. There are fewer than the store has if leases would hold more than
    ///     half of the DRAM tier (:attr:`Lease.truncated`).
    ///
    /// Raises:
    ///     ClosedError: The store is closed.
    #[pyo3(signature = (chain, *, timeout_s=None))]
    fn lease(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyLease> {
        let (chain, timeout) = (hashes(chain)?, timeout(timeout_s)?);
        let (id, terms) = (self.namespace.id(), Terms { timeout, cancel: None });
        let lease = py.detach(|| self.store.lease(id, &chain, &terms)).or_raise()?;
        Ok(PyLease::new(self.store.clone(), lease))
    }

    /// Fills every buffer of ``out`` whose block is present, wherever it comes in its prompt.
    ///
    /// The arguments and errors are those of :meth:`get_batch`.
    ///
    /// Returns:
    ///     For each buffer whether it holds its block. The contents of the others are undefined.
    #[pyo3(signature = (hashes, out, *, timeout_s=None))]
    fn get_each(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<Vec<bool>> {
        Ok(hits(&self.get(py, hashes, out, Scope::Each, timeout_s)?))
    }

    /// Starts a put of blocks whose layers come one at a time.
    ///
    /// Leading blocks that are already stored are left out: see :attr:`LayerWriter.first`.
    /// The layers are gathered in memory; nothing is written before the commit.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
    ///     first: Position in ``chain`` of the first block of the put.
    ///     count: Number of blocks of the put; ``None`` takes all blocks from ``first`` on.
    ///     timeout_s: Seconds after which the lookup of present blocks ends; ``None`` waits.
    ///
    /// Raises:
    ///     InvalidError: The blocks do not fit into one extent; split the put.
    ///     UnavailableError: Writes are suspended, or puts by layer gather a GiB already.
    #[pyo3(
        signature = (chain, *, first=Number::new(0), count=None, timeout_s=None),
        text_signature = "($self, chain, *, first=0, count=None, timeout_s=None)"
    )]
    fn layer_writer(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyAny>,
        first: Number<usize>,
        count: Option<Number<usize>>,
        timeout_s: Option<f64>,
    ) -> PyResult<PyLayerWriter> {
        let chain = hashes(chain)?;
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        let first = first.named("first")?;
        let count = count.map(|count| count.named("count")).transpose()?;
        let count = count.unwrap_or_else(|| chain.len().saturating_sub(first));
        let span = LayerSpan { chain: &chain, first, count };
        let id = self.namespace.id();
        let writer = py.detach(|| self.store.layer_writer(id, span, &terms));
        Ok(PyLayerWriter::new(writer.or_raise()?))
    }

    /// Starts :meth:`put_batch` in the background; never waits.
    ///
    /// The buffers stay in use until the transfer is done. The time in the queue counts towards
    /// ``timeout_s``. Blocks that are removed before the transfer is done are not put.
    #[pyo3(
        signature = (chain, blocks, *, first=Number::new(0), timeout_s=None, pool_only=false),
        text_signature = "($self, chain, blocks, *, first=0, timeout_s=None, pool_only=False)"
    )]
    fn submit_put(
        &self,
        chain: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        first: Number<usize>,
        timeout_s: Option<f64>,
        pool_only: bool,
    ) -> PyResult<PyTransfer> {
        let first = first.named("first")?;
        let (chain, blocks) = (hashes(chain)?, self::blocks(blocks, Access::Read)?);
        let timeout = timeout(timeout_s)?;
        Ok(PyTransfer::put(self.store.submit_put(
            self.namespace.id(),
            chain,
            first,
            blocks,
            keep(pool_only),
            timeout,
        )))
    }

    /// Starts :meth:`get_batch`, or :meth:`get_each` if ``each``; never waits.
    ///
    /// The buffers stay in use until the transfer is done. The time in the queue counts towards
    /// ``timeout_s``.
    #[pyo3(signature = (hashes, out, *, each=false, timeout_s=None))]
    fn submit_get(
        &self,
        hashes: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        each: bool,
        timeout_s: Option<f64>,
    ) -> PyResult<PyTransfer> {
        let (chain, out) = (self::hashes(hashes)?, blocks(out, Access::Write)?);
        let timeout = timeout(timeout_s)?;
        let scope = if each { Scope::Each } else { Scope::Prefix };
        Ok(PyTransfer::get(self.store.submit_get(self.namespace.id(), chain, out, scope, timeout)))
    }

    /// Starts to load the longest present run of ``chain``; never waits.
    ///
    /// Layers become ready in their order while the load runs: see :meth:`Load.wait_layer`. A
    /// load into pages whose blocks take more than a quarter of the DRAM tier has no ready layer
    /// before its last part, and one from a server none before the server has all blocks of a part
    /// in its pool. If a block is absent, no layer becomes ready.
    ///
    /// Args:
    ///     chain: Block hashes in prefix order, 32 bytes each.
    ///     into: Pages of an engine for all blocks, from :meth:`PagedMemory.blocks`, which needs a
    ///         DRAM tier; or one writable block per hash, ``block_bytes`` bytes each.
    ///     timeout_s: Seconds from now after which the remaining blocks count as misses; ``None``
    ///         waits.
    ///     due_s: Seconds from now after which an engine needs the first layer; ``None`` for as
    ///         soon as possible. Reads go in the order in which they are due. A server reads as
    ///         soon as it can.
    ///     layer_s: Seconds after which it needs each further layer.
    ///
    /// Raises:
    ///     InvalidError: A size disagrees with the shape, there is no DRAM tier, or a time is
    ///         negative or not a number.
    ///     ClosedError: The store is closed.
    #[pyo3(signature = (chain, into, *, timeout_s=None, due_s=None, layer_s=0.0))]
    fn load(
        &self,
        chain: &Bound<'_, PyAny>,
        into: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
        due_s: Option<f64>,
        layer_s: f64,
    ) -> PyResult<PyLoad> {
        let (chain, timeout) = (hashes(chain)?, timeout(timeout_s)?);
        let due = due_s.map(|first_s| {
            Ok::<_, PyErr>(LayerTimes {
                first: seconds("due_s", first_s)?,
                layer: seconds("layer_s", layer_s)?,
            })
        });
        let timing = LoadTiming { timeout, due: due.transpose()? };
        let (target, gpu) = match into.cast::<PyPagedBlocks>() {
            Ok(pages) => (LoadTarget::Pages(pages.get().take()?), pages.get().gpu()),
            Err(_) => (LoadTarget::Blocks(blocks(into, Access::Write)?), None),
        };
        let load = self.store.load(self.namespace.id(), chain, target, timing);
        Ok(PyLoad::new(load.or_raise()?, gpu))
    }

    /// Has a GPU register the memory of the DRAM tier, in the background, unless it has.
    ///
    /// Copies between places there and the GPU need no processor then. All of that memory becomes
    /// resident. A server that was restarted has another one: call this again from time to time.
    ///
    /// Args:
    ///     gpu: The GPU.
    ///
    /// Raises:
    ///     ClosedError: The store is closed.
    fn register_pool(&self, gpu: &PyGpu) -> PyResult<()> {
        if let Some(region) = self.store.pool_region().or_raise()? {
            gpu.copier().register(&region);
        }
        Ok(())
    }

    /// Removes blocks permanently, on all hosts that share a far directory.
    ///
    /// The blocks disappear immediately. The call returns when the removal is durable and, with
    /// ``far``, published there.
    ///
    /// Args:
    ///     hashes: Hashes of the blocks, 32 bytes each; ``None`` removes the whole namespace.
    ///     timeout_s: Seconds to wait; ``None`` waits for the disk and the far directory.
    ///
    /// Returns:
    ///     How many of the blocks were present.
    ///
    /// Raises:
    ///     UnavailableError: ``timeout_s`` passed, or the device or the far directory failed. The
    ///         message says whether the removal continues and its blocks are no longer found,
    ///         nothing was removed, it is published later, or it could not be made durable.
    ///     FullError: There is no space to record the removal.
    #[pyo3(signature = (hashes=None, *, timeout_s=None))]
    fn remove(
        &self,
        py: Python<'_>,
        hashes: Option<&Bound<'_, PyAny>>,
        timeout_s: Option<f64>,
    ) -> PyResult<u64> {
        let hashes = hashes.map(self::hashes).transpose()?;
        let terms = Terms { timeout: timeout(timeout_s)?, cancel: None };
        py.detach(|| self.store.remove(self.namespace.id(), hashes.as_deref(), &terms)).or_raise()
    }

    fn __repr__(&self) -> String {
        let layout = self.namespace.layout();
        format!(
            "<Namespace {} of {} x {} bytes>",
            self.namespace.id(),
            layout.layers(),
            layout.slice_bytes()
        )
    }
}
