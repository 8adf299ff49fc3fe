//! `smoothed`: the next query as the running mean of those so far. If queries wander about a direction that lasts, their mean is
//! nearer to the next one than the last one is.

use oasis_core::policy::{Needs, Predictor, Ranking, StepView};
use oasis_core::registry::{Param, Params, PredictorEntry};
use oasis_core::{Error, Result};
use serde::Deserialize;
use std::borrow::Cow;

/// The row of the table.
pub const ENTRY: PredictorEntry = PredictorEntry {
    name: "smoothed",
    about: "Ranks with an exponential moving average of the sequence's queries, layer by layer.",
    version: 1,
    params: &[Param {
        name: "weight",
        about: "Weight of the newest query, above 0 and at most 1; 1 is `previous-token`.",
        default: "0.5",
    }],
    build,
};

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    weight: f32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { weight: 0.5 }
    }
}

fn build(params: &Params) -> Result<Box<dyn Predictor>> {
    let Settings { weight } = params.parse(ENTRY.name)?;
    // Written so that NaN is refused too.
    if !(weight > 0.0 && weight <= 1.0) {
        return Err(Error::setting("smoothed.weight", format!("{weight}; it must be above 0 and at most 1")));
    }
    Ok(Box::new(Smoothed { weight, means: Vec::new() }))
}

/// The state of one sequence.
struct Smoothed {
    weight: f32,
    /// `[layers][heads × head_dim]`; empty for a layer that has not been seen.
    means: Vec<Vec<f32>>,
}

impl Predictor for Smoothed {
    /// Queries stay on the device unless a predictor reads them.
    fn needs(&self) -> Needs {
        Needs { queries: true, ..Needs::default() }
    }

    fn rank_with<'a>(&'a mut self, step: &'a StepView<'a>) -> Ranking<'a> {
        // Row 0 is the newest token; rows after it are drafts.
        let newest = &step.queries[..step.geometry.heads * step.geometry.head_dim];
        self.means.resize_with(self.means.len().max(step.layer + 1), Vec::new);
        let mean = &mut self.means[step.layer];
        if mean.is_empty() {
            mean.extend_from_slice(newest);
        }
        for (m, q) in mean.iter_mut().zip(newest) {
            *m += self.weight * (q - *m);
        }
        Ranking::Query(Cow::Borrowed(mean))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_out_of_range_and_an_unknown_key_are_refused() {
        let refused = |toml: &str| {
            let params = Params { table: toml.parse().unwrap(), seed: 0 };
            build(&params).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert!(refused("weight = 0.0").contains("at most 1"));
        assert!(refused("weight = nan").contains("at most 1"));
        assert!(refused("wait = 0.1").contains("weight"));
        assert_eq!(refused("weight = 1.0"), "");
    }
}
