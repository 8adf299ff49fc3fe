//! Random draws that never change: a fixed stream cipher and arithmetic of our own, so that a new release of
//! a random number crate does not alter a single sample.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

/// A stream of draws.
pub(crate) struct Draw(ChaCha8Rng);

impl Draw {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"oasis draw\0");
        hash.update(seed.to_le_bytes());
        Self(ChaCha8Rng::from_seed(hash.finalize().into()))
    }

    /// A number of `0..n`. The bias is below n / 2^32; `n` = 0 gives 0.
    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.0.next_u32()) * u64::from(n)) >> 32) as u32
    }

    /// An index of `0..n`.
    pub fn index(&mut self, n: usize) -> usize {
        ((u128::from(self.0.next_u64()) * n as u128) >> 64) as usize
    }

    /// A number of [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `count` different numbers of `0..n` in random order; fewer if `n` is smaller.
    pub fn distinct(&mut self, n: u32, count: usize) -> Vec<u32> {
        let mut pool: Vec<u32> = (0..n).collect();
        let count = count.min(pool.len());
        for i in 0..count {
            let j = i + self.index(pool.len() - i);
            pool.swap(i, j);
        }
        pool.truncate(count);
        pool
    }

    /// 64 bits.
    pub fn wide(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }

    /// A decimal number of `digits` digits that does not begin with 0.
    pub fn number(&mut self, digits: u32) -> String {
        let low = 10u32.pow(digits - 1);
        (low + self.below(9 * low)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_in_range_and_spread() {
        let mut draw = Draw::new(7);
        let mut seen = [0usize; 10];
        for _ in 0..10_000 {
            seen[draw.below(10) as usize] += 1;
            assert!(draw.index(3) < 3);
            let u = draw.unit();
            assert!((0.0..1.0).contains(&u));
            let number = draw.number(5);
            assert!(number.len() == 5 && !number.starts_with('0'));
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
        assert_eq!(draw.below(0), 0);
    }

    #[test]
    fn distinct_numbers_are_distinct() {
        let mut numbers = Draw::new(1).distinct(127, 120);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 120);
        assert!(numbers.iter().all(|&x| x < 127));
        assert_eq!(Draw::new(1).distinct(3, 9).len(), 3);
    }

    #[test]
    fn a_shuffle_keeps_everything() {
        let mut items: Vec<u32> = (0..50).collect();
        Draw::new(2).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
        Draw::new(2).shuffle::<u8>(&mut []);
    }

    #[test]
    fn the_stream_is_pinned() {
        let mut draw = Draw::new(0);
        let first: Vec<u32> = (0..4).map(|_| draw.below(1000)).collect();
        assert_eq!(first, [689, 658, 686, 578]);
    }
}
