//! Rows of the embedding table.

use super::need;
use crate::cuda::{CudaBuf, arg};
use crate::memory::CpuBuf;
use crate::simd::Widen;
use crate::team::Parts;
use crate::{Cpu, Cuda};
use half::bf16;
use oasis_core::ops::Embed;
use oasis_core::{Error, Result};

/// Widening is exact.
pub const TOLERANCE: f64 = 0.0;

impl Embed for Cpu {
    fn embed(
        &mut self,
        table: &CpuBuf<bf16>,
        tokens: &CpuBuf<u32>,
        rows: usize,
        hidden: usize,
        out: &mut CpuBuf<f32>,
    ) -> Result<()> {
        need("embed", "tokens", tokens.len(), rows)?;
        need("embed", "out", out.len(), rows * hidden)?;
        let vocab = table.len() / hidden.max(1);
        if let Some(&token) = tokens[..rows].iter().find(|&&t| t as usize >= vocab) {
            return Err(Error::Invariant(format!("embed: token {token} of a vocabulary of {vocab}")));
        }
        let to = Parts::new(&mut out[..rows * hidden]);
        self.team.run(rows, rows * hidden, |_, r| {
            let from = &table[tokens[r] as usize * hidden..][..hidden];
            // SAFETY: row r is this task's.
            self.level.run(Widen { from, to: unsafe { to.slice(r * hidden, hidden) } });
        });
        Ok(())
    }
}

impl Embed for Cuda {
    /// As on the CPU, but a token outside the vocabulary gives a row of NaN: tokens stay on the device.
    fn embed(
        &mut self,
        table: &CudaBuf<bf16>,
        tokens: &CudaBuf<u32>,
        rows: usize,
        hidden: usize,
        out: &mut CudaBuf<f32>,
    ) -> Result<()> {
        need("embed", "tokens", tokens.len(), rows)?;
        need("embed", "out", out.len(), rows * hidden)?;
        let (vocab, width) = ((table.len() / hidden.max(1)) as u32, hidden as u32);
        let (from, ids, to) = (table.at(0), tokens.at(0), out.at(0));
        let mut args = [arg(&from), arg(&ids), arg(&vocab), arg(&width), arg(&to)];
        // SAFETY: embed.cu's arguments, of the lengths checked above; tokens are compared with `vocab`.
        unsafe { self.launch("embed", [rows, 1, 1], 256, &mut args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, poison};
    use oasis_core::ops::Memory;

    #[test]
    fn rows_of_the_table() {
        let mut cpu = Cpu::new(2);
        let mut random = Random::new(1);
        let table = random.bf16(50 * 37);
        let tokens: Vec<u32> = (0..9).map(|_| random.below(50) as u32).collect();
        let mut out = cpu.upload(&poison(9 * 37)).unwrap();
        let (t, ids) = (cpu.upload(&table).unwrap(), cpu.upload(&tokens).unwrap());
        cpu.embed(&t, &ids, 9, 37, &mut out).unwrap();
        for (i, x) in out.iter().enumerate() {
            assert_eq!(*x, table[tokens[i / 37] as usize * 37 + i % 37].to_f32());
        }
        let bad = cpu.upload(&[50_u32]).unwrap();
        assert!(cpu.embed(&t, &bad, 1, 37, &mut out).is_err());
    }
}
