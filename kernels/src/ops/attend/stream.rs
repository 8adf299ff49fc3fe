//! Attention on tensor cores at the speed of its bytes: the launch of attend_stream.cu.

use crate::Cuda;
use crate::cuda::{Shape, TensorMap, arg, failed};
use cudarc::driver::sys;
use oasis_core::ops::{AttendArgs, CacheShape};
use oasis_core::{Error, Result};

/// The kernels' source; the width of a head is a definition, so that only what a model needs is compiled.
pub(crate) static STREAM_SOURCES: [(&str, &str); 3] = [
    ("attend_ring.cu", include_str!("../attend_ring.cu")),
    ("attend_sums.cu", include_str!("../attend_sums.cu")),
    ("attend_stream.cu", include_str!("../attend_stream.cu")),
];

/// Definitions for heads of 32 `width` coordinates.
pub(crate) fn defines(width: usize) -> [(&'static str, String); 1] {
    [("WIDTH", width.to_string())]
}

/// Kernels by the eights of queries that a thread block has: their number, and how many thread blocks a multiprocessor
/// holds by their registers. Four eights at once take twice as long as two passes, the second of which reads the L2.
const KERNELS: [(&str, usize, usize); 2] = [("attend_stream_1", 1, 3), ("attend_stream_2", 2, 2)];

/// Most coordinates of a head.
const WIDEST: usize = 128;

/// Entries of a split. A row's result hangs on it, so it hangs on nothing but the number of a pool's slots.
fn split_entries(_slots: usize) -> usize {
    32
}

/// Consumers of a thread block, and its threads.
const WAYS: usize = 4;
const THREADS: u32 = 32 * (WAYS as u32 + 1);

/// Tokens of a tile.
const TILE: usize = 16;

/// Shared memory that every thread block loses to the system, and what more than two blocks leave each other.
const RESERVED: usize = 1 << 10;

/// `Stream` of attend_ring.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Stream {
    q: u64,
    slots: u64,
    tail: u64,
    entries: u64,
    entry_count: u64,
    first: u64,
    committed: u64,
    ancestors: u64,
    part: u64,
    lse: u64,
    out: u64,
    tickets: u64,
    heads: u32,
    kv_heads: u32,
    pools: u32,
    slot_count: u32,
    tail_tokens: u32,
    block_tokens: u32,
    splits: u32,
    split_entries: u32,
    query_tiles: u32,
    stages: u32,
    scale: f32,
}

/// `Maps` of attend_stream.cu.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Maps {
    slots: TensorMap,
    tail: TensorMap,
}

/// Whether these kernels do it: whole tiles of whole parts of a row.
pub(super) fn fits(shape: &CacheShape) -> bool {
    let d = shape.block.head_dim;
    shape.block.tokens.is_multiple_of(TILE) && d.is_multiple_of(32) && d <= WIDEST
}

/// Bytes of a thread block's shared memory beside the stages, and of a stage with its barriers: as in `divide` of
/// attend_stream.cu.
fn shared_bytes(d: usize, eights: usize) -> (usize, usize) {
    let sums = 4 * WAYS * (d + 4) * size_of::<f32>() + 128;
    let queries = if eights > 1 { eights * 8 * d * 2 } else { 0 };
    let items = 2 * (32 * 4 + 72) + 32;
    (RESERVED + sums + queries + items, 2 * TILE * d * 2 + 16)
}

/// Stages of a consumer, and thread blocks of a multiprocessor.
fn stages(
    d: usize,
    eights: usize,
    blocks: usize,
    per_multiprocessor: usize,
    per_block: usize,
) -> (usize, usize) {
    let (fixed, stage) = shared_bytes(d, eights);
    let of = |blocks: usize| {
        let room = (per_multiprocessor / blocks).saturating_sub(RESERVED).min(per_block);
        (room.saturating_sub(fixed) / (WAYS * stage)).min(255)
    };
    // Two stages each at least, or nothing is on its way while a tile is consumed.
    let blocks = (1..=blocks).rev().find(|&blocks| of(blocks) >= 2).unwrap_or(1);
    (of(blocks), blocks)
}

/// Rows of `d` coordinates in boxes of a tile's rows; nothing on devices that have no copy engine for it.
fn map(cuda: &Cuda, address: u64, rows: usize, d: usize) -> Result<TensorMap> {
    if cuda.gpu.capability.0 < 9 {
        return Ok(TensorMap::none());
    }
    TensorMap::whole_rows(address, [rows, d], TILE)
}

/// Rows of all slots and of all tails of a layer; the copy engine counts them in 31 bits.
fn rows(shape: &CacheShape) -> Result<(usize, usize)> {
    let slots = shape.pools() * shape.slots * 2 * shape.block.tokens;
    let tail = shape.pools() * 2 * shape.tail_tokens;
    let most = i32::MAX as usize;
    if slots > most || tail > most {
        return Err(Error::Capacity(format!(
            "attend: {slots} rows of keys and values in a layer's slots; the most is {most}: use a smaller batch or budget"
        )));
    }
    Ok((slots, tail))
}

/// Launches the kernel for the most queries that a pool of this step has.
pub(super) fn launch(cuda: &mut Cuda, args: AttendArgs<'_, Cuda>) -> Result<()> {
    let (g, shape, table) = (args.geometry, args.shape, args.rows);
    let d = g.head_dim;
    let most = table.host_first.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
    let queries = most * g.group();
    if queries == 0 {
        return Ok(());
    }
    let &(name, eights, blocks) =
        KERNELS.iter().find(|kernel| queries <= 8 * kernel.1).unwrap_or(&KERNELS[KERNELS.len() - 1]);
    let query_tiles = queries.div_ceil(8 * eights);
    let splits = shape.slots.div_ceil(split_entries(shape.slots)).max(1);
    let places = shape.pools() * query_tiles;
    let attribute =
        |which| cuda.gpu.context.attribute(which).map_err(failed("shared memory")).map(|n| n as usize);
    let per_multiprocessor =
        attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
    let per_block =
        attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    // With less than two rounds of items, fewer thread blocks with longer rings end more evenly. Results do not hang on it.
    let blocks = if places * splits < 2 * blocks * cuda.gpu.multiprocessors { blocks.min(2) } else { blocks };
    let (stages, blocks) = stages(d, eights, blocks, per_multiprocessor, per_block);
    let (fixed, stage) = shared_bytes(d, eights);
    let (slot_rows, tail_rows) = rows(shape)?;
    let stream = Stream {
        q: args.q.at(0),
        slots: args.slots.at(0),
        tail: args.tail.at(0),
        entries: args.entries.at(0),
        entry_count: args.entry_count.at(0),
        first: table.first.at(0),
        committed: table.tail.at(0),
        ancestors: table.ancestors.at(0),
        part: cuda.scratch(0, places * splits * 8 * eights * (d + 4) * size_of::<f32>())?,
        lse: args.block_lse.map_or(0, |lse| lse.at(0)),
        out: args.out.at(0),
        // Zero when it is new, and the kernel leaves zeros.
        tickets: cuda.scratch(Cuda::TICKETS, (2 + places) * size_of::<u32>())?,
        heads: g.heads as u32,
        kv_heads: g.kv_heads as u32,
        pools: shape.pools() as u32,
        slot_count: shape.slots as u32,
        tail_tokens: shape.tail_tokens as u32,
        block_tokens: shape.block.tokens as u32,
        splits: splits as u32,
        split_entries: split_entries(shape.slots) as u32,
        query_tiles: query_tiles as u32,
        stages: stages as u32,
        scale: g.scale() * std::f32::consts::LOG2_E,
    };
    let maps =
        Maps { slots: map(cuda, stream.slots, slot_rows, d)?, tail: map(cuda, stream.tail, tail_rows, d)? };
    let module = cuda.gpu.module(&STREAM_SOURCES, "", &defines(d / 32), &KERNELS.map(|k| k.0))?;
    let grid = [(places * splits).min(blocks * cuda.gpu.multiprocessors), 1, 1];
    let launch =
        Shape { grid, threads: THREADS, shared: (fixed + WAYS * stages * stage) as u32, early: true };
    // SAFETY: attend_stream.cu's arguments, of the lengths that `attend` checked; it compares entries with the number of
    // slots, and waits for its predecessor before it reads anything.
    unsafe { cuda.launch_as(module.kernel(name)?, name, launch, &mut [arg(&stream), arg(&maps)]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_room_for_two_stages_of_every_head() {
        // Shared memory of a multiprocessor and the most of a block: sm_80, sm_86, sm_90, sm_120.
        for (all, one) in [(167_936, 166_912), (102_400, 101_376), (233_472, 232_448), (102_400, 101_376)] {
            for d in [32, 64, 96, 128] {
                for (_, eights, blocks) in KERNELS {
                    let (stages, blocks) = stages(d, eights, blocks, all, one);
                    let (fixed, stage) = shared_bytes(d, eights);
                    assert!((2..256).contains(&stages), "{d} {eights}: {stages}");
                    assert!(fixed + WAYS * stages * stage <= one);
                    assert!(
                        blocks * (fixed + WAYS * stages * stage + RESERVED) <= all,
                        "{d} {eights} {blocks}"
                    );
                }
            }
        }
    }
}
