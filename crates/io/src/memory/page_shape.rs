//! Where the pages of an engine are in its buffers.

use dalsegno_core::{Error, Result};

/// Where the bytes of a page are in the buffer of a layer. All layers have the same shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageShape {
    /// Bytes from the start of a page to the start of the next one.
    pub stride: usize,
    /// The bytes of a page, in the order in which a slice has them: one part, or keys and values apart.
    pub parts: Vec<PagePart>,
    /// Pages that hold one block of a chain.
    pub pages_per_block: usize,
}

/// A contiguous range of each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePart {
    /// Offset in the buffer of the range of page 0.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl PageShape {
    /// Bytes of one layer of one block.
    #[must_use]
    pub fn slice_bytes(&self) -> usize {
        self.pages_per_block * self.parts.iter().map(|part| part.bytes).sum::<usize>()
    }

    /// Checks that `pages` pages are inside `buffer_bytes` bytes and do not overlap (invariant 1).
    pub(super) fn check(&self, pages: usize, buffer_bytes: usize) -> Result<()> {
        if self.pages_per_block == 0 || self.parts.is_empty() {
            return Err(Error::invalid("a block needs at least one page, and a page one part"));
        }
        let sum = |sum: usize, part: &PagePart| sum.checked_add(part.bytes);
        let page_bytes = self.parts.iter().try_fold(0, sum);
        if page_bytes.and_then(|bytes| bytes.checked_mul(self.pages_per_block)).is_none() {
            return Err(Error::invalid("a block of so many pages has no size"));
        }
        let before_last = pages.saturating_sub(1).checked_mul(self.stride);
        for PagePart { offset, bytes } in &self.parts {
            let end = before_last.and_then(|last| last.checked_add(*offset)?.checked_add(*bytes));
            if *bytes == 0 || end.is_none_or(|end| end > buffer_bytes) {
                let stride = self.stride;
                return Err(Error::invalid(format!(
                    "{bytes} bytes at {offset} of each of {pages} pages, {stride} bytes apart, are \
                     not in a buffer of {buffer_bytes} bytes"
                )));
            }
        }
        let mut parts = self.parts.clone();
        parts.sort_unstable_by_key(|part| part.offset);
        for (at, part) in parts.iter().enumerate() {
            let others = parts[at + 1..].iter();
            if part.bytes > self.stride
                || others.into_iter().any(|other| self.overlap(pages, part, other))
            {
                return Err(Error::invalid(format!(
                    "the {} bytes at {} of each page overlap with those of another page, {} bytes away",
                    part.bytes, part.offset, self.stride
                )));
            }
        }
        Ok(())
    }

    /// Whether two parts of any pages overlap; `second` begins behind `first` or at the same byte.
    fn overlap(&self, pages: usize, first: &PagePart, second: &PagePart) -> bool {
        let apart = second.offset - first.offset;
        if apart >= pages.saturating_sub(1) * self.stride + first.bytes {
            return false;
        }
        let within = apart % self.stride;
        within < first.bytes || within + second.bytes > self.stride
    }
}
