//! `CostModel` and `LoadChoice`.

use std::collections::HashMap;

use dalsegno_policy::first_token::{
    Ahead, ComputePrior, CostModel, Learned, LoadChoice, Others, Overlap, Question, Shown,
    Situation, StepWork, StoredRuns, TierRun, TransferPrior, Usual, Way, farthest_runs, part_of,
};
use dalsegno_store::BlockTier;
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use serde_json::{Value, json};

use crate::errors::InvalidError;
use crate::json::to_python;

/// What is known of an engine and its store: how fast it computes, and how fast each tier loads.
///
/// It learns from measurements, and decides how many leading blocks of a prompt to load. It reads
/// no clock and does no I/O.
///
/// Args:
///     compute: Seconds that are assumed until steps were measured: of a step, of a token, of a
///         pair of tokens, and of a token that is read.
///     tiers: For ``dram``, ``log`` and ``far``: seconds before the first byte, and bytes per
///         second, until loads were measured.
///
/// Raises:
///     InvalidError: A tier is missing, or a number is not positive.
#[pyclass(name = "CostModel", module = "dalsegno._native", frozen)]
pub(crate) struct PyCostModel {
    model: Mutex<CostModel>,
}

/// What is the same in all decisions of an engine.
///
/// Args:
///     block_bytes: Bytes of a block, on one worker.
///     block_tokens: Tokens of a block.
///     chunk: Tokens of one request that a step computes at most.
///     layers: Layers of the model.
///     guard_s: Seconds by which a first token may come later than without us, if a fiftieth of it
///         is not more.
///     most_wait_s: Seconds for which a step may wait in all, while it computes nothing. One that
///         delays nobody and reads may wait ten times as long, if the first step that computes the
///         blocks would take as long.
///     most_load_s: Seconds after which a load is given up for which no step waits.
///
/// Raises:
///     InvalidError: ``chunk`` is not a positive number.
#[pyclass(name = "LoadTerms", module = "dalsegno._native", frozen)]
pub(crate) struct PyLoadTerms {
    block_bytes: f64,
    block_tokens: f64,
    chunk: f64,
    layers: f64,
    guard_s: f64,
    most_wait_s: f64,
    most_load_s: f64,
}

#[pymethods]
impl PyLoadTerms {
    #[new]
    #[pyo3(signature = (
        *, block_bytes, block_tokens, chunk, layers, guard_s, most_wait_s=f64::INFINITY,
        most_load_s=f64::INFINITY
    ))]
    fn new(
        block_bytes: f64,
        block_tokens: f64,
        chunk: f64,
        layers: f64,
        guard_s: f64,
        most_wait_s: f64,
        most_load_s: f64,
    ) -> PyResult<Self> {
        let chunk = positive("chunk", chunk)?;
        Ok(Self { block_bytes, block_tokens, chunk, layers, guard_s, most_wait_s, most_load_s })
    }
}

/// What to load of a prompt, from :meth:`CostModel.choose`.
#[pyclass(name = "LoadChoice", module = "dalsegno._native", frozen)]
pub(crate) struct PyLoadChoice {
    choice: LoadChoice,
}

#[pymethods]
impl PyLoadChoice {
    /// How many leading blocks; 0 for none.
    #[getter]
    fn blocks(&self) -> usize {
        self.choice.blocks
    }

    /// Whether a step waits for each layer of them; otherwise the request waits.
    #[getter]
    fn overlapped(&self) -> bool {
        self.choice.way == Way::Overlapped
    }

    /// How many leading blocks are computed while the others come; 0 in another way.
    ///
    /// As predicted. The others are loaded from the last one on.
    #[getter]
    fn front(&self) -> usize {
        match self.choice.way {
            Way::BothEnds { front } => front,
            Way::Ahead | Way::Overlapped => 0,
        }
    }

    /// How many blocks a part has, if they are loaded from the last one on.
    #[getter]
    fn part(&self) -> usize {
        part_of(self.choice.blocks)
    }

    /// Seconds until the first token, as predicted.
    #[getter]
    fn first_token_s(&self) -> f64 {
        self.choice.first_token_s
    }

    /// Seconds until the first token if nothing is loaded.
    #[getter]
    fn computed_s(&self) -> f64 {
        self.choice.computed_s
    }

    /// Seconds until the first token if all blocks are loaded; infinite if it is given up.
    #[getter]
    fn loaded_s(&self) -> f64 {
        self.choice.loaded_s
    }

    /// Seconds that most such loads do not exceed.
    #[getter]
    fn load_s(&self) -> f64 {
        self.choice.load_s
    }

    /// Seconds of computing that the blocks save.
    #[getter]
    fn saved_s(&self) -> f64 {
        self.choice.saved_s
    }

    /// Seconds that the step behind the blocks computes.
    #[getter]
    fn step_s(&self) -> f64 {
        self.choice.step_s
    }

    /// Seconds for which that step may wait in all.
    #[getter]
    fn wait_s(&self) -> f64 {
        self.choice.wait_s
    }
}

fn tier_of(name: &str) -> PyResult<BlockTier> {
    let found = BlockTier::ALL.into_iter().find(|tier| tier.name() == name);
    found.ok_or_else(|| InvalidError::new_err(format!("a tier is dram, log or far, got {name:?}")))
}

/// Returns the tiers of leading blocks: of each block the farthest one among the ranks.
///
/// Args:
///     located: What :meth:`Namespace.locate` has answered for each rank.
///     found: How many blocks all ranks had. One that an answer does not have has left since, and
///         counts as read from the log.
///
/// Returns:
///     Tiers, and how many blocks in a row are in each.
///
/// Raises:
///     InvalidError: There is no such tier.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python's arguments are extracted by value")]
pub(crate) fn merge_located<'py>(
    py: Python<'py>,
    located: Vec<Vec<Bound<'py, PyDict>>>,
    found: usize,
) -> PyResult<Vec<(Bound<'py, PyString>, usize)>> {
    let (tier, blocks) = (intern!(py, "tier"), intern!(py, "blocks"));
    let run = |run: &Bound<'py, PyDict>| {
        let tier = run.as_any().get_item(tier)?;
        let blocks = run.as_any().get_item(blocks)?.extract()?;
        Ok::<_, PyErr>(TierRun { tier: tier_of(tier.cast::<PyString>()?.to_str()?)?, blocks })
    };
    let ranks: Vec<Vec<TierRun>> = located
        .iter()
        .map(|runs| runs.iter().map(run).collect::<PyResult<_>>())
        .collect::<PyResult<_>>()?;
    // No name is created twice.
    let names = BlockTier::ALL.map(|tier| PyString::intern(py, tier.name()));
    let pair = |run: TierRun| (names[run.tier as usize].clone(), run.blocks);
    Ok(farthest_runs(&ranks, found).into_iter().map(pair).collect())
}

fn positive(name: &str, value: f64) -> PyResult<f64> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(InvalidError::new_err(format!("{name} must be a positive number, got {value:?}")))
}

fn name_of(shown: Shown) -> &'static str {
    match shown {
        Shown::Nothing => "nothing",
        Shown::Surprise => "surprise",
        Shown::Change => "change",
    }
}

/// What was learned of one kind of work.
fn explained<const TERMS: usize>(learned: &Learned<TERMS>, names: [&str; TERMS]) -> Value {
    let coefficients: HashMap<&str, f64> =
        names.into_iter().zip(learned.coefficients().iter().copied()).collect();
    let Usual { late_s, low, high } = learned.usual();
    json!({
        "coefficients": coefficients,
        "measured": learned.measured(),
        "drifts": learned.drifts(),
        "low": low,
        "high": high,
        "late_s": late_s,
    })
}

#[pymethods]
impl PyCostModel {
    #[new]
    #[pyo3(signature = (*, compute, tiers))]
    #[expect(clippy::needless_pass_by_value, reason = "Python's arguments are extracted by value")]
    fn new(compute: (f64, f64, f64, f64), tiers: HashMap<String, (f64, f64)>) -> PyResult<Self> {
        let prior = ComputePrior {
            step_s: positive("the time of a step", compute.0)?,
            token_s: positive("the time of a token", compute.1)?,
            pair_s: positive("the time of a pair", compute.2)?,
            read_s: positive("the time of a token that is read", compute.3)?,
        };
        let tier = |tier: BlockTier| {
            let found = tiers.get(tier.name()).copied();
            let missing = || InvalidError::new_err(format!("{} is missing in tiers", tier.name()));
            let (latency_s, bytes_per_s) = found.ok_or_else(missing)?;
            Ok::<_, PyErr>(TransferPrior {
                latency_s: positive("the latency of a tier", latency_s)?,
                bytes_per_s: positive("the bytes per second of a tier", bytes_per_s)?,
            })
        };
        let [dram, log, far] = BlockTier::ALL;
        let tiers = [tier(dram)?, tier(log)?, tier(far)?];
        Ok(Self { model: Mutex::new(CostModel::new(prior, tiers)) })
    }

    /// Learns that a step took so many seconds. Leave out steps that waited for a load.
    ///
    /// Args:
    ///     tokens: New tokens of all requests.
    ///     pairs: Pairs of a new token and one before it in its request: for ``n`` new tokens
    ///         behind ``p`` others ``n * (p + n / 2)``.
    ///     read: Tokens of all requests whose keys and values are read, the new ones included.
    ///     seconds: How long it took.
    fn note_step(&self, tokens: f64, pairs: f64, read: f64, seconds: f64) {
        self.model.lock().note_step(StepWork { tokens, pairs, read }, seconds);
    }

    /// Learns that a load took so many seconds.
    ///
    /// Args:
    ///     tier: ``dram``, ``log`` or ``far``.
    ///     size: Bytes of the load, and those that were queued for the tier before it.
    ///     seconds: How long it took.
    ///
    /// Returns:
    ///     As :meth:`note_read`.
    ///
    /// Raises:
    ///     InvalidError: There is no such tier.
    fn note_load(&self, tier: &str, size: f64, seconds: f64) -> PyResult<&'static str> {
        Ok(name_of(self.model.lock().note_load(tier_of(tier)?, size, seconds)))
    }

    /// Learns that a read took so many seconds for which nobody waited.
    ///
    /// Args:
    ///     tier: ``dram``, ``log`` or ``far``.
    ///     size: Bytes.
    ///     seconds: How long it took.
    ///     whole: Whether it was not given up after that.
    ///
    /// Returns:
    ///     ``nothing`` new, a ``surprise`` that another read has to confirm, or a ``change``.
    ///
    /// Raises:
    ///     InvalidError: There is no such tier.
    #[pyo3(signature = (tier, size, seconds, *, whole=true))]
    fn note_read(
        &self,
        tier: &str,
        size: f64,
        seconds: f64,
        whole: bool,
    ) -> PyResult<&'static str> {
        Ok(name_of(self.model.lock().note_read(tier_of(tier)?, size, seconds, whole)))
    }

    /// Learns that a sample of a tier was early.
    ///
    /// If the next read is early and at least four times as large, the tier has become faster.
    ///
    /// Args:
    ///     tier: ``dram``, ``log`` or ``far``.
    ///     size: Bytes.
    ///
    /// Raises:
    ///     InvalidError: There is no such tier.
    fn note_early_sample(&self, tier: &str, size: f64) -> PyResult<()> {
        self.model.lock().note_early_sample(tier_of(tier)?, size);
        Ok(())
    }

    /// Learns that a load was given up because its step would have waited too long.
    ///
    /// Until a load or a read of the tier is measured, nothing is worth loading from it.
    ///
    /// Args:
    ///     tier: ``dram``, ``log`` or ``far``.
    ///
    /// Raises:
    ///     InvalidError: There is no such tier.
    fn note_late_in_step(&self, tier: &str) -> PyResult<()> {
        self.model.lock().note_late_in_step(tier_of(tier)?);
        Ok(())
    }

    /// Learns that a load was given up for which its request waited.
    ///
    /// Until one of the tier is measured again, nothing is worth loading from it.
    ///
    /// Args:
    ///     tier: ``dram``, ``log`` or ``far``.
    ///     size: Bytes of the load, and those that were queued for the tier before it.
    ///
    /// Raises:
    ///     InvalidError: There is no such tier.
    fn note_given_up(&self, tier: &str, size: f64) -> PyResult<()> {
        self.model.lock().note_given_up(tier_of(tier)?, size);
        Ok(())
    }

    /// Returns the seconds in which a step computes.
    ///
    /// Args:
    ///     tokens: New tokens of all requests.
    ///     pairs: Pairs of a new token and one before it in its request.
    ///     read: Tokens whose keys and values are read, the new ones included.
    fn step_s(&self, tokens: f64, pairs: f64, read: f64) -> f64 {
        self.model.lock().compute().step_s(StepWork { tokens, pairs, read })
    }

    /// Returns the seconds in which a request computes its tokens ``begin`` to ``end``.
    ///
    /// Args:
    ///     begin: Tokens before.
    ///     end: Tokens afterwards.
    ///     chunk: Tokens that a step computes at most.
    fn request_s(&self, begin: f64, end: f64, chunk: f64) -> f64 {
        self.model.lock().compute().request_s(begin, end, chunk)
    }

    /// Returns the seconds that most loads of so many bytes do not exceed.
    ///
    /// Args:
    ///     tier: ``dram``, ``log`` or ``far``.
    ///     size: Bytes.
    ///
    /// Raises:
    ///     InvalidError: There is no such tier.
    fn load_s(&self, tier: &str, size: f64) -> PyResult<f64> {
        Ok(self.model.lock().tier(tier_of(tier)?).load_s(size))
    }

    /// Returns the seconds by which the first token of a request may come later than without us.
    ///
    /// Args:
    ///     terms: Of the engine.
    ///     computed: Tokens that the engine has already.
    ///     prompt: Tokens of the prompt.
    fn guard_s(&self, terms: &PyLoadTerms, computed: f64, prompt: f64) -> f64 {
        self.model.lock().guard_s(terms.guard_s, computed, prompt, terms.chunk)
    }

    /// Chooses how many leading blocks of a prompt to load.
    ///
    /// Args:
    ///     terms: Of the engine.
    ///     runs: Consecutive blocks with their tiers, from the first one that is not computed.
    ///     computed: Tokens that the engine has already.
    ///     prompt: Tokens of the prompt.
    ///     most_overlapped: Leading blocks for which a step may wait, if there are at most so many;
    ///         0 if it must not wait.
    ///     most_copied: Of these, leading blocks that are copied and not read.
    ///     notice_s: Seconds from the end of a load for which no step waits until its request is
    ///         computed.
    ///     backlog_s: Seconds that the engine computes for requests before this one.
    ///     waiting: Requests that wait behind this one; their first tokens count as well.
    ///     queued: Bytes that are queued for ``dram``, ``log`` and ``far``.
    ///     load_all: All blocks are loaded, whatever that costs; only the way is chosen.
    ///     both_ends: Whether blocks can be loaded from the last one on while those before them are
    ///         computed.
    ///     are_delayed: Whether a step that waits delays other requests.
    ///
    /// Raises:
    ///     InvalidError: There is no such tier.
    #[pyo3(signature = (
        terms, runs, computed, prompt, *, most_overlapped=0, most_copied=0, notice_s=0.0,
        backlog_s=0.0, waiting=0, queued=(0.0, 0.0, 0.0), load_all=false,
        both_ends=false, are_delayed=true
    ))]
    #[expect(clippy::too_many_arguments, reason = "named in Python")]
    #[expect(clippy::needless_pass_by_value, reason = "Python's arguments are extracted by value")]
    fn choose(
        &self,
        terms: &PyLoadTerms,
        runs: Vec<(Bound<'_, PyString>, usize)>,
        computed: f64,
        prompt: f64,
        most_overlapped: usize,
        most_copied: usize,
        notice_s: f64,
        backlog_s: f64,
        waiting: u32,
        queued: (f64, f64, f64),
        load_all: bool,
        both_ends: bool,
        are_delayed: bool,
    ) -> PyResult<PyLoadChoice> {
        let run = |(tier, blocks): &(Bound<'_, PyString>, usize)| {
            Ok::<_, PyErr>(TierRun { tier: tier_of(tier.to_str()?)?, blocks: *blocks })
        };
        let runs: Vec<TierRun> = runs.iter().map(run).collect::<PyResult<_>>()?;
        let (chunk, most_wait_s) = (terms.chunk, terms.most_wait_s);
        let model = self.model.lock();
        let question = Question {
            found: StoredRuns::default(),
            block_tokens: terms.block_tokens,
            computed,
            prompt,
            chunk,
            layers: terms.layers,
            overlap: Overlap { most_blocks: most_overlapped, most_copied, most_wait_s },
            ahead: Ahead { notice_s, most_s: terms.most_load_s },
            others: Others { backlog_s, waiting: f64::from(waiting), are_delayed },
            guard_s: model.guard_s(terms.guard_s, computed, prompt, chunk),
        };
        let queued = [queued.0, queued.1, queued.2];
        let block_bytes = terms.block_bytes;
        let situation = Situation { runs: &runs, block_bytes, queued, both_ends, question };
        let choice = if load_all { model.load_all(&situation) } else { model.choose(&situation) };
        Ok(PyLoadChoice { choice })
    }

    /// Returns everything that was learned.
    ///
    /// Returns:
    ///     ``compute`` and one entry for each tier, each with ``coefficients`` in seconds,
    ///     ``measured`` (how often), ``drifts`` (how often the work has changed), ``late_s``
    ///     (seconds by which most short work is late, however short), and ``low`` and ``high``
    ///     (factors between what is expected and what most measurements exceed, or do not exceed
    ///     but for ``late_s``).
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let model = self.model.lock();
        let compute =
            explained(model.compute().learned(), ["step_s", "token_s", "pair_s", "read_s"]);
        let mut all = json!({ "compute": compute });
        for tier in BlockTier::ALL {
            let learned = model.tier(tier).learned();
            all[tier.name()] = explained(learned, ["latency_s", "byte_s"]);
        }
        to_python(py, &all)
    }
}
