//! Puts that come layer by layer.

use dalsegno_io::lend;
use dalsegno_store::{Error, LayerWriter, PutOutcome, Terms};

use crate::history::Part;
use crate::world::World;

impl World {
    /// Takes room for blocks that come layer by layer, and leaves it at that as long as the writer lives.
    ///
    /// # Panics
    ///
    /// If the store refuses.
    #[must_use]
    pub fn begin_layers(&self, part: &Part) -> LayerWriter {
        self.layer_writer(part).expect("nothing fails")
    }

    /// A writer for as many of the blocks as fit into one extent.
    fn layer_writer(&self, part: &Part) -> Result<LayerWriter, Error> {
        let id = self.namespaces[part.namespace].id();
        let count = part.hashes().len().min(self.style.extent_blocks(part.namespace));
        self.store().layer_writer(id, &part.chain, part.first, count, &Terms::default())
    }

    pub(crate) fn put_layers(&mut self, part: &Part, commit: bool) {
        self.oracle.put_begins(part.namespace, part.hashes());
        let namespace = &self.namespaces[part.namespace];
        let slice_bytes = namespace.layout().slice_bytes() as usize;
        let id = namespace.id();
        let writer = match self.layer_writer(part) {
            Ok(writer) => writer,
            Err(error) => return self.check_error(&error),
        };
        let wanted = &part.chain[writer.first()..][..writer.count()];
        let blocks: Vec<_> = wanted.iter().map(|hash| self.block(part.namespace, *hash)).collect();
        for layer in (0..namespace.layout().layers()).rev() {
            let at = layer as usize * slice_bytes;
            let stored = lend(|lender| {
                let slices =
                    blocks.iter().map(|block| vec![lender.shared(&block[at..][..slice_bytes])]);
                writer.store_layer(layer, slices.collect(), &Terms::default())
            });
            if let Err(error) = stored {
                return self.check_error(&error);
            }
        }
        if !commit {
            return;
        }
        let present = self.store().peek(id, wanted).expect("the store is open");
        match writer.commit(&Terms::default()) {
            Ok(_) => {
                // A block that was there already goes on leading to where it was.
                for (hash, _) in wanted.iter().zip(present).filter(|(_, present)| !present) {
                    self.oracle.put_ended(part.namespace, *hash, PutOutcome::Stored);
                }
            }
            Err(error) => self.check_error(&error),
        }
    }
}
