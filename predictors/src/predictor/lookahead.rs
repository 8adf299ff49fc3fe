//! The next tokens' own queries, as a draft foresees them (OasisKV, arXiv 2608.08097).

use oasis_core::Result;
use oasis_core::policy::{Needs, Predictor, RowSet, When};
use oasis_core::registry::{Param, Params, PredictorEntry};
use serde::Deserialize;

/// The row of the table.
pub const ENTRY: PredictorEntry = PredictorEntry {
    name: "lookahead",
    about: "Queries of draft tokens that went through the model beside the newest token (OasisKV, arXiv 2608.08097).",
    version: 1,
    params: &[Param { name: "blend", about: "Rank with the newest token's query too.", default: "false" }],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Predictor>> {
    Ok(Box::new(params.parse::<Lookahead>(ENTRY.name)?))
}

/// Ranks with every draft row of the pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lookahead {
    /// Rank with row 0 too: a wrong draft then costs little, a right one loses little.
    pub blend: bool,
}

impl Predictor for Lookahead {
    fn needs(&self) -> Needs {
        Needs { when: When::Ahead, drafts: true, queries: false }
    }

    fn rows(&self, rows: usize, _parents: &[u32]) -> Option<RowSet> {
        let drafts = RowSet::drafts(rows);
        // Without an idea of the next token the newest one's query is the best guess there is.
        let current = if self.blend || drafts.is_empty() { RowSet::CURRENT } else { RowSet::default() };
        Some(drafts.union(current))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictor::fixture;

    fn rows(blend: bool, rows: usize) -> u32 {
        let geometry = fixture::geometry();
        let view = fixture::step(&geometry, 1, rows, 1..5);
        fixture::rows(Lookahead { blend }.rank_with(&view)).0
    }

    #[test]
    fn ranks_with_draft_rows_and_falls_back_to_the_newest_token() {
        assert_eq!([rows(false, 1), rows(false, 2), rows(false, 4)], [0b1, 0b10, 0b1110]);
        assert_eq!([rows(true, 1), rows(true, 2), rows(true, 4)], [0b1, 0b11, 0b1111]);
    }

    #[test]
    fn asks_for_drafts_and_ranks_ahead() {
        let needs = Lookahead::default().needs();
        assert!(needs.drafts && needs.when == When::Ahead);
    }

    #[test]
    fn blend_is_read_from_the_table() {
        let geometry = fixture::geometry();
        let view = fixture::step(&geometry, 1, 2, 1..5);
        let mut blended = fixture::build("lookahead", "blend = true", 1).unwrap();
        assert_eq!(fixture::rows(blended.rank_with(&view)).0, 0b11);
        assert!(fixture::build("lookahead", "blend = 1", 1).is_err());
    }
}
