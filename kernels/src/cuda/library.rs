//! Finding CUDA's libraries where the loader does not look.
//!
//! The bindings open libraries by bare name only. A library that is loaded already is found under its bare name too, so
//! opening it by its full path first is enough. Handles are leaked: unloading a driver is not safe.

use std::path::{Path, PathBuf};

/// Of the libraries that Oasis uses.
pub(super) struct Libraries {
    /// Where cuBLASLt was found, if it was.
    pub cublas_lt: bool,
}

const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
const NVRTC: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];
const CUBLAS_LT: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

impl Libraries {
    /// Opens what is there; `Err` names what is missing and where it was looked for.
    pub fn open() -> Result<Self, String> {
        let folders = folders();
        open(&DRIVER, &folders);
        // SAFETY: tries to open a library; nothing else is called in it.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err("no NVIDIA driver (libcuda.so.1) on this machine; use --backend cpu".into());
        }
        open(&NVRTC, &folders);
        // SAFETY: as above.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            return Err(format!(
                "no NVRTC (libnvrtc.so.13), CUDA's compiler library: `pip install nvidia-cuda-nvrtc`, or name its folder \
                 in OASIS_CUDA_DIRS; looked on the loader's path and in {}",
                list(&folders)
            ));
        }
        open(&CUBLAS_LT, &folders);
        // SAFETY: as above.
        let cublas_lt = unsafe { cudarc::cublaslt::sys::is_culib_present() };
        Ok(Self { cublas_lt })
    }
}

/// Opens the compiler alone, which needs no driver; `Err` says where it was looked for.
pub(super) fn open_compiler() -> Result<(), String> {
    let folders = folders();
    open(&NVRTC, &folders);
    // SAFETY: tries to open a library; nothing else is called in it.
    match unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        true => Ok(()),
        false => Err(format!("no NVRTC; looked on the loader's path and in {}", list(&folders))),
    }
}

/// Each library, and its file: where the process has it open, else where it would be opened from.
pub(super) fn found() -> Vec<(&'static str, Option<PathBuf>)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let opened = |names: &[&str]| {
        let mut files = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
        let of =
            |file: &PathBuf| file.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
        // The file's own name has the full version behind that of the link.
        files.find(|f| names.iter().any(|n| of(f).starts_with(n)))
    };
    let folders = folders();
    let there = |names: &[&str]| {
        let all = folders.iter().flat_map(|f| names.iter().map(move |n| f.join(n)));
        all.into_iter().find(|p| p.exists())
    };
    let each = [("libcuda", &DRIVER), ("libnvrtc", &NVRTC), ("libcublasLt", &CUBLAS_LT)];
    each.into_iter().map(|(name, names)| (name, opened(names).or_else(|| there(names)))).collect()
}

fn list(folders: &[PathBuf]) -> String {
    folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Existing folders that may hold CUDA libraries: of toolkits, of the driver, of Python environments.
fn folders() -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = Vec::new();
    if let Some(dirs) = std::env::var_os("OASIS_CUDA_DIRS") {
        out.extend(std::env::split_paths(&dirs));
    }
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        out.extend(std::env::var_os(name).map(|root| Path::new(&root).join("lib64")));
    }
    let fixed = [
        "/usr/local/cuda/lib64",
        "/usr/local/cuda/targets/x86_64-linux/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/usr/lib/wsl/lib",
    ];
    out.extend(fixed.map(PathBuf::from));
    let mut roots: Vec<PathBuf> = Vec::new();
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        roots.extend(std::env::var_os(name).map(PathBuf::from));
    }
    roots.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for root in roots {
        let Ok(entries) = std::fs::read_dir(root.join("lib")) else { continue };
        for python in entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.path().join(packages).join("nvidia");
                out.extend(["cu13/lib", "cuda_nvrtc/lib", "cublas/lib"].map(|sub| nvidia.join(sub)));
            }
        }
    }
    out.retain(|folder| folder.is_dir());
    out
}

/// Opens the first of `names` that the loader finds by itself, else the first in the folders.
fn open(names: &[&str], folders: &[PathBuf]) {
    let of_loader = names.iter().map(PathBuf::from);
    let of_folders = folders.iter().flat_map(|f| names.iter().map(move |n| f.join(n))).filter(|p| p.exists());
    for path in of_loader.chain(of_folders) {
        if !load(&path) {
            continue;
        }
        // NVRTC opens its builtins by bare name; its wheel does not say where they are.
        let beside = path.parent().filter(|p| p.is_absolute()).and_then(|p| std::fs::read_dir(p).ok());
        for file in beside.into_iter().flatten().flatten() {
            let name = file.file_name();
            if names == NVRTC && name.to_string_lossy().starts_with("libnvrtc-builtins.so.") {
                load(&file.path());
            }
        }
        return;
    }
}

fn load(path: &Path) -> bool {
    // SAFETY: NVIDIA's libraries have no initialisers that ask anything of us.
    match unsafe { libloading::Library::new(path) } {
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}
