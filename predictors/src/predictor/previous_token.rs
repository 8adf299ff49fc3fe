//! The newest token's query stands in for the next one's: the baseline of every predictor.

use super::Unset;
use oasis_core::Result;
use oasis_core::policy::{Predictor, RowSet};
use oasis_core::registry::{Params, PredictorEntry};

/// The row of the table.
pub const ENTRY: PredictorEntry = PredictorEntry {
    name: "previous-token",
    about: "The newest token's own query: the next step reads what this one would have; the baseline.",
    version: 1,
    params: &[],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Predictor>> {
    params.parse::<Unset>(ENTRY.name)?;
    Ok(Box::new(PreviousToken))
}

/// Ranks with row 0, after the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PreviousToken;

impl Predictor for PreviousToken {
    fn rows(&self, _rows: usize, _parents: &[u32]) -> Option<RowSet> {
        Some(RowSet::CURRENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictor::fixture;
    use oasis_core::policy::{Needs, When};

    #[test]
    fn ranks_with_the_newest_token_whatever_was_drafted() {
        let geometry = fixture::geometry();
        for rows in [1, 2, 8] {
            let view = fixture::step(&geometry, 3, rows, 1..5);
            assert_eq!(fixture::rows(PreviousToken.rank_with(&view)), RowSet::CURRENT);
        }
        assert_eq!(PreviousToken.needs(), Needs { when: When::Ahead, drafts: false, queries: false });
    }
}
