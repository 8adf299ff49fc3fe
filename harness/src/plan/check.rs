//! Ranges of a cell's values: each message names the key, the value, the limit and the way out.

use super::{PlannedCell, PlannedTask};
use crate::spec::Budget;
use oasis_core::settings::Mode;
use oasis_core::{Error, Result};

/// Most rows of a step: the newest token and its drafts.
const MAX_ROWS: usize = 8;

/// Checks everything that needs no model.
pub(super) fn ranges(cell: &PlannedCell, tasks: &[PlannedTask]) -> Result<()> {
    if cell.batch == 0 {
        return Err(Error::setting("batch", "0 sequences; give at least 1"));
    }
    let t = cell.sampling.temperature;
    if !(t >= 0.0 && t.is_finite()) {
        return Err(Error::setting("temperature", format!("{t}; give 0 (greedy) or a positive number")));
    }
    let p = cell.sampling.top_p;
    if !(p > 0.0 && p <= 1.0) {
        return Err(Error::setting("top_p", format!("{p}; give a number above 0 and up to 1")));
    }
    if let Some(draft) = &cell.draft {
        let rows = draft.shape.depth + draft.shape.branches;
        if rows > MAX_ROWS {
            let (depth, branches) = (draft.shape.depth, draft.shape.branches);
            return Err(Error::setting(
                "draft",
                format!(
                    "depth {depth} and {branches} branches make {rows} rows with the newest token, and a step has at most \
                     {MAX_ROWS}; give smaller `depth` or `branches`"
                ),
            ));
        }
    }
    cell.budget.map_or(Ok(()), |budget| tasks.iter().try_for_each(|task| budget_fits(cell, budget, task)))
}

fn budget_fits(cell: &PlannedCell, budget: Budget, task: &PlannedTask) -> Result<()> {
    if let Budget::Share(f) = budget
        && !(f > 0.0 && f <= 1.0)
    {
        return Err(Error::setting("budget", format!("{budget}; a share lies above 0% and up to 100%")));
    }
    let tokens = budget.tokens(task.length);
    let written = match budget {
        Budget::Tokens(n) => format!("{n} tokens"),
        Budget::Share(_) => format!("{budget} of {} tokens ({tokens})", task.length),
    };
    if tokens == 0 {
        return Err(Error::setting(
            "budget",
            format!("{written}; give at least one block ({} tokens)", cell.block),
        ));
    }
    let (sink, window, block) = (cell.sink_blocks, cell.window_blocks, cell.block);
    let window = if cell.mode == Mode::Window { 0 } else { window };
    let smallest = sink + window + 1;
    if tokens / block < smallest {
        let pinned = if cell.mode == Mode::Window {
            format!("{sink} are the sink and at least one must be recent")
        } else {
            format!("{sink} (sink) and {window} (window) are pinned and at least one must be selectable")
        };
        return Err(Error::setting(
            "budget",
            format!(
                "{written} hold {} blocks of {block}, but {pinned}: give at least {} tokens, or a smaller `sink` or `window`",
                tokens / block,
                smallest * block
            ),
        ));
    }
    Ok(())
}
