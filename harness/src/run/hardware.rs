//! NVIDIA's devices and the machine's NUMA nodes, as Linux tells them: known whether or not a run uses them.

use crate::record::{GpuRecord, HardwareRecord};
use std::fs;
use std::path::Path;

/// NVIDIA's number as a vendor, and the class of display controllers.
const NVIDIA: &str = "0x10de";
const DISPLAY: &str = "0x03";

/// What `proc` and `sys` below `root` (`/` but in tests) say. What they do not say is none or empty.
pub fn read(root: &Path) -> HardwareRecord {
    let nodes = entries(&root.join("sys/devices/system/node"));
    let devices = root.join("sys/bus/pci/devices");
    let gpus =
        entries(&devices).into_iter().filter_map(|address| gpu(root, &devices.join(&address), address));
    HardwareRecord {
        numa_nodes: nodes.iter().filter_map(|n| n.strip_prefix("node")?.parse::<u32>().ok()).count(),
        driver: driver(&root.join("proc/driver/nvidia/version")),
        gpus: gpus.collect(),
    }
}

/// Names in a folder, in order.
fn entries(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = all.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn line(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned()).filter(|line| !line.is_empty())
}

/// The version in a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep …`.
fn driver(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let words = text.lines().find(|l| l.starts_with("NVRM version:"))?.split_whitespace();
    let is_version = |w: &&str| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.');
    words.into_iter().find(is_version).map(str::to_owned)
}

fn gpu(root: &Path, device: &Path, address: String) -> Option<GpuRecord> {
    let of = |name: &str| line(&device.join(name));
    let is_gpu = of("vendor")? == NVIDIA && of("class")?.starts_with(DISPLAY);
    let information = root.join("proc/driver/nvidia/gpus").join(&address).join("information");
    let information = fs::read_to_string(information).unwrap_or_default();
    let model = information.lines().find_map(|l| l.strip_prefix("Model:")).map(|m| m.trim().to_owned());
    is_gpu.then(|| GpuRecord {
        name: model.unwrap_or_else(|| format!("device {}", of("device").unwrap_or_default())),
        link: Option::zip(of("current_link_speed"), of("current_link_width")).map(|(speed, width)| {
            let speed = speed.strip_suffix(" PCIe").unwrap_or(&speed).to_owned();
            format!("{speed} x{width}")
        }),
        // −1 says that the machine has no nodes, or does not tell.
        numa_node: of("numa_node").and_then(|n| n.parse().ok()),
        address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn a_gpu_its_link_its_node_and_its_driver_are_read() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (address, vendor, class) in [
            ("0000:00:1f.0", "0x8086", "0x060100"),
            ("0000:18:00.0", "0x10de", "0x030200"),
            ("0000:18:00.1", "0x10de", "0x068000"),
            ("0000:9a:00.0", "0x10de", "0x030200"),
        ] {
            let device = format!("sys/bus/pci/devices/{address}");
            put(root, &format!("{device}/vendor"), &format!("{vendor}\n"));
            put(root, &format!("{device}/class"), &format!("{class}\n"));
        }
        let device = "sys/bus/pci/devices/0000:18:00.0";
        put(root, &format!("{device}/current_link_speed"), "32.0 GT/s PCIe\n");
        put(root, &format!("{device}/current_link_width"), "16\n");
        put(root, &format!("{device}/numa_node"), "1\n");
        put(root, "sys/bus/pci/devices/0000:9a:00.0/device", "0x2335\n");
        put(root, "sys/bus/pci/devices/0000:9a:00.0/numa_node", "-1\n");
        let information = "proc/driver/nvidia/gpus/0000:18:00.0/information";
        put(root, information, "Model: \t\t NVIDIA H200\nIRQ:   \t\t 400\n");
        let version =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n";
        put(root, "proc/driver/nvidia/version", version);
        for node in ["node0", "node1", "possible"] {
            put(root, &format!("sys/devices/system/node/{node}/x"), "");
        }
        let read = read(root);
        assert_eq!((read.driver.as_deref(), read.numa_nodes), (Some("580.95.05"), 2));
        let gpu = |address: &str, name: &str, link: Option<&str>, numa_node| GpuRecord {
            address: address.to_owned(),
            name: name.to_owned(),
            link: link.map(str::to_owned),
            numa_node,
        };
        let first = gpu("0000:18:00.0", "NVIDIA H200", Some("32.0 GT/s x16"), Some(1));
        assert_eq!(read.gpus, [first, gpu("0000:9a:00.0", "device 0x2335", None, None)]);
    }

    #[test]
    fn a_machine_that_says_nothing_has_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(root.path()), HardwareRecord::default());
    }
}
