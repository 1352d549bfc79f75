//! Puts that arrive layer by layer.

use dalsegno_core::ChainHash;
use dalsegno_io::lend;
use dalsegno_store::{Error, Keep, LayerSpan, LayerWriter, Store, Terms};

use crate::history::Part;
use crate::setup::Setup;

/// A writer for as many of the blocks as fit into one extent.
fn layer_writer(store: &Store, setup: &Setup, part: &Part) -> Result<LayerWriter, Error> {
    let count = part.hashes().len().min(setup.style.extent_blocks(part.namespace));
    let id = setup.id(part.namespace);
    let span = LayerSpan { chain: &part.chain, first: part.first, count };
    store.layer_writer(id, span, &Terms::default())
}

/// Puts all layers of the blocks, the last layer first. Returns the blocks that the commit added.
pub(crate) fn put_layers(
    store: &Store,
    setup: &Setup,
    part: &Part,
    commit: bool,
) -> Result<Vec<ChainHash>, Error> {
    let layout = setup.layout(part.namespace);
    let slice_bytes = layout.slice_bytes() as usize;
    let writer = layer_writer(store, setup, part)?;
    let wanted = &part.chain[writer.first()..][..writer.count()];
    let blocks: Vec<_> = wanted.iter().map(|hash| setup.block(part.namespace, *hash)).collect();
    for layer in (0..layout.layers()).rev() {
        let at = layer as usize * slice_bytes;
        lend(|lender| {
            let slices =
                blocks.iter().map(|block| vec![lender.shared(&block[at..][..slice_bytes])]);
            writer.store_layer(layer, slices.collect(), &Terms::default())
        })?;
    }
    if !commit {
        return Ok(Vec::new());
    }
    let present = store.peek(setup.id(part.namespace), wanted).expect("the store is open");
    writer.commit(Keep::Stored, &Terms::default())?;
    // The index still points a block that was present to its earlier place.
    let added = wanted.iter().zip(present).filter(|(_, present)| !present);
    Ok(added.map(|(hash, _)| *hash).collect())
}
