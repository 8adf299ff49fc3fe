//! From the records of a (cell, task) to its metrics.

use super::stats::Values;
use crate::record::{Counters, LayerRecord, Metric, Metrics, SampleRecord, StepPoint};
use oasis_core::stats::AuditStats;
use std::collections::BTreeMap;

/// The records of one cell on one task; only samples that were decoded.
#[derive(Debug, Default)]
pub struct Group<'a> {
    /// Samples.
    pub samples: Vec<&'a SampleRecord>,
    /// Layers, by (sample, repeat).
    pub layers: BTreeMap<(&'a str, u32), Vec<&'a LayerRecord>>,
}

fn put(metrics: &mut Metrics, name: &str, metric: Option<Metric>) {
    if let Some(metric) = metric {
        metrics.insert(name.to_owned(), metric);
    }
}

/// A ratio of sums over samples, with the standard error of the samples' own ratios.
fn ratio<'a>(
    samples: impl Iterator<Item = (&'a str, f64, f64)>,
    unit: &str,
    better: Option<bool>,
) -> Option<Metric> {
    let (mut above, mut below, mut values) = (0.0, 0.0, Values::default());
    for (document, a, b) in samples.filter(|(.., b)| *b > 0.0) {
        (above, below) = (above + a, below + b);
        values.push(document, a / b);
    }
    if below > 0.0 { values.metric_as(above / below, unit, better) } else { None }
}

impl Group<'_> {
    /// All metrics but times.
    pub fn metrics(&self) -> Metrics {
        let mut m = Metrics::new();
        let mut scores = Values::default();
        self.samples
            .iter()
            .filter_map(|s| Some((s, s.score?)))
            .for_each(|(s, v)| scores.push(&s.document, v));
        put(&mut m, "accuracy", scores.metric("share", Some(true)));
        self.fidelity(&mut m);
        self.traffic(&mut m);
        self.drafts(&mut m);
        self.audits(&mut m);
        m
    }

    fn fidelity(&self, m: &mut Metrics) {
        let of = |f: fn(&crate::record::FidelitySums) -> f64| {
            let sums = self.samples.iter().filter_map(|s| Some((s, s.fidelity.as_ref()?)));
            sums.map(|(s, x)| (s.document.as_str(), f(x), x.positions as f64)).collect::<Vec<_>>()
        };
        put(m, "kl", ratio(of(|x| x.kl).into_iter(), "nat", Some(false)));
        put(m, "top1_agreement", ratio(of(|x| x.top1 as f64).into_iter(), "share", Some(true)));
        let (nll, dense) = (of(|x| x.nll), of(|x| x.nll_dense));
        let mean = |sums: &[(&str, f64, f64)]| {
            sums.iter().map(|s| s.1).sum::<f64>() / sums.iter().map(|s| s.2).sum::<f64>()
        };
        if nll.is_empty() {
            return;
        }
        let (ppl, ppl_dense) = (libm::exp(mean(&nll)), libm::exp(mean(&dense)));
        let mut values = Values::default();
        for (own, reference) in nll.iter().zip(&dense) {
            // d(ppl − ppl_dense) to first order, so that the error of the difference is a paired one.
            let (own, reference, document) = (own.1 / own.2, reference.1 / reference.2, own.0);
            values.push(document, ppl * own - ppl_dense * reference);
        }
        put(m, "ppl_delta", values.metric_as(ppl - ppl_dense, "perplexity", Some(false)));
        put(
            m,
            "ppl",
            Values::metric_as(&values, ppl, "perplexity", Some(false)).map(|x| Metric { stderr: None, ..x }),
        );
    }

    fn traffic(&self, m: &mut Metrics) {
        if self.samples.iter().all(|s| s.counters.wanted == 0 && s.counters.bytes_h2d == 0) {
            return;
        }
        per_step(m, self.samples.iter().map(|s| (s.document.as_str(), &s.counters, s.steps)));
    }

    fn drafts(&self, m: &mut Metrics) {
        let sums = || self.samples.iter().filter_map(|s| Some((s.document.as_str(), s.drafts.as_ref()?)));
        let drafted = sums().map(|(d, x)| (d, (x.drafted + x.accepted) as f64, x.drafted as f64));
        put(m, "acceptance_length", ratio(drafted, "token/draft", Some(true)));
        let right = sums().map(|(d, x)| (d, x.right as f64, x.drafted as f64));
        put(m, "draft_right", ratio(right, "share", Some(true)));
        let steps = self.samples.iter().filter_map(|s| Some((s, s.drafts.as_ref()?)));
        let steps = steps.map(|(s, x)| (s.document.as_str(), x.drafted as f64, f64::from(s.steps)));
        put(m, "drafted_steps", ratio(steps, "share", None));
        let depth = sums().map(|(_, x)| x.accepted_at.len()).max().unwrap_or(0);
        for i in 0..depth {
            let at = sums().map(|(d, x)| (d, x.accepted_at[i] as f64, x.drafted as f64));
            put(m, &format!("acceptance_at_pos_{}", i + 1), ratio(at, "share", Some(true)));
        }
    }

    fn audits(&self, m: &mut Metrics) {
        for (name, figure) in FIGURES {
            self.layer_mean(m, name, figure, |l| l.audit.as_ref());
        }
        let (agreement, figure) = FIGURES[0];
        self.layer_mean(m, &format!("{agreement}_draft_right"), figure, |l| l.audit_right.as_ref());
        self.layer_mean(m, &format!("{agreement}_draft_wrong"), figure, |l| l.audit_wrong.as_ref());
    }

    /// Ratio of sums by layer, then the mean over layers; for the unsplit figures the extreme layer too.
    fn layer_mean(
        &self,
        m: &mut Metrics,
        name: &str,
        figure: Figure,
        pick: fn(&LayerRecord) -> Option<&AuditStats>,
    ) {
        let better = Some(name != "output_error");
        let layers = self.layer_count();
        let by_layer: Vec<f64> = (0..layers).filter_map(|l| self.pooled(l, figure, pick)).collect();
        let mut values = Values::default();
        for sample in &self.samples {
            let Some(records) = self.layers.get(&(sample.sample.as_str(), sample.repeat)) else { continue };
            let own: Vec<f64> =
                records.iter().filter_map(|l| figure(pick(l)?)).map(|(a, b)| finish(name, a / b)).collect();
            if !own.is_empty() {
                values.push(&sample.document, own.iter().sum::<f64>() / own.len() as f64);
            }
        }
        if by_layer.is_empty() {
            return;
        }
        let finished: Vec<f64> = by_layer.iter().map(|&x| finish(name, x)).collect();
        let mean = finished.iter().sum::<f64>() / finished.len() as f64;
        let unit = "share";
        put(m, name, values.metric_as(mean, unit, better));
        let extreme = if better == Some(true) {
            (finished.iter().copied().fold(f64::INFINITY, f64::min), "min_layer")
        } else {
            (finished.iter().copied().fold(f64::NEG_INFINITY, f64::max), "max_layer")
        };
        let one = values.metric_as(extreme.0, unit, better).map(|x| Metric { stderr: None, ..x });
        put(m, &format!("{name}_{}", extreme.1), one);
    }

    /// Layers of the model, as far as records tell.
    pub(super) fn layer_count(&self) -> usize {
        self.layers.values().flatten().map(|l| l.layer + 1).max().unwrap_or(0)
    }

    /// Records of one layer with the documents of their samples.
    pub(super) fn of_layer(&self, layer: usize) -> impl Iterator<Item = (&str, &LayerRecord)> {
        self.samples.iter().filter_map(move |s| {
            let records = self.layers.get(&(s.sample.as_str(), s.repeat))?;
            records.iter().find(|l| l.layer == layer).map(|l| (s.document.as_str(), *l))
        })
    }

    fn pooled(
        &self,
        layer: usize,
        figure: Figure,
        pick: fn(&LayerRecord) -> Option<&AuditStats>,
    ) -> Option<f64> {
        let sums = self.of_layer(layer).filter_map(|(_, l)| figure(pick(l)?));
        let (above, below) = sums.fold((0.0, 0.0), |acc, x| (acc.0 + x.0, acc.1 + x.1));
        (below > 0.0).then(|| above / below)
    }

    /// The metrics of each layer.
    pub fn layers(&self) -> Vec<Metrics> {
        let of = |layer| {
            let mut m = Metrics::new();
            for (name, figure) in FIGURES {
                let sums = self
                    .of_layer(layer)
                    .filter_map(|(d, l)| figure(l.audit.as_ref()?).map(|(a, b)| (d, a, b)));
                let sums: Vec<_> = sums.collect();
                let metric = ratio(sums.into_iter(), "share", Some(name != "output_error"));
                let finished = metric.map(|x| Metric {
                    value: finish(name, x.value),
                    stderr: x.stderr.filter(|_| name != "output_error"),
                    ..x
                });
                put(&mut m, name, finished);
            }
            let counted = self.of_layer(layer).map(|(d, l)| (d, &l.counters, l.steps)).collect::<Vec<_>>();
            if counted.iter().any(|(_, c, _)| c.wanted > 0) {
                per_step(&mut m, counted.into_iter());
            }
            m
        };
        (0..self.layer_count()).map(of).collect()
    }

    /// Traffic by step number.
    pub fn steps(&self) -> Vec<StepPoint> {
        let most = self.samples.iter().map(|s| s.step_bytes.len()).max().unwrap_or(0);
        let of = |i: usize| {
            let there = self.samples.iter().filter(|s| s.step_bytes.len() > i);
            let (mut n, mut bytes, mut hits, mut wanted) = (0, 0, 0, 0);
            for s in there {
                let (h, w) = s.step_hits.get(i).copied().unwrap_or_default();
                (n, bytes, hits, wanted) = (n + 1, bytes + s.step_bytes[i], hits + h, wanted + w);
            }
            StepPoint {
                step: i as u32 + 1,
                n,
                bytes_h2d: bytes as f64 / n.max(1) as f64,
                hit_rate: (wanted > 0).then(|| hits as f64 / wanted as f64),
            }
        };
        (0..most).map(of).collect()
    }
}

/// A figure of an audit as a fraction; none where there was nothing to count.
type Figure = fn(&AuditStats) -> Option<(f64, f64)>;

const FIGURES: [(&str, Figure); 4] = [
    ("topk_agreement", |a| some(a.agreement, f64::from(a.pools))),
    ("topk_recall_exact", |a| some(a.recall_exact, f64::from(a.pools))),
    ("mass_recall", |a| some(a.mass_recall, f64::from(a.heads))),
    ("output_error", |a| some(a.error_sq, a.dense_sq)),
];

fn some(above: f64, below: f64) -> Option<(f64, f64)> {
    (below > 0.0).then_some((above, below))
}

/// Errors are norms, their sums are squares.
fn finish(name: &str, x: f64) -> f64 {
    if name == "output_error" { x.sqrt() } else { x }
}

/// Traffic of a decode step.
fn per_step<'a>(m: &mut Metrics, sums: impl Iterator<Item = (&'a str, &'a Counters, u32)> + Clone) {
    let of = |f: fn(&Counters) -> u64| {
        sums.clone().map(move |(d, c, steps)| (d, f(c) as f64, f64::from(steps))).collect::<Vec<_>>()
    };
    put(m, "bytes_h2d", ratio(of(|c| c.bytes_h2d).into_iter(), "byte/step", Some(false)));
    put(m, "fetches", ratio(of(|c| c.fetched).into_iter(), "block/step", Some(false)));
    put(m, "dropped", ratio(of(|c| c.dropped).into_iter(), "block/step", Some(false)));
    put(m, "wasted_fetches", ratio(of(|c| c.wasted).into_iter(), "block/step", Some(false)));
    let hits = sums.clone().map(|(d, c, _)| (d, c.hits as f64, c.wanted as f64));
    put(m, "hit_rate", ratio(hits, "share", Some(true)));
}
