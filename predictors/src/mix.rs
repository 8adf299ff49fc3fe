//! Numbers that depend on nothing but a seed and a few indices.

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection that spreads every input bit.
pub fn spread(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number from `seed` and `value`; chain calls for several values.
pub fn mix(seed: u64, value: u64) -> u64 {
    spread(seed.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ spread(value.wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

/// A number in [0, 1) from the upper 24 bits.
pub fn unit(x: u64) -> f32 {
    (x >> 40) as f32 / (1u64 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_their_order_both_count() {
        assert_ne!(mix(mix(1, 2), 3), mix(mix(1, 3), 2));
        assert_ne!(mix(1, 0), mix(0, 1));
        let mean = (0..4096).map(|i| unit(mix(7, i))).sum::<f32>() / 4096.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((0..4096).all(|i| (0.0..1.0).contains(&unit(mix(7, i)))));
    }
}
