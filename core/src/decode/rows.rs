//! The rows of a pass: newest tokens and drafts, laid out sequence by sequence.

use crate::Result;
use crate::ops::{Backend, RowTable};

/// One sequence's part of a pass.
pub(super) struct SeqRows<'a> {
    /// Tokens of its rows; empty: the sequence sits this pass out.
    pub tokens: &'a [u32],
    /// Parent of each row; the first is 0 and its own.
    pub parents: &'a [u32],
    /// RoPE position of row 0.
    pub position: usize,
    /// Committed tokens of its tail.
    pub tail: usize,
}

/// An empty table for at most `rows` rows of `seqs` sequences.
pub(super) fn table<B: Backend>(backend: &B, seqs: usize, rows: usize) -> Result<RowTable<B>> {
    Ok(RowTable {
        host_seq: Vec::with_capacity(rows),
        host_first: Vec::with_capacity(seqs + 1),
        host_tail: Vec::with_capacity(seqs),
        host_ancestors: Vec::with_capacity(rows),
        token: backend.alloc(rows)?,
        position: backend.alloc(rows)?,
        seq: backend.alloc(rows)?,
        first: backend.alloc(seqs + 1)?,
        tail: backend.alloc(seqs)?,
        ancestors: backend.alloc(rows)?,
    })
}

/// Depth of each row below row 0.
fn depth(parents: &[u32], row: usize) -> u32 {
    if row == 0 { 0 } else { 1 + depth(parents, parents[row] as usize) }
}

/// Rows on the path from row 0 to `row`, as bits.
fn ancestors(parents: &[u32], row: usize) -> u32 {
    let own = 1 << row;
    if row == 0 { own } else { own | ancestors(parents, parents[row] as usize) }
}

/// Fills the table.
pub(super) fn lay_out<'a, B: Backend>(
    backend: &mut B,
    table: &mut RowTable<B>,
    seqs: impl Iterator<Item = SeqRows<'a>>,
    scratch: &mut (Vec<u32>, Vec<u32>),
) -> Result<()> {
    table.host_seq.clear();
    table.host_first.clear();
    table.host_tail.clear();
    table.host_ancestors.clear();
    let (tokens, positions) = scratch;
    tokens.clear();
    positions.clear();
    for (s, seq) in seqs.enumerate() {
        table.host_first.push(tokens.len() as u32);
        table.host_tail.push(seq.tail as u32);
        for (r, &token) in seq.tokens.iter().enumerate() {
            tokens.push(token);
            positions.push(seq.position as u32 + depth(seq.parents, r));
            table.host_seq.push(s as u32);
            table.host_ancestors.push(ancestors(seq.parents, r));
        }
    }
    table.host_first.push(tokens.len() as u32);
    backend.write(&mut table.token, 0, tokens)?;
    backend.write(&mut table.position, 0, positions)?;
    backend.write(&mut table.seq, 0, &table.host_seq)?;
    backend.write(&mut table.first, 0, &table.host_first)?;
    backend.write(&mut table.tail, 0, &table.host_tail)?;
    backend.write(&mut table.ancestors, 0, &table.host_ancestors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_depths_and_ancestors() {
        // 0 ─ 1 ─ 3
        //  └─ 2
        let parents = [0, 0, 0, 1];
        assert_eq!((0..4).map(|r| depth(&parents, r)).collect::<Vec<_>>(), [0, 1, 1, 2]);
        assert_eq!((0..4).map(|r| ancestors(&parents, r)).collect::<Vec<_>>(), [0b1, 0b11, 0b101, 0b1011]);
    }
}
