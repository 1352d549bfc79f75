//! Writes a run, table by table.

use std::sync::Arc;

use dalsegno_io::PageBuffer;

use crate::error::TableError;
use crate::lsm::maintenance::directory::IndexDirectory;
use crate::lsm::table::footer::table_file;
use crate::lsm::table::reader::Table;
use crate::lsm::table::writer::{TableOptions, TableWriter};
use crate::lsm::version::run::SortedRun;

/// What happens around the writes of a run.
#[derive(Clone, Copy)]
pub(crate) struct OutputHooks<'a> {
    /// Called with the bytes of each write before it; may wait.
    pub(crate) before_write: &'a dyn Fn(u64),
    /// Called after each table. An error ends the run.
    pub(crate) after_table: &'a dyn Fn() -> Result<(), TableError>,
}

/// A run that is being written. Its files are removed unless it is finished.
pub(crate) struct RunOutput<'a> {
    directory: &'a IndexDirectory,
    options: TableOptions,
    /// The run is split into tables of so many bytes.
    table_bytes: u64,
    hooks: OutputHooks<'a>,
    /// Memory for the next table.
    spare: PageBuffer,
    writer: Option<TableWriter<'a>>,
    numbers: Vec<u64>,
    tables: Vec<Arc<Table>>,
    is_finished: bool,
}

impl<'a> RunOutput<'a> {
    pub(crate) fn new(
        directory: &'a IndexDirectory,
        filter_bits: f64,
        table_bytes: u64,
        hooks: OutputHooks<'a>,
    ) -> Self {
        let options = TableOptions { filter_bits, request_bytes: directory.request_bytes };
        Self {
            directory,
            options,
            table_bytes,
            hooks,
            spare: PageBuffer::default(),
            writer: None,
            numbers: Vec::new(),
            tables: Vec::new(),
            is_finished: false,
        }
    }

    /// Adds an entry whose key is larger than those before.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        if self.writer.is_none() {
            let number = self.directory.take_number();
            self.numbers.push(number);
            let (files, store) = (self.directory.files.as_ref(), self.directory.store);
            let spare = std::mem::take(&mut self.spare);
            let writer = TableWriter::new(files, store, number, self.options).with_memory(spare);
            self.writer = Some(writer);
        }
        let writer = self.writer.as_mut().expect("just made");
        writer.add(key, value);
        if writer.estimated_bytes() >= self.table_bytes {
            self.close_table()?;
        }
        Ok(())
    }

    fn close_table(&mut self) -> Result<(), TableError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        (_, self.spare) = writer.finish(self.hooks.before_write)?;
        (self.hooks.after_table)()?;
        let number = *self.numbers.last().expect("a table that is written has a number");
        let table = Table::open(&self.directory.files, self.directory.store, number)?;
        self.tables.push(Arc::new(table));
        Ok(())
    }

    /// Writes the last table and returns the run.
    pub(crate) fn finish(mut self) -> Result<SortedRun, TableError> {
        self.close_table()?;
        self.is_finished = true;
        Ok(SortedRun::new(std::mem::take(&mut self.tables)))
    }
}

impl Drop for RunOutput<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            for number in &self.numbers {
                drop(self.directory.files.remove(&table_file(*number)));
            }
        }
    }
}
