//! Figures by layer and KV head.

use super::metrics::Group;
use crate::record::{HeadSums, LayerHeads, LayerRecord};
use std::collections::BTreeMap;

/// Numerator and denominator of one head in a layer's record; none where it was not counted.
type Share = fn(&LayerRecord, &HeadSums, usize) -> Option<(f64, f64)>;

const SHARES: [(&str, Share); 3] = [
    ("topk_agreement", |l, h, i| Some((*h.agreement.get(i)?, steps(l, h)?))),
    ("topk_recall_exact", |l, h, i| Some((*h.recall_exact.get(i)?, steps(l, h)?))),
    ("hit_rate", |_, h, i| Some((*h.hits.get(i)? as f64, *h.wanted.get(i)? as f64))),
];

/// Audited steps of each head.
fn steps(layer: &LayerRecord, heads: &HeadSums) -> Option<f64> {
    Some(f64::from(layer.audit.as_ref()?.pools) / heads.wanted.len() as f64)
}

/// Ratios of sums over samples, by the name of the figure.
pub fn figures(group: &Group<'_>) -> BTreeMap<String, LayerHeads> {
    let layers = group.layer_count();
    let of =
        |share: Share| -> LayerHeads { (0..layers).map(|layer| of_layer(group, layer, share)).collect() };
    let known = |heads: &LayerHeads| heads.iter().flatten().any(Option::is_some);
    SHARES.iter().map(|&(name, share)| (name.to_owned(), of(share))).filter(|(_, h)| known(h)).collect()
}

fn of_layer(group: &Group<'_>, layer: usize, share: Share) -> Vec<Option<f64>> {
    let mut sums: Vec<(f64, f64)> = Vec::new();
    for (_, record) in group.of_layer(layer) {
        let Some(heads) = &record.heads else { continue };
        sums.resize(sums.len().max(heads.wanted.len()), (0.0, 0.0));
        for (head, sum) in sums.iter_mut().enumerate() {
            let (above, below) = share(record, heads, head).unwrap_or_default();
            *sum = (sum.0 + above, sum.1 + below);
        }
    }
    sums.into_iter().map(|(above, below)| (below > 0.0).then(|| above / below)).collect()
}
