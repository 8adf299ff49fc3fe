//! The true query, on demand: what a perfect predictor would rank with, at the price of an exposed fetch.

use super::Unset;
use oasis_core::Result;
use oasis_core::policy::{Needs, Predictor, RowSet, When};
use oasis_core::registry::{Params, PredictorEntry};

/// The row of the table.
pub const ENTRY: PredictorEntry = PredictorEntry {
    name: "oracle",
    about: "The step's own query, before its attention: exact, but the transfer is exposed.",
    version: 1,
    params: &[],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Predictor>> {
    params.parse::<Unset>(ENTRY.name)?;
    Ok(Box::new(Oracle))
}

/// Ranks with row 0 of the step that is about to attend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Oracle;

impl Predictor for Oracle {
    fn needs(&self) -> Needs {
        Needs { when: When::OnDemand, ..Needs::default() }
    }

    fn rows(&self, _rows: usize, _parents: &[u32]) -> Option<RowSet> {
        Some(RowSet::CURRENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictor::fixture;

    #[test]
    fn ranks_on_demand_with_the_steps_own_row() {
        let geometry = fixture::geometry();
        let view = fixture::step(&geometry, 3, 2, 1..5);
        assert_eq!(fixture::rows(Oracle.rank_with(&view)), RowSet::CURRENT);
        assert_eq!(Oracle.needs(), Needs { when: When::OnDemand, drafts: false, queries: false });
    }
}
