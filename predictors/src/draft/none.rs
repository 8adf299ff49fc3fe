//! No draft at all.

use super::factory;
use crate::predictor::Unset;
use oasis_core::Result;
use oasis_core::draft::{Draft, DraftFactory, DraftSetup, DraftTree, DraftView, Target};
use oasis_core::ops::Backend;
use oasis_core::registry::DraftEntry;

const NAME: &str = "none";

/// The row of the table.
pub const fn entry<B: Backend>() -> DraftEntry<B> {
    DraftEntry { name: NAME, about: "No draft tokens.", version: 1, params: &[], build }
}

fn build<B: Backend>(setup: DraftSetup<'_, B>) -> Result<DraftFactory<B>> {
    setup.params.parse::<Unset>(NAME)?;
    Ok(factory(|_| NoDraft))
}

/// Never has an idea.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoDraft;

impl<B: Backend> Draft<B> for NoDraft {
    fn propose(&mut self, _: &mut B, _: &mut dyn Target<B>, _: &DraftView<'_>) -> Result<DraftTree> {
        Ok(DraftTree::default())
    }
}
