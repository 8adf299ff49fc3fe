//! The kernels' machine code: compiled by NVRTC for the device at hand, kept on disk.

use cudarc::nvrtc::{result, sys};
use oasis_core::{Error, Result};
use sha2::{Digest, Sha256};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

/// A source file: its name in messages, and its text.
pub(crate) type Source = (&'static str, &'static str);

const PRELUDE: Source = ("prelude.cuh", include_str!("prelude.cuh"));

/// Kernels that hang on no policy.
pub(super) const MAIN: &[Source] = &[
    ("embed.cu", include_str!("../ops/embed.cu")),
    ("rms_norm.cu", include_str!("../ops/rms_norm.cu")),
    ("swiglu.cu", include_str!("../ops/swiglu.cu")),
    ("rope.cu", include_str!("../ops/rope.cu")),
    ("tail.cu", include_str!("../ops/tail.cu")),
    ("seal.cu", include_str!("../ops/seal.cu")),
    ("fetch.cu", include_str!("../ops/fetch.cu")),
    ("fill.cu", include_str!("../ops/fill.cu")),
    ("sample.cu", include_str!("../ops/sample.cu")),
    ("gemm.cu", include_str!("../ops/gemm.cu")),
    ("gemm_stream.cu", include_str!("../ops/gemm_stream.cu")),
    ("attend.cu", include_str!("../ops/attend.cu")),
    ("attend_mma.cu", include_str!("../ops/attend_mma.cu")),
    ("prefill_attend.cu", include_str!("../ops/prefill_attend.cu")),
];

/// A program as the compiler gets it.
pub(super) struct Program {
    source: String,
    options: Vec<String>,
}

impl Program {
    /// The prelude, `code` and `sources` for compute capability `major.minor`; `defines` come before everything.
    pub fn new(
        (major, minor): (i32, i32),
        sources: &[Source],
        code: &str,
        defines: &[(&str, String)],
    ) -> Self {
        let mut source: String =
            defines.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        let policy = [("policy.cu", code)];
        let parts = std::iter::once(&PRELUDE).chain(&policy).chain(sources);
        source.extend(parts.map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")));
        let mut options = vec![format!("--gpu-architecture=sm_{major}{minor}"), "--std=c++17".to_owned()];
        if !code.is_empty() {
            // What a policy computes must be what its host twin computes.
            options.push("--fmad=false".into());
        }
        Self { source, options }
    }

    /// Compiles it, and gives what the compiler says of every kernel.
    pub fn log(mut self) -> Result<String> {
        self.options.push("--ptxas-options=-v".into());
        compile(&self.source, &self.options).map(|(_, log)| log)
    }
}

/// Machine code of `sources` and `code`, see [`Program::new`]: from the cache if it is there, else compiled and put there.
pub(super) fn machine_code(
    arch: (i32, i32),
    sources: &[Source],
    code: &str,
    defines: &[(&str, String)],
) -> Result<Vec<u8>> {
    let Program { source, options } = Program::new(arch, sources, code, defines);
    let file = cache_folder().map(|folder| folder.join(format!("{}.cubin", key(&source, &options))));
    if let Some(code) = file.as_deref().and_then(|file| std::fs::read(file).ok()).filter(|c| !c.is_empty()) {
        return Ok(code);
    }
    let (code, _) = compile(&source, &options)?;
    if let Some(file) = file {
        // A cache that cannot be written costs the next start some seconds, no more.
        keep(&file, &code).ok();
    }
    Ok(code)
}

fn key(source: &str, options: &[String]) -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two integers to write to; the library is there (checked when it was opened).
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    let mut hash = Sha256::new();
    for part in [source, &options.join(" "), &format!("{major}.{minor}")] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `$OASIS_CACHE`, else `oasis/kernels` in the user's cache folder.
fn cache_folder() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = || var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    var("OASIS_CACHE")
        .or_else(|| user().map(|cache| cache.join("oasis")))
        .map(|folder| folder.join("kernels"))
}

/// Writes beside, then renames, so that nobody reads half a file.
fn keep(file: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let beside = file.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&beside, code)?;
    std::fs::rename(&beside, file)
}

/// Machine code of a program, and the compiler's log.
fn compile(source: &str, options: &[String]) -> Result<(Vec<u8>, String)> {
    let failed = |what: String| Error::Backend(format!("NVRTC ({}): {what}", options.join(" ")));
    let text = CString::new(source).map_err(|e| failed(e.to_string()))?;
    let program = result::create_program(&text, Some(c"oasis.cu")).map_err(|e| failed(e.to_string()))?;
    // SAFETY: the program is alive until it is destroyed at the end of this block, and buffers have the sizes asked for.
    unsafe {
        let done = result::compile_program(program, options);
        let log = result::get_program_log(program).unwrap_or_default();
        let log = if log.is_empty() { c"" } else { CStr::from_ptr(log.as_ptr()) };
        let log = log.to_string_lossy().into_owned();
        let code = match done {
            Ok(()) => cubin(program).map_err(failed),
            Err(error) => Err(failed(format!("{error:?}\n{log}"))),
        };
        result::destroy_program(program).ok();
        code.map(|code| (code, log))
    }
}

/// # Safety
/// `program` was compiled.
unsafe fn cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, String> {
    let mut bytes = 0;
    // SAFETY: as promised; the buffer has the size asked for.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &mut bytes).result().map_err(|e| e.to_string())?;
        let mut code = vec![0_u8; bytes];
        sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result().map_err(|e| e.to_string())?;
        Ok(code)
    }
}
