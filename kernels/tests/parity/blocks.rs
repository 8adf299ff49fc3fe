//! Copies of blocks and tails: exact, and the host sees them.

use super::*;
use oasis_core::geometry::BlockShape;
use oasis_core::ids::NONE;
use oasis_core::ops::{CacheShape, Fetch, Memory, Move, TailMove};
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use std::sync::Arc;

const SEQS: usize = 3;
const HEADS: usize = 2;

/// Sizes whose chunks are whole 16 bytes, and sizes whose are not.
const BLOCKS: [BlockShape; 4] = [
    BlockShape { tokens: 16, head_dim: 128 },
    BlockShape { tokens: 16, head_dim: 64 },
    BlockShape { tokens: 8, head_dim: 96 },
    BlockShape { tokens: 4, head_dim: 3 },
];

fn shape(block: BlockShape) -> CacheShape {
    CacheShape { seqs: SEQS, kv_heads: HEADS, slots: 5, tail_tokens: block.tokens + 7, blocks: 20, block }
}

/// Two layers, four blocks a prompt.
fn store<B: Backend>(b: &mut B, block: BlockShape, seed: u64) -> HostStore<B> {
    let layout = ExtentLayout { layers: 2, kv_heads: HEADS, blocks: 4, block };
    let mut random = Random::new(seed);
    let mut prompt = || {
        let mut extent = Extent::new(b, layout).unwrap();
        extent.data.copy_from_slice(&random.bf16(layout.elems()));
        Arc::new(extent)
    };
    HostStore::new((0..SEQS).map(|_| prompt()).collect(), 2)
}

fn chunks<B: Backend>(store: &HostStore<B>) -> Vec<u16> {
    let of = |s: usize| {
        let places = (0..2).flat_map(move |l| (0..HEADS).map(move |h| (l, h)));
        (0..store.blocks(s))
            .flat_map(move |b| places.clone().flat_map(move |(l, h)| bits(store.chunk(l, s, b, h))))
    };
    (0..SEQS).flat_map(of).collect()
}

#[test]
fn fetch() {
    let Some((mut cpu, mut cuda)) = devices("fetch") else { return };
    fn run<B: Backend>(b: &mut B, block: BlockShape, moves: &[Move]) -> (Option<u64>, Vec<u16>) {
        let shape = shape(block);
        let store = store(b, block, 21);
        let mut slots = b.upload(&poison16(shape.slot_elems())).unwrap();
        let moved = b.fetch(&shape, 1, &store, moves, &mut slots).ok();
        (moved, bits(&all(b, &slots)))
    }
    for block in BLOCKS {
        for moves in [&[][..], &[[3, 2, 1]], &[[0, 0, 2], [2, 3, 0], [5, 3, 4], [5, 1, 0], [1, 2, 3]]] {
            let (got, want) = (run(&mut cuda, block, moves), run(&mut cpu, block, moves));
            assert!(got == want, "{block:?}, {moves:?}");
            assert_eq!(got.0, Some((moves.len() * block.bytes()) as u64));
        }
        for bad in [[6, 0, 0], [0, 4, 0], [0, 0, 5]] {
            assert_eq!(run(&mut cuda, block, &[bad]).0, None, "{bad:?}");
        }
    }
}

#[test]
fn append_and_compact() {
    let Some((mut cpu, mut cuda)) = devices("append and compact") else { return };
    fn run<B: Backend>(b: &mut B, block: BlockShape, moves: &[TailMove]) -> (bool, Vec<u16>) {
        let shape = shape(block);
        let mut random = Random::new(22);
        let rows = table(b, &[3, 0, 5], &[2, 0, block.tokens as u32 - 1], 1);
        let width = HEADS * block.head_dim;
        let (k, v) = (b.upload(&random.bf16(8 * width)).unwrap(), b.upload(&random.bf16(8 * width)).unwrap());
        let mut tail = b.upload(&poison16(shape.tail_elems())).unwrap();
        b.append(&shape, &rows, &k, &v, &mut tail).unwrap();
        let done = b.compact(&shape, moves, &mut tail).is_ok();
        (done, bits(&all(b, &tail)))
    }
    for block in BLOCKS {
        // Chains of moves: what is written first is read later.
        for moves in
            [&[][..], &[[0, 4, 2]], &[[0, 2, 3], [0, 3, 0], [2, 5, 1], [0, 4, 3], [2, 1, 2], [2, 6, 5]]]
        {
            let (got, want) = (run(&mut cuda, block, moves), run(&mut cpu, block, moves));
            assert!(got == want && got.0, "{block:?}, {moves:?}");
        }
        for bad in [[3, 0, 0], [0, block.tokens as u32 + 7, 0], [0, 0, block.tokens as u32 + 7]] {
            assert!(!run(&mut cuda, block, &[bad]).0);
        }
    }
}

#[test]
fn pack() {
    let Some((mut cpu, mut cuda)) = devices("pack") else { return };
    fn run<B: Backend>(b: &mut B, block: BlockShape, blocks: usize) -> Vec<u16> {
        let layout = ExtentLayout { layers: 2, kv_heads: HEADS, blocks: 4, block };
        let mut random = Random::new(23);
        let n = (4 * block.tokens + 3) * HEADS * block.head_dim;
        let (k, v) = (b.upload(&random.bf16(n)).unwrap(), b.upload(&random.bf16(n)).unwrap());
        let mut extent = Extent::new(b, layout).unwrap();
        extent.data.fill(bf16::NAN);
        b.pack(&layout, 1, blocks, &k, &v, &mut extent.data).unwrap();
        assert!(b.pack(&layout, 2, blocks, &k, &v, &mut extent.data).is_err());
        bits(&extent.data)
    }
    for block in BLOCKS {
        for blocks in [0, 1, 4] {
            assert!(run(&mut cuda, block, blocks) == run(&mut cpu, block, blocks), "{blocks} of {block:?}");
        }
    }
}

#[test]
fn seal_grow_and_fetch_again() {
    let Some((mut cpu, mut cuda)) = devices("seal") else { return };
    fn run<B: Backend>(b: &mut B, block: BlockShape) -> [Vec<u16>; 3] {
        let shape = shape(block);
        let mut store = store(b, block, 24);
        let mut slots = b.upload(&poison16(shape.slot_elems())).unwrap();
        for step in 0..5 {
            let tail = b.upload(&Random::new(30 + step).bf16(shape.tail_elems())).unwrap();
            for layer in 0..2 {
                // One growth a step, of one sequence.
                let seq = step as usize % SEQS;
                let id = if layer == 0 { store.grow(b, seq).unwrap() } else { store.blocks(seq) - 1 };
                let slots_of = [[NONE, 2], [4, 0]][layer];
                b.seal(&shape, layer, seq, id, &slots_of, &tail, &mut store, &mut slots).unwrap();
            }
        }
        let sealed = bits(&all(b, &slots));
        let moves = [[0, 5, 1], [3, 5, 3], [5, 4, 0]];
        b.fetch(&shape, 1, &store, &moves, &mut slots).unwrap();
        [sealed, bits(&all(b, &slots)), chunks(&store)]
    }
    for block in BLOCKS {
        assert!(run(&mut cuda, block) == run(&mut cpu, block), "{block:?}");
    }
}

#[test]
fn many_moves_of_a_large_store() {
    let Some((_, mut cuda)) = devices("fetch, large") else { return };
    let block = BlockShape { tokens: 16, head_dim: 128 };
    let layout = ExtentLayout { layers: 1, kv_heads: 8, blocks: 1024, block };
    let mut extent = Extent::new(&cuda, layout).unwrap();
    let mut state = 1_u32;
    for x in &mut extent.data[..] {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *x = bf16::from_bits((state >> 16) as u16);
    }
    let store = HostStore::new(vec![Arc::new(extent)], 1);
    let shape = CacheShape { seqs: 1, kv_heads: 8, slots: 900, tail_tokens: 24, blocks: 1024, block };
    let mut slots = cuda.alloc::<bf16>(shape.slot_elems()).unwrap();
    let moves: Vec<Move> = (0..8)
        .flat_map(|pool| (0..900).map(move |i| [pool, (i * 7 + pool) % 1024, (i * 11) % 900]))
        .collect();
    let start = std::time::Instant::now();
    let bytes = cuda.fetch(&shape, 0, &store, &moves, &mut slots).unwrap();
    let got = all(&mut cuda, &slots);
    println!("fetched {} MiB, and read them back, in {:?}", bytes >> 20, start.elapsed());
    for [pool, from, slot] in moves.iter().map(|m| m.map(|x| x as usize)) {
        let at = (pool * 900 + slot) * block.chunk();
        assert!(bits(&got[at..at + block.chunk()]) == bits(store.chunk(0, 0, from, pool)));
    }
}
