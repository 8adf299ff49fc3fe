//! Compiling every kernel for an architecture without such a device: what a machine without a GPU can check of them.

use super::chain::open;
use super::compile::{self, Program, Source};
use super::{bandwidth, library};
use crate::ops::attend;
use crate::ops::score::{NO_POLICY, SCORE_SOURCES, score_defines};
use oasis_core::chain::ChainSpec;
use oasis_core::geometry::BlockShape;
use oasis_core::policy::Summary;
use oasis_core::{Error, Result};

/// A kernel as it was compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// Its module.
    pub module: String,
    /// Its name.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes that a thread spills and loads again.
    pub spilled: u32,
    /// Bytes of a thread's stack; arrays that are indexed at run time lie there.
    pub stack: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
}

/// Modules that hang on no policy: one row each.
const FIXED: &[(&str, &[Source])] = &[("main", compile::MAIN), ("bandwidth", &bandwidth::SOURCES)];

/// The compiler, opened without a driver.
#[derive(Debug)]
pub struct KernelCheck(());

impl KernelCheck {
    /// Opens NVRTC.
    ///
    /// # Errors
    /// [`Error::Backend`] if it is not there.
    pub fn open() -> Result<Self> {
        library::open_compiler().map_err(Error::Backend)?;
        Ok(Self(()))
    }

    /// Compiles the modules that hang on no policy for compute capability `major.minor`.
    ///
    /// # Errors
    /// What the compiler refuses or warns of.
    pub fn fixed(&self, arch: (i32, i32)) -> Result<Vec<KernelReport>> {
        let mut all = Vec::new();
        for (name, sources) in FIXED {
            all.extend(self.module(name, arch, sources, "", &[])?);
        }
        for width in 1..=4 {
            let (name, defines) = (format!("attend {}", 32 * width), attend::defines(width));
            all.extend(self.module(&name, arch, &attend::STREAM_SOURCES, "", &defines)?);
        }
        Ok(all)
    }

    /// Compiles the score op for a summary's stored form; `group` query heads share a KV head.
    ///
    /// # Errors
    /// As [`KernelCheck::fixed`].
    pub fn score(
        &self,
        name: &str,
        arch: (i32, i32),
        summary: &dyn Summary,
        block: BlockShape,
        group: usize,
    ) -> Result<Vec<KernelReport>> {
        let defines = score_defines(summary, &summary.shape(block), block, group);
        self.module(name, arch, &SCORE_SOURCES, NO_POLICY, &defines)
    }

    /// Compiles a device's chain with its policies' twins.
    ///
    /// # Errors
    /// As [`KernelCheck::fixed`]; [`Error::Unsupported`] for a chain that the device would refuse.
    pub fn chain(&self, name: &str, arch: (i32, i32), spec: &ChainSpec<'_>) -> Result<Vec<KernelReport>> {
        if let Some(why) = open::refuse(spec) {
            return Err(Error::Unsupported(why));
        }
        let (code, defines) = open::program(spec);
        let sources: &[Source] = if spec.summary.is_some() { &open::RANKED } else { &open::UNRANKED };
        self.module(name, arch, sources, &code, &defines)
    }

    /// Compiles one module, as [`super::Gpu::module`] would.
    fn module(
        &self,
        name: &str,
        arch: (i32, i32),
        sources: &[Source],
        code: &str,
        defines: &[(&str, String)],
    ) -> Result<Vec<KernelReport>> {
        let log = Program::new(arch, sources, code, defines).log()?;
        let named = |what: String| Error::Backend(format!("module {name}, sm_{}{}: {what}", arch.0, arch.1));
        if let Some(line) = log.lines().find(|l| l.to_lowercase().contains("warning")) {
            return Err(named(format!("{line}\n{log}")));
        }
        let kernels = parse(name, &log);
        if kernels.is_empty() {
            return Err(named(format!("no kernel in the compiler's report\n{log}")));
        }
        Ok(kernels)
    }
}

/// Reads what `--ptxas-options=-v` prints of each kernel.
fn parse(module: &str, log: &str) -> Vec<KernelReport> {
    let mut all: Vec<KernelReport> = Vec::new();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            let module = module.to_owned();
            all.push(KernelReport { module, kernel, registers: 0, spilled: 0, stack: 0, shared: 0 });
        }
        let Some(last) = all.last_mut() else { continue };
        if line.contains("Function properties for") && !line.contains(&last.kernel) {
            // A device function that was not inlined: its stack is its own line's.
            continue;
        }
        let before = |what: &str| {
            let text = line.split(what).next().filter(|t| t.len() < line.len())?;
            text.rsplit([' ', ',']).find(|t| !t.is_empty())?.parse::<u32>().ok()
        };
        let take = |at: &mut u32, what: &str| *at = before(what).map_or(*at, |n| n.max(*at));
        take(&mut last.registers, " registers");
        take(&mut last.stack, " bytes stack frame");
        take(&mut last.spilled, " bytes spill stores");
        take(&mut last.shared, " bytes smem");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compilers_report_is_read() {
        let log = "ptxas info    : 11 bytes gmem\n\
                   ptxas info    : Compiling entry function 'embed' for 'sm_90'\n\
                   ptxas info    : Function properties for embed\n    \
                   8 bytes stack frame, 4 bytes spill stores, 6 bytes spill loads\n\
                   ptxas info    : Used 32 registers, used 1 barriers, 132 bytes smem, 560 bytes cmem[0]\n\
                   ptxas info    : Compiling entry function 'rope' for 'sm_90'\n\
                   ptxas info    : Used 40 registers\n";
        let kernel = |kernel: &str, registers, spilled, stack, shared| KernelReport {
            module: "main".into(),
            kernel: kernel.into(),
            registers,
            spilled,
            stack,
            shared,
        };
        assert_eq!(parse("main", log), [kernel("embed", 32, 4, 8, 132), kernel("rope", 40, 0, 0, 0)]);
        assert!(parse("main", "").is_empty());
    }
}
