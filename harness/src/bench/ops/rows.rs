//! Ops that work row by row, and the products with the weights.

use super::{Bench, Work};
use anyhow::Result;
use oasis_core::model::{LayerWeights, Linear};
use oasis_core::ops::RopeArgs;
use oasis_core::settings::Sampling;
use oasis_kernels::Measure;

/// A product of a layer: its name, and where its weight is.
type Product<B> = (&'static str, fn(&LayerWeights<B>) -> &Linear<B>);

impl<B: Measure> Bench<'_, B> {
    /// Everything but attention and blocks.
    pub(super) fn row_ops(&mut self) -> Result<()> {
        self.products(self.rows)?;
        self.small()?;
        self.rope()?;
        // A chunk of a prompt.
        self.products(512)
    }

    pub(super) fn products(&mut self, rows: usize) -> Result<()> {
        let model = self.model;
        let widest = model.layers.first().map_or(0, |l| l.down.cols_in).max(model.config.geometry.hidden);
        let x = self.random(rows * widest.max(model.config.geometry.q_dim()))?;
        let each: [Product<B>; 4] =
            [("qkv", |l| &l.qkv), ("out", |l| &l.out), ("gate_up", |l| &l.gate_up), ("down", |l| &l.down)];
        for (name, of) in each {
            let Some(first) = model.layers.first().map(of) else { continue };
            let mut out = self.backend.alloc::<f32>(rows * first.rows_out)?;
            let accumulate = matches!(name, "out" | "down");
            let size = format!("{name} {} × {}, {rows} rows", first.rows_out, first.cols_in);
            self.add("gemm", size, product(first, rows), |b, i| {
                b.gemm(&x, of(&model.layers[i % model.layers.len()]), rows, accumulate, &mut out)
            })?;
        }
        if rows != self.rows {
            return Ok(());
        }
        let head = model.head();
        let mut out = self.backend.alloc::<f32>(rows * head.rows_out)?;
        let size = format!("head {} × {}, {rows} rows", head.rows_out, head.cols_in);
        self.add("gemm", size, product(head, rows), |b, _| b.gemm(&x, head, rows, false, &mut out))
    }

    fn small(&mut self) -> Result<()> {
        let (model, rows) = (self.model, self.rows);
        let g = &model.config.geometry;
        let table = self.table()?;
        let mut x = self.random_f32(rows * g.hidden)?;
        let gate_up = self.random_f32(rows * 2 * g.intermediate)?;
        let logits = self.random_f32(rows * g.vocab)?;
        let mut normed = self.random(rows * g.hidden)?;
        let mut inner = self.random(rows * g.intermediate)?;
        let (draws, mut tokens) = (self.random_f32(rows)?, self.backend.alloc::<u32>(rows)?);
        let work = |bytes| Work { bytes, record: true, ..Work::default() };
        let size = |width: usize| format!("{rows} × {width}");
        let (hidden, inner_width, vocab) = (g.hidden, g.intermediate, g.vocab);
        self.add("embed", size(hidden), work(2 * rows * hidden), |b, _| {
            b.embed(&model.embedding.weight, &table.token, rows, hidden, &mut x)
        })?;
        let eps = model.config.rms_eps;
        self.add("rms_norm", size(hidden), work(4 * rows * hidden), |b, i| {
            let norm = &model.layers[i % model.layers.len()].attn_norm;
            b.rms_norm(&x, norm, eps, rows, hidden, &mut normed)
        })?;
        self.add("swiglu", size(inner_width), work(8 * rows * inner_width), |b, _| {
            b.swiglu(&gate_up, rows, inner_width, &mut inner)
        })?;
        let greedy = Sampling::default();
        self.add("sample", format!("{} greedy", size(vocab)), work(4 * rows * vocab), |b, _| {
            b.sample(&logits, rows, vocab, &greedy, &draws, &mut tokens)
        })
    }

    fn rope(&mut self) -> Result<()> {
        let (model, rows) = (self.model, self.rows);
        let g = &model.config.geometry;
        let table = self.table()?;
        let qkv = self.random_f32(rows * g.qkv_dim())?;
        let (mut q, mut k) = (self.random(rows * g.q_dim())?, self.random(rows * g.kv_dim())?);
        let mut v = self.random(rows * g.kv_dim())?;
        let work = Work { bytes: 4 * rows * g.qkv_dim(), record: true, ..Work::default() };
        self.add("rope", format!("{rows} × {}", g.qkv_dim()), work, |b, i| {
            let layer = &model.layers[i % model.layers.len()];
            b.rope(RopeArgs {
                geometry: g,
                qkv: &qkv,
                q_norm: layer.q_norm.as_ref(),
                k_norm: layer.k_norm.as_ref(),
                eps: model.config.rms_eps,
                positions: &table.position,
                inv_freq: &model.inv_freq,
                rows,
                q: &mut q,
                k: &mut k,
                v: &mut v,
                first: 0,
            })
        })
    }
}

fn product<B: Measure>(w: &Linear<B>, rows: usize) -> Work {
    let weights = w.rows_out * w.cols_in;
    Work {
        bytes: 2 * weights + rows * (2 * w.cols_in + 4 * w.rows_out),
        flops: 2 * weights * rows,
        record: true,
        fetched: 0,
    }
}
