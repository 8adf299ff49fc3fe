//! Ops on rows: embedding, norms, products, RoPE, SwiGLU, sampling; and memory.

use super::*;
use oasis_core::model::Linear;
use oasis_core::ops::{Memory, RopeArgs};
use oasis_core::settings::Sampling;
use oasis_kernels::ops::{gemm, rms_norm, rope, swiglu};

#[test]
fn memory_holds_what_was_written_and_counts_it() {
    let Some((_, mut cuda)) = devices("memory") else { return };
    let mut random = Random::new(1);
    // Below and above the staging ring's pieces.
    for n in [1, 1000, 3 << 20] {
        let data = random.f32(n);
        let mut buf = cuda.alloc::<f32>(n + 7).unwrap();
        assert!(all(&mut cuda, &buf).iter().all(|&x| x == 0.0));
        cuda.write(&mut buf, 7, &data).unwrap();
        assert_eq!(all(&mut cuda, &buf)[7..], data);
        assert!(cuda.write(&mut buf, 8, &data).is_err());
        let host = cuda.alloc_host::<u16>(n).unwrap();
        assert!(host.iter().all(|&x| x == 0));
    }
    let many: Vec<Vec<f32>> = (0..200).map(|_| random.f32(50_000)).collect();
    let mut buf = cuda.alloc::<f32>(200 * 50_000).unwrap();
    for (i, data) in many.iter().enumerate() {
        cuda.write(&mut buf, i * 50_000, data).unwrap();
    }
    assert_eq!(all(&mut cuda, &buf), many.concat());
    assert!(cuda.usage().device >= 4 * 200 * 50_000);
    assert!(cuda.alloc::<u8>(1 << 50).is_err());
}

#[test]
fn embed() {
    let Some((mut cpu, mut cuda)) = devices("embed") else { return };
    fn run<B: Backend>(b: &mut B, table: &[bf16], tokens: &[u32], hidden: usize) -> Vec<f32> {
        let (t, ids) = (b.upload(table).unwrap(), b.upload(tokens).unwrap());
        let mut out = b.upload(&poison(tokens.len() * hidden)).unwrap();
        b.embed(&t, &ids, tokens.len(), hidden, &mut out).unwrap();
        all(b, &out)
    }
    let mut random = Random::new(2);
    for hidden in [37, 576] {
        let table = random.bf16(50 * hidden);
        let tokens: Vec<u32> = (0..9).map(|_| random.below(50) as u32).collect();
        let (got, want) = (run(&mut cuda, &table, &tokens, hidden), run(&mut cpu, &table, &tokens, hidden));
        assert_eq!(got, want);
        assert!(run(&mut cuda, &table, &[50], hidden).iter().all(|x| x.is_nan()), "no such token");
    }
}

#[test]
fn rms_norm() {
    let Some((mut cpu, mut cuda)) = devices("rms_norm") else { return };
    fn run<B: Backend>(b: &mut B, x: &[f32], w: &[f32], rows: usize) -> Vec<f32> {
        let (x, w) = (b.upload(x).unwrap(), b.upload(w).unwrap());
        let dim = b.len(&w);
        let mut out = b.upload(&poison16(rows * dim)).unwrap();
        b.rms_norm(&x, &w, 1e-5, rows, dim, &mut out).unwrap();
        wide(&all(b, &out))
    }
    let mut random = Random::new(3);
    for (rows, dim) in [(1, 1), (3, 100), (2, 101), (70, 576), (2, 4096), (3, 8192), (2, 8196)] {
        let (x, w) = (random.f32(rows * dim), random.f32(dim));
        close("rms_norm", &run(&mut cuda, &x, &w, rows), &run(&mut cpu, &x, &w, rows), rms_norm::TOLERANCE);
    }
}

struct Product {
    x: Vec<bf16>,
    w: Vec<bf16>,
    bias: Option<Vec<f32>>,
    before: Option<Vec<f32>>,
    rows: usize,
    n: usize,
    k: usize,
}

fn product<B: Backend>(b: &mut B, p: &Product) -> Vec<f32> {
    let w = Linear {
        weight: b.upload(&p.w).unwrap(),
        bias: p.bias.as_ref().map(|v| b.upload(v).unwrap()),
        rows_out: p.n,
        cols_in: p.k,
    };
    let x = b.upload(&p.x).unwrap();
    let before = p.before.clone().unwrap_or_else(|| poison(p.rows * p.n));
    let mut out = b.upload(&before).unwrap();
    b.gemm(&x, &w, p.rows, p.before.is_some(), &mut out).unwrap();
    all(b, &out)
}

#[test]
fn gemm_of_all_sizes() {
    let Some((mut cpu, mut cuda)) = devices("gemm") else { return };
    let mut random = Random::new(4);
    for (i, rows) in [1, 2, 3, 7, 8, 9, 16, 17, 33, 63, 64, 100, 257].into_iter().enumerate() {
        // The last ones are divided among four, two and one thread blocks.
        for (n, k) in [(16, 32), (1, 8), (1, 64), (100, 576), (576, 1536), (130, 100), (33, 37), (4096, 256)]
            .into_iter()
            .chain([(5000, 640), (10_016, 192)])
        {
            let p = Product {
                x: random.bf16(rows * k),
                w: random.bf16(n * k),
                bias: (i % 2 == 0).then(|| random.f32(n)),
                before: (i % 3 == 0).then(|| random.f32(rows * n)),
                rows,
                n,
                k,
            };
            let what = format!("gemm {rows} × {n} × {k}");
            close(&what, &product(&mut cuda, &p), &product(&mut cpu, &p), gemm::TOLERANCE);
        }
    }
}

#[test]
fn gemm_rows_do_not_depend_on_each_other() {
    let Some((_, mut cuda)) = devices("gemm's rows") else { return };
    let mut random = Random::new(5);
    for (n, k) in [(576, 1536), (100, 37), (100, 72), (6144, 1024), (10_016, 512)] {
        let rows = gemm::BATCH - 1;
        let (x, w) = (random.bf16(rows * k), random.bf16(n * k));
        let of = |x: &[bf16]| Product {
            x: x.to_vec(),
            w: w.clone(),
            bias: None,
            before: None,
            rows: x.len() / k,
            n,
            k,
        };
        let together = product(&mut cuda, &of(&x));
        for (from, until) in [(0, 1), (5, 13), (20, 36), (7, 39), (40, 63)] {
            let part = product(&mut cuda, &of(&x[from * k..until * k]));
            let want = &together[from * n..until * n];
            assert!(part.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "rows {from} .. {until}");
        }
    }
}

#[test]
fn rope() {
    let Some((mut cpu, mut cuda)) = devices("rope") else { return };
    struct Case {
        g: Geometry,
        qkv: Vec<f32>,
        norms: Option<[Vec<f32>; 2]>,
        positions: Vec<u32>,
        first: usize,
    }
    fn run<B: Backend>(b: &mut B, c: &Case) -> [Vec<bf16>; 3] {
        let (rows, d) = (c.positions.len(), c.g.head_dim);
        let freq: Vec<f32> = (0..d / 2).map(|i| 10_000_f32.powf(-2.0 * i as f32 / d as f32)).collect();
        let qkv = b.upload(&c.qkv).unwrap();
        let norms = c.norms.as_ref().map(|n| n.each_ref().map(|w| b.upload(w).unwrap()));
        let (positions, freq) = (b.upload(&c.positions).unwrap(), b.upload(&freq).unwrap());
        let mut q = b.upload(&poison16(rows * c.g.q_dim())).unwrap();
        let mut k = b.upload(&poison16((c.first + rows) * c.g.kv_dim())).unwrap();
        let mut v = b.upload(&poison16((c.first + rows) * c.g.kv_dim())).unwrap();
        b.rope(RopeArgs {
            geometry: &c.g,
            qkv: &qkv,
            q_norm: norms.as_ref().map(|n| &n[0]),
            k_norm: norms.as_ref().map(|n| &n[1]),
            eps: 1e-6,
            positions: &positions,
            inv_freq: &freq,
            rows,
            q: &mut q,
            k: &mut k,
            v: &mut v,
            first: c.first,
        })
        .unwrap();
        [all(b, &q), all(b, &k), all(b, &v)]
    }
    let mut random = Random::new(6);
    for (heads, kv_heads, d, rows, first, normed) in
        [(6, 2, 64, 1, 0, false), (4, 4, 96, 3, 5, true), (16, 2, 128, 100, 2, true), (1, 1, 6, 4, 0, false)]
    {
        let g = geometry(heads, kv_heads, d);
        let c = Case {
            qkv: random.f32(rows * g.qkv_dim()),
            norms: normed.then(|| [random.f32(d), random.f32(d)]),
            positions: (0..rows).map(|_| random.below(100_000) as u32).collect(),
            first,
            g,
        };
        let [got, want] = [run(&mut cuda, &c), run(&mut cpu, &c)];
        let skip = first * c.g.kv_dim();
        close("q", &wide(&got[0]), &wide(&want[0]), rope::TOLERANCE);
        close("k", &wide(&got[1][skip..]), &wide(&want[1][skip..]), rope::TOLERANCE);
        assert_eq!(bits(&got[2][skip..]), bits(&want[2][skip..]), "values are rounded, no more");
        assert!(got[1][..skip].iter().chain(&got[2][..skip]).all(|x| x.is_nan()), "earlier rows");
    }
}

#[test]
fn swiglu() {
    let Some((mut cpu, mut cuda)) = devices("swiglu") else { return };
    fn run<B: Backend>(b: &mut B, x: &[f32], rows: usize, inner: usize) -> Vec<f32> {
        let x = b.upload(x).unwrap();
        let mut out = b.upload(&poison16(rows * inner)).unwrap();
        b.swiglu(&x, rows, inner, &mut out).unwrap();
        wide(&all(b, &out))
    }
    let mut random = Random::new(7);
    for (rows, inner) in [(1, 5), (3, 640), (40, 1000)] {
        let x: Vec<f32> = random.f32(2 * rows * inner).iter().map(|v| 6.0 * v).collect();
        let (got, want) = (run(&mut cuda, &x, rows, inner), run(&mut cpu, &x, rows, inner));
        close("swiglu", &got, &want, swiglu::TOLERANCE);
    }
    let got = run(&mut cuda, &[-200.0, 200.0, f32::NAN, 1.0, 1.0, 1.0], 1, 3);
    assert!(got[0].abs() < 1e-30 && got[1] == 200.0 && got[2].is_nan(), "{got:?}");
}

#[test]
fn sample() {
    let Some((mut cpu, mut cuda)) = devices("sample") else { return };
    fn run<B: Backend>(b: &mut B, logits: &[f32], vocab: usize, s: &Sampling, draws: &[f32]) -> Vec<u32> {
        let rows = logits.len() / vocab;
        let (logits, draws) = (b.upload(logits).unwrap(), b.upload(draws).unwrap());
        let mut out = b.upload(&vec![u32::MAX - 1; rows]).unwrap();
        b.sample(&logits, rows, vocab, s, &draws, &mut out).unwrap();
        let mut tokens = vec![0; rows];
        b.read(&out, 0, &mut tokens).unwrap();
        tokens
    }
    let mut random = Random::new(8);
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let mut cases = vec![
        (vec![nan, 1.0, 3.0, 3.0, -1.0, nan, -2.0, nan, -3.0, -2.0], 5),
        (vec![-inf; 3], 3),
        (vec![nan, -inf, nan], 3),
        (vec![1.0, inf, inf], 3),
        (vec![0.0, -0.0, nan, -0.0, 0.0, nan], 3),
        (vec![nan; 4], 4),
    ];
    for vocab in [1, 31, 1003, 151_936] {
        // Rounded, so that there are ties.
        cases.push((random.f32(4 * vocab).iter().map(|x| (x * 8.0).round()).collect(), vocab));
    }
    for (logits, vocab) in &cases {
        let draws: Vec<f32> = (0..logits.len() / vocab).map(|i| 0.1 + 0.2 * i as f32).collect();
        for (temperature, top_p) in [(0.0, 1.0), (1.0, 1.0), (0.7, 0.9)] {
            let s = Sampling { temperature, top_p };
            let got = run(&mut cuda, logits, *vocab, &s, &draws);
            assert_eq!(got, run(&mut cpu, logits, *vocab, &s, &draws), "{vocab} {temperature}");
        }
    }
}
