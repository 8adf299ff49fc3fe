//! Evictors, one a file.

pub mod belady;
pub mod fifo;
pub mod lfu;
pub mod lrs;
pub mod lru;
pub mod random;
pub mod sieve;

#[cfg(test)]
mod tests;
