//! The shortest time that a step's bytes allow.
//!
//! Everything that a step must read from device memory at least once (the weights but the embedding table, attended K and V, the
//! candidates' summaries) over the read bandwidth measured in the same run; and what it copies from the host store over the gather
//! bandwidth. The two run beside each other, so the larger one is the floor. Activations, logits and the cost of launches are not
//! in it.

use super::record::{BandwidthRecord, StepBytes};

/// Seconds.
pub fn seconds(bytes: &StepBytes, rates: &BandwidthRecord) -> f64 {
    // What is fetched is written to device memory too.
    let device = bytes.weights + bytes.kv + bytes.summaries + bytes.fetched;
    (device / rates.device_read.max(1.0)).max(bytes.fetched / rates.gather.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_link_counts() {
        let rates = BandwidthRecord {
            device_read: 100.0,
            device_copy: 1.0,
            gather: 10.0,
            to_device: 1.0,
            to_host: 1.0,
        };
        let bytes = StepBytes { weights: 100.0, kv: 60.0, summaries: 30.0, fetched: 10.0 };
        assert_eq!(seconds(&bytes, &rates), 2.0);
        assert_eq!(seconds(&StepBytes { fetched: 50.0, ..bytes }, &rates), 5.0);
    }
}
