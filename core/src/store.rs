//! The host store: the full KV cache of every sequence, in host memory, chunk for chunk laid out as slots.

use crate::geometry::BlockShape;
use crate::ops::Memory;
use crate::{Error, Result};
use half::bf16;
use std::sync::Arc;

/// The layout of an extent: `[layer][block][kv_head][K | V]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentLayout {
    /// Layers.
    pub layers: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Blocks of the extent.
    pub blocks: usize,
    /// A block.
    pub block: BlockShape,
}

impl ExtentLayout {
    /// Elements of the extent.
    pub fn elems(&self) -> usize {
        self.layers * self.blocks * self.kv_heads * self.block.chunk()
    }

    /// First element of a chunk; 64-bit, as extents pass 2³¹ elements.
    pub fn offset(&self, layer: usize, block: usize, head: usize) -> usize {
        debug_assert!(layer < self.layers && block < self.blocks && head < self.kv_heads);
        ((layer * self.blocks + block) * self.kv_heads + head) * self.block.chunk()
    }
}

/// A piece of host memory that holds whole blocks.
pub struct Extent<B: Memory + ?Sized> {
    /// Its layout.
    pub layout: ExtentLayout,
    /// Its memory.
    pub data: B::HostBuf<bf16>,
}

impl<B: Memory> Extent<B> {
    /// A zeroed extent.
    pub fn new(backend: &B, layout: ExtentLayout) -> Result<Self> {
        Ok(Self { layout, data: backend.alloc_host(layout.elems())? })
    }
}

/// The sealed blocks of one sequence: the prompt's, shared by all decodes that start from it, then its own.
pub struct SeqStore<B: Memory + ?Sized> {
    prompt: Arc<Extent<B>>,
    grown: Vec<Extent<B>>,
    blocks: usize,
}

/// The host store of a batch.
pub struct HostStore<B: Memory + ?Sized> {
    seqs: Vec<SeqStore<B>>,
    growth_blocks: usize,
}

impl<B: Memory> HostStore<B> {
    /// A store that starts from the prompts' extents; it grows by extents of `growth_blocks`.
    pub fn new(prompts: Vec<Arc<Extent<B>>>, growth_blocks: usize) -> Self {
        let seq =
            |prompt: Arc<Extent<B>>| SeqStore { blocks: prompt.layout.blocks, prompt, grown: Vec::new() };
        Self { seqs: prompts.into_iter().map(seq).collect(), growth_blocks: growth_blocks.max(1) }
    }

    /// Sequences.
    pub fn seqs(&self) -> usize {
        self.seqs.len()
    }

    /// Sealed blocks of a sequence.
    pub fn blocks(&self, seq: usize) -> usize {
        self.seqs[seq].blocks
    }

    /// Bytes of the sequence's own extents, the shared prompt not counted.
    pub fn grown_bytes(&self, seq: usize) -> usize {
        self.seqs[seq].grown.iter().map(|e| 2 * e.layout.elems()).sum()
    }

    /// Makes room for `blocks` more blocks than are sealed, so that a decode does not allocate.
    pub fn reserve(&mut self, backend: &B, seq: usize, blocks: usize) -> Result<()> {
        let s = &mut self.seqs[seq];
        let own = s.blocks - s.prompt.layout.blocks + blocks;
        while s.grown.len() * self.growth_blocks < own {
            let layout = ExtentLayout { blocks: self.growth_blocks, ..s.prompt.layout };
            s.grown.push(Extent::new(backend, layout)?);
        }
        Ok(())
    }

    /// Adds a block, in room that was reserved or is made now, and returns its id.
    pub fn grow(&mut self, backend: &B, seq: usize) -> Result<usize> {
        self.reserve(backend, seq, 1)?;
        self.seqs[seq].blocks += 1;
        Ok(self.seqs[seq].blocks - 1)
    }

    /// The extents of a sequence: the prompt's, then the grown ones, of [`HostStore::growth_blocks`] each.
    pub fn extents(&self, seq: usize) -> impl Iterator<Item = &Extent<B>> {
        let s = &self.seqs[seq];
        std::iter::once(&*s.prompt).chain(&s.grown)
    }

    /// Blocks of a grown extent.
    pub fn growth_blocks(&self) -> usize {
        self.growth_blocks
    }

    /// The extent that holds `block`, and the block's place in it.
    fn locate(&self, seq: usize, block: usize) -> (&Extent<B>, usize) {
        let s = &self.seqs[seq];
        assert!(block < s.blocks, "block {block} of sequence {seq} is not sealed ({} are)", s.blocks);
        match block.checked_sub(s.prompt.layout.blocks) {
            None => (&s.prompt, block),
            Some(own) => (&s.grown[own / self.growth_blocks], own % self.growth_blocks),
        }
    }

    /// A chunk, `[K: tokens × head_dim][V: …]`.
    pub fn chunk(&self, layer: usize, seq: usize, block: usize, head: usize) -> &[bf16] {
        let (extent, at) = self.locate(seq, block);
        let from = extent.layout.offset(layer, at, head);
        &extent.data[from..from + extent.layout.block.chunk()]
    }

    /// A chunk of a block that this store grew. The prompt's blocks are shared and never written.
    pub fn chunk_mut(&mut self, layer: usize, seq: usize, block: usize, head: usize) -> Result<&mut [bf16]> {
        let growth = self.growth_blocks;
        let s = &mut self.seqs[seq];
        let own = block
            .checked_sub(s.prompt.layout.blocks)
            .filter(|_| block < s.blocks)
            .ok_or_else(|| Error::Invariant(format!("block {block} of sequence {seq} is not writable")))?;
        let extent = &mut s.grown[own / growth];
        let from = extent.layout.offset(layer, own % growth, head);
        Ok(&mut extent.data[from..from + extent.layout.block.chunk()])
    }
}
