//! `oasis doctor`: what this machine offers, and what stands in the way.

use anyhow::Result;
use oasis_core::ops::{Backend, Memory};
use oasis_kernels::{Cuda, Measure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::report::{say, units};

/// Arguments of `oasis doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// As it should be, or a mere fact.
    Fact,
    /// Something works less well, or not at all.
    Warning,
}

/// One line of the report.
#[derive(Debug)]
struct Line {
    name: &'static str,
    value: String,
    level: Level,
}

fn fact(name: &'static str, value: impl Into<String>) -> Line {
    Line { name, value: value.into(), level: Level::Fact }
}

fn warning(name: &'static str, value: impl Into<String>) -> Line {
    Line { name, value: value.into(), level: Level::Warning }
}

/// Runs `oasis doctor`. Warnings do not fail it: everything but `fetch` works without what they name.
pub fn run(_args: &Args, _app: &crate::App) -> Result<ExitCode> {
    let lines = [
        fact("oasis", format!("{} for {}", env!("CARGO_PKG_VERSION"), target())),
        cpu(),
        cores(),
        simd(),
        numa(),
        memory(),
        locked_memory(),
        disk(),
        cache(),
        python(),
    ];
    let lines: Vec<Line> = lines.into_iter().chain(cuda()).collect();
    let mut out = String::new();
    for line in &lines {
        let mark = if line.level == Level::Warning { "!" } else { " " };
        out += &format!("{mark} {:<12} {}\n", line.name, line.value);
    }
    if lines.iter().any(|l| l.level == Level::Warning) {
        out += "lines marked `!` deserve a look\n";
    }
    say(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn target() -> String {
    format!("{} {}", std::env::consts::ARCH, std::env::consts::OS)
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The value of the first `key : value` line of a /proc file.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().filter_map(|l| l.split_once(':')).find(|(k, _)| k.trim() == key).map(|(_, v)| v.trim())
}

fn cpu() -> Line {
    let model = read("/proc/cpuinfo").and_then(|text| field(&text, "model name").map(str::to_owned));
    fact("CPU", model.unwrap_or_else(|| format!("{} (model unknown)", std::env::consts::ARCH)))
}

fn cores() -> Line {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let online = read("/proc/cpuinfo").map(|t| t.lines().filter(|l| l.starts_with("processor")).count());
    match online {
        Some(n) if n > usable => {
            fact("cores", format!("{usable} usable of {n} (affinity or a container limits them)"))
        }
        _ => fact("cores", format!("{usable}")),
    }
}

#[cfg(target_arch = "x86_64")]
fn simd_features() -> Vec<(&'static str, bool)> {
    vec![
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn simd_features() -> Vec<(&'static str, bool)> {
    Vec::new()
}

fn simd() -> Line {
    let features = simd_features();
    let has = |name| features.iter().any(|&(n, yes)| n == name && yes);
    let names: Vec<&str> = features.iter().filter(|(_, yes)| *yes).map(|(n, _)| *n).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    if has("avx512f") || (has("avx2") && has("fma")) {
        fact("SIMD", names)
    } else {
        warning(
            "SIMD",
            format!("{names}: the portable kernels run, several times slower than with AVX2 and FMA"),
        )
    }
}

fn numa() -> Line {
    let nodes = fs::read_dir("/sys/devices/system/node")
        .map(|dir| dir.flatten().filter(|e| is_node(&e.file_name().to_string_lossy())).count())
        .unwrap_or(0);
    match nodes {
        0 => fact("NUMA nodes", "unknown"),
        1 => fact("NUMA nodes", "1"),
        n => fact(
            "NUMA nodes",
            format!("{n}: pin the run to one (`numactl -N 0 -m 0 oasis ...`) for steady timings"),
        ),
    }
}

fn is_node(name: &str) -> bool {
    name.strip_prefix("node").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Bytes in a `/proc/meminfo` line.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    field(text, key)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn memory() -> Line {
    let text = read("/proc/meminfo").unwrap_or_default();
    let (Some(total), Some(free)) = (meminfo(&text, "MemTotal"), meminfo(&text, "MemAvailable")) else {
        return warning("memory", "unknown: no /proc/meminfo");
    };
    let value = format!("{}, {} available", units::bytes(total), units::bytes(free));
    // The quickstart with the bundled model stays below this.
    if free < 1 << 30 {
        return warning(
            "memory",
            format!("{value}: less than 1 GiB free, too little for a run of several workers"),
        );
    }
    fact("memory", value)
}

/// Soft limit of locked memory in `/proc/self/limits`.
fn lock_limit(limits: &str) -> Option<&str> {
    limits.lines().find_map(|l| l.strip_prefix("Max locked memory"))?.split_whitespace().next()
}

fn locked_memory() -> Line {
    let limits = read("/proc/self/limits").unwrap_or_default();
    match lock_limit(&limits) {
        None => fact("ulimit -l", "unknown"),
        Some("unlimited") => fact("ulimit -l", "unlimited"),
        Some(n) => {
            let size = n.parse().map(units::bytes).unwrap_or_else(|_| n.to_owned());
            fact("ulimit -l", format!("{size} (matters only to a GPU backend, which pins the host store)"))
        }
    }
}

fn free_space(path: &Path) -> Option<u64> {
    let at = path.ancestors().find(|p| p.exists())?;
    let stat = rustix::fs::statvfs(at).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

fn disk() -> Line {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    match free_space(&here) {
        None => warning("disk", format!("{}: free space unknown", here.display())),
        Some(free) if free < 1 << 28 => {
            warning("disk", format!("{} free at {}: records may not fit", units::bytes(free), here.display()))
        }
        Some(free) => fact("disk", format!("{} free at {}", units::bytes(free), here.display())),
    }
}

fn cache() -> Line {
    let dir = match crate::fetch::models_dir() {
        Ok(dir) => dir,
        Err(e) => return warning("cache", format!("{e:#}")),
    };
    let held: Vec<&str> = crate::fetch::REMOTES.iter().filter(|r| r.is_in(&dir)).map(|r| r.name).collect();
    let held = if held.is_empty() { "empty".to_owned() } else { format!("holds {}", held.join(", ")) };
    let Some(existing) = dir.ancestors().find(|p| p.exists()) else {
        return warning("cache", format!("{}: no such file system", dir.display()));
    };
    if rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_err() {
        return warning(
            "cache",
            format!("{}: {} is not writable; set XDG_CACHE_HOME", dir.display(), existing.display()),
        );
    }
    let free = free_space(&dir).map(|b| format!(", {} free", units::bytes(b))).unwrap_or_default();
    fact("cache", format!("{} ({held}{free})", dir.display()))
}

fn python() -> Line {
    let Some(python) = crate::fetch::python() else {
        return warning("Python", "none on the search path; only `oasis fetch` needs it");
    };
    match Command::new(&python).args(["-m", "pip", "--version"]).output() {
        Ok(out) if out.status.success() => {
            let said = String::from_utf8_lossy(&out.stdout);
            let pip = said.split(" from ").next().unwrap_or("pip").trim().to_owned();
            fact("Python", format!("{}, {pip}", python.display()))
        }
        _ => warning("Python", format!("{}, without pip; only `oasis fetch` needs it", python.display())),
    }
}

/// The GPU backend as a run would open it, what it measures, or what it lacks.
fn cuda() -> Vec<Line> {
    let mut lines = Vec::new();
    match Cuda::new(0) {
        Ok(mut device) => {
            lines.push(fact("CUDA backend", device.describe()));
            lines.push(fact("GPU", device.details()));
            lines.push(bandwidths(&mut device));
            lines.push(pinning(&device));
        }
        Err(lacks) => lines.push(fact("CUDA backend", format!("not usable, runs use the CPU: {lacks}"))),
    }
    for (library, path) in Cuda::libraries() {
        let path = path.map_or_else(|| "not found".to_owned(), |p| p.display().to_string());
        lines.push(fact(library, path));
    }
    lines
}

/// Some tenths of a second.
fn bandwidths(device: &mut Cuda) -> Line {
    let gb = |x: f64| format!("{} GB/s", units::significant(x / 1e9));
    match device.bandwidths() {
        Ok(b) => fact(
            "bandwidth",
            format!(
                "read {}, copy {}; host to device: gather of 8 KiB chunks {}, one copy {}; device to host {}",
                gb(b.device_read),
                gb(b.device_copy),
                gb(b.gather),
                gb(b.to_device),
                gb(b.to_host)
            ),
        ),
        Err(error) => warning("bandwidth", error.to_string()),
    }
}

/// The host store is pinned memory: what limits it, and whether a piece of it can be had.
fn pinning(device: &Cuda) -> Line {
    const PROBE: usize = 256 << 20;
    let free = device.room().map_or(0, |r| r.host);
    match device.alloc_host::<u8>(PROBE) {
        Ok(_) => fact(
            "pinning",
            format!(
                "works ({} tried); at most the {} available",
                units::bytes(PROBE as u64),
                units::bytes(free)
            ),
        ),
        Err(error) => warning("pinning", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_by_key() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: avx2\n";
        assert_eq!(field(cpuinfo, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(cpuinfo, "model"), None);
        let meminfo_text = "MemTotal:       16384 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(meminfo(meminfo_text, "MemTotal"), Some(16 << 20));
        assert_eq!(meminfo(meminfo_text, "SwapTotal"), None);
        assert_eq!(meminfo("MemTotal: many kB\n", "MemTotal"), None);
    }

    #[test]
    fn the_soft_lock_limit_is_found() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max locked memory         8388608              unlimited            bytes\n";
        assert_eq!(lock_limit(limits), Some("8388608"));
        assert_eq!(lock_limit(""), None);
    }

    #[test]
    fn names_of_nodes() {
        assert!(is_node("node0") && is_node("node12"));
        assert!(!is_node("node") && !is_node("online") && !is_node("nodes0"));
    }

    #[test]
    fn free_space_is_asked_of_the_nearest_folder_that_exists() {
        let temp = tempfile::tempdir().unwrap();
        assert!(free_space(&temp.path().join("not/yet/there")).is_some_and(|b| b > 0));
    }
}
