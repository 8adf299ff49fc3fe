//! What the device gets for one call of the op.

/// Arrays in one upload: lifted queries, their bias, resident masses, the control block.
pub(super) struct Request {
    pub bytes: Vec<u8>,
    /// Where each starts.
    pub starts: [u64; 4],
}

/// Arrays start at multiples of this, so that they are read 16 bytes at a time.
const ALIGN: usize = 256;

impl Request {
    pub(super) fn new(parts: [&[u8]; 4]) -> Self {
        let mut bytes = Vec::with_capacity(parts.iter().map(|p| p.len().next_multiple_of(ALIGN)).sum());
        let starts = parts.map(|part| {
            let start = bytes.len() as u64;
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
            start
        });
        Self { bytes, starts }
    }

    /// As it lies at this address.
    pub(super) fn at(self, base: u64) -> Self {
        Self { starts: self.starts.map(|start| base + start), ..self }
    }
}
