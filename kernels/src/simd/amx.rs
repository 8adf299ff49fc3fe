//! Tile products on AMX: bf16 in, f32 sums, 16 × 16 results an instruction.
//!
//! Only matrix products of many rows use it (prompts); its order of summation is its own. Products of bf16 are exact in
//! f32, so accuracy is that of f32 arithmetic; denormals count as zero.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles {
    use half::bf16;
    use std::arch::asm;
    use std::sync::OnceLock;

    /// 32 × 32 results; the first lines say what they start from.
    macro_rules! product {
        (($a:ident, $a_stride:ident, $b:ident, $b_next:ident, $steps:ident, $c:ident, $c_stride:ident),
         $($begin:literal,)*) => {
            // SAFETY: the tiles are configured on this thread, since there is an `Amx`; all rows are there by the caller's
            // promise; all tiles that are written are named as clobbers.
            unsafe {
                asm!(
                    $($begin,)*
                    "2:",
                    "tileloadd tmm4, [{a} + {stride}]",
                    "tileloadd tmm6, [{b} + {bs}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b2} + {bs}]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{a2} + {stride}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {a}, 64",
                    "add {a2}, 64",
                    "add {b}, 1024",
                    "add {b2}, 1024",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{c} + {cs}], tmm0",
                    "tilestored [{c} + {cs} + 64], tmm1",
                    "tilestored [{c2} + {cs}], tmm2",
                    "tilestored [{c2} + {cs} + 64], tmm3",
                    a = inout(reg) $a => _,
                    a2 = inout(reg) $a.byte_add(16 * $a_stride) => _,
                    b = inout(reg) $b => _,
                    b2 = inout(reg) $b_next => _,
                    steps = inout(reg) $steps => _,
                    stride = in(reg) $a_stride,
                    bs = in(reg) 64_usize,
                    c = in(reg) $c,
                    c2 = in(reg) $c.byte_add(16 * $c_stride),
                    cs = in(reg) $c_stride,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        };
    }

    /// The right to use AMX on this thread.
    #[derive(Debug)]
    pub(crate) struct Amx {
        /// Tile configuration is thread state: no `Send`.
        _thread: std::marker::PhantomData<*const ()>,
    }

    /// Palette 1: eight tiles of 16 rows of 64 bytes.
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    static CONFIG: Config = {
        let mut row_bytes = [0; 16];
        let mut rows = [0; 16];
        let mut i = 0;
        while i < 8 {
            row_bytes[i] = 64;
            rows[i] = 16;
            i += 1;
        }
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    };

    impl Amx {
        /// Whether CPU and system let this process use AMX (and AVX-512, which every such CPU has).
        pub(crate) fn available() -> bool {
            static AVAILABLE: OnceLock<bool> = OnceLock::new();
            *AVAILABLE.get_or_init(|| {
                let leaf7 = std::arch::x86_64::__cpuid_count(7, 0);
                let cpu = leaf7.edx >> 22 & 1 == 1 && leaf7.edx >> 24 & 1 == 1;
                cpu && is_x86_feature_detected!("avx512f") && permitted()
            })
        }

        /// Configures this thread's tiles, if the CPU has any.
        pub(crate) fn start() -> Option<Self> {
            if !Self::available() {
                return None;
            }
            // SAFETY: AMX is there and permitted; the configuration is valid and outlives the instruction.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
            Some(Self { _thread: std::marker::PhantomData })
        }

        /// C += A · B for a C of 32 × 32.
        ///
        /// # Safety
        /// `a`: 32 rows, `a_stride` bytes apart, of `32 · steps` bf16. `b`: `steps` tiles of 1 KiB, and as many from
        /// `b_next` on, each as [`super::pack_rows`] or [`super::pack_columns`] makes them: columns 0–15 and 16–31.
        /// `c`: 32 rows, `c_stride` bytes apart, of 32 floats, exclusively the caller's. `steps` is not 0.
        #[inline]
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn add_product(
            &self,
            a: *const bf16,
            a_stride: usize,
            b: *const bf16,
            b_next: *const bf16,
            steps: usize,
            c: *mut f32,
            c_stride: usize,
        ) {
            product!(
                (a, a_stride, b, b_next, steps, c, c_stride),
                "tileloadd tmm0, [{c} + {cs}]",
                "tileloadd tmm1, [{c} + {cs} + 64]",
                "tileloadd tmm2, [{c2} + {cs}]",
                "tileloadd tmm3, [{c2} + {cs} + 64]",
            );
        }

        /// C = A · B.
        ///
        /// # Safety
        /// As [`Amx::add_product`]; `c` need not be initialised.
        #[inline]
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn set_product(
            &self,
            a: *const bf16,
            a_stride: usize,
            b: *const bf16,
            b_next: *const bf16,
            steps: usize,
            c: *mut f32,
            c_stride: usize,
        ) {
            product!(
                (a, a_stride, b, b_next, steps, c, c_stride),
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
            );
        }
    }

    impl Drop for Amx {
        fn drop(&mut self) {
            // SAFETY: AMX is there; this thread's tiles hold nothing that anyone needs.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    /// Asks the kernel for tile state, once for the process.
    fn permitted() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const XTILEDATA: u64 = 18;
        let result: i64;
        // SAFETY: a system call that takes two numbers and touches no memory of ours; it clobbers rcx and r11.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XTILEDATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result == 0
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod tiles {
    use half::bf16;

    /// No AMX on this platform.
    #[derive(Debug)]
    pub(crate) enum Amx {}

    impl Amx {
        pub(crate) fn available() -> bool {
            false
        }

        pub(crate) fn start() -> Option<Self> {
            None
        }

        /// Never called.
        ///
        /// # Safety
        /// None needed.
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn add_product(
            &self,
            _: *const bf16,
            _: usize,
            _: *const bf16,
            _: *const bf16,
            _: usize,
            _: *mut f32,
            _: usize,
        ) {
            match *self {}
        }

        /// Never called.
        ///
        /// # Safety
        /// None needed.
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn set_product(
            &self,
            _: *const bf16,
            _: usize,
            _: *const bf16,
            _: *const bf16,
            _: usize,
            _: *mut f32,
            _: usize,
        ) {
            match *self {}
        }
    }
}

pub(crate) use tiles::Amx;

use half::bf16;

/// Rows and columns of a product.
pub(crate) const SIDE: usize = 32;

/// bf16 of a packed tile: 16 columns, 32 deep.
pub(crate) const TILE: usize = 512;

/// Packs columns given as rows: `from` holds up to 16 columns, `stride` elements apart, each `32 · steps` deep; the rest
/// of 16 is zero. `to` gets `steps` tiles, each `[16 pairs of the depth][16 columns][2]`.
pub(crate) fn pack_rows(from: &[bf16], stride: usize, columns: usize, steps: usize, to: &mut [bf16]) {
    for (step, tile) in to[..steps * TILE].chunks_exact_mut(TILE).enumerate() {
        if columns < 16 {
            tile.fill(bf16::ZERO);
        }
        for column in 0..columns {
            let source = &from[column * stride + step * 32..][..32];
            for (pair, two) in source.chunks_exact(2).enumerate() {
                tile[pair * 32 + 2 * column..][..2].copy_from_slice(two);
            }
        }
    }
}

/// Packs 16 columns that lie side by side: `from` holds up to 32 rows of the depth, `stride` elements apart, of 16
/// columns; rows behind `rows` count as zero. `to` is one tile.
pub(crate) fn pack_columns(from: &[bf16], stride: usize, rows: usize, to: &mut [bf16]) {
    for (pair, to) in to[..TILE].chunks_exact_mut(32).enumerate() {
        for half in 0..2 {
            let row = 2 * pair + half;
            for column in 0..16 {
                to[2 * column + half] = if row < rows { from[row * stride + column] } else { bf16::ZERO };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_close};

    #[test]
    fn tiles_add_the_product_of_rows_and_columns() {
        let Some(amx) = Amx::start() else {
            eprintln!("skipped: no AMX here");
            return;
        };
        let mut random = Random::new(40);
        let depth = 96;
        let (a, b, before) = (random.bf16(32 * depth), random.bf16(32 * depth), random.f32(32 * 40));
        let mut packed = vec![bf16::NAN; 2 * 3 * TILE];
        let (low, high) = packed.split_at_mut(3 * TILE);
        pack_rows(&b, depth, 16, 3, low);
        pack_rows(&b[16 * depth..], depth, 13, 3, high);
        // The same tiles from the transposed matrix.
        let transposed: Vec<bf16> = (0..depth * 32).map(|i| b[i % 32 * depth + i / 32]).collect();
        let mut tile = vec![bf16::NAN; TILE];
        for step in 0..3 {
            pack_columns(&transposed[step * 32 * 32..], 32, 32, &mut tile);
            assert_eq!(tile, low[step * TILE..][..TILE]);
        }
        let mut c = before.clone();
        // SAFETY: 32 rows of a, 3 tiles each of b, 32 rows of 40 floats.
        unsafe {
            amx.add_product(a.as_ptr(), 2 * depth, low.as_ptr(), high.as_ptr(), 3, c.as_mut_ptr(), 160);
        }
        let mut want: Vec<f64> = before.iter().map(|&x| x.into()).collect();
        for i in 0..32 {
            for j in 0..29 {
                let dot =
                    |k: usize| f64::from(a[i * depth + k].to_f32()) * f64::from(b[j * depth + k].to_f32());
                want[i * 40 + j] += (0..depth).map(dot).sum::<f64>();
            }
        }
        assert_close(c.iter().map(|&x| x.into()), &want, 1e-6);
        let mut only = vec![f32::NAN; 32 * 40];
        // SAFETY: as above.
        unsafe {
            amx.set_product(a.as_ptr(), 2 * depth, low.as_ptr(), high.as_ptr(), 3, only.as_mut_ptr(), 160);
        }
        for (i, (c, only)) in c.iter().zip(&only).enumerate().filter(|(i, _)| i % 40 < 32) {
            assert!((c - before[i] - only).abs() < 1e-4, "{i}");
        }
    }
}
