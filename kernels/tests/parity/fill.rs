//! Seeded noise, to the bit; and the bandwidths of a device.

use super::{all, devices};
use half::bf16;
use oasis_core::ops::{Fill, Memory, Noise};
use oasis_kernels::Measure;

#[test]
fn noise_is_the_same_everywhere() {
    let Some((mut cpu, mut gpu)) = devices("fill") else { return };
    let noise = Noise { seed: 0x1234_5678_9abc_def0, mean: 0.25, deviation: 1.7 };
    // Whole vectors of eight and the rest; more than one wave of threads.
    for n in [1, 7, 8, 1001, (1 << 23) + 5] {
        let (mut a, mut b) =
            (cpu.upload(&vec![f32::NAN; n]).unwrap(), gpu.upload(&vec![f32::NAN; n]).unwrap());
        cpu.fill(noise, &mut a).unwrap();
        gpu.fill(noise, &mut b).unwrap();
        let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(bits(all(&mut cpu, &a)) == bits(all(&mut gpu, &b)), "{n} of f32");
        let nan = vec![bf16::NAN; n];
        let (mut a, mut b) = (cpu.upload(&nan).unwrap(), gpu.upload(&nan).unwrap());
        let mut host = gpu.alloc_host::<bf16>(n).unwrap();
        host.copy_from_slice(&nan);
        cpu.fill_half(noise, &mut a).unwrap();
        gpu.fill_half(noise, &mut b).unwrap();
        gpu.fill_host(noise, &mut host).unwrap();
        let bits = |v: &[bf16]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let (a, b) = (all(&mut cpu, &a), all(&mut gpu, &b));
        assert!(bits(&a) == bits(&b) && bits(&a) == bits(&host), "{n} of bf16");
    }
}

#[test]
fn a_gpu_is_faster_than_its_link() {
    let Some((_, mut gpu)) = devices("bandwidths") else { return };
    let before = gpu.usage();
    let b = gpu.bandwidths().unwrap();
    println!("{b:?}");
    assert_eq!(gpu.usage(), before, "nothing is kept");
    for (name, rate) in [("gather", b.gather), ("to device", b.to_device), ("to host", b.to_host)] {
        assert!(rate > 1e9 && rate < b.device_read, "{name}: {rate}");
    }
    assert!(b.device_read > 5e10 && b.device_copy > 5e10);
    let room = gpu.room().unwrap();
    assert!(room.device > 1 << 28 && room.host > 1 << 28 && !room.shared);
}
