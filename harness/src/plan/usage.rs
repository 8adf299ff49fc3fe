//! Which keys a cell uses. A key without effect is an error: whoever wrote it expects one.

use oasis_core::settings::{Emit, Mode};

/// What decides which keys have an effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traits {
    pub mode: Mode,
    /// The predictor ranks with draft rows.
    pub drafts: bool,
    pub emit: Emit,
    /// Sampling is not greedy.
    pub draws: bool,
}

/// Why `key` has no effect in a cell like this; none if it has one.
pub(super) fn unused(key: &str, t: Traits) -> Option<String> {
    let ranks = !matches!(t.mode, Mode::Dense | Mode::Window);
    let in_mode = || Some(format!("has no effect in mode `{}`", t.mode.name()));
    match key {
        "mode" | "block" | "batch" | "emit" | "temperature" => None,
        "top_p" if !t.draws => Some("has no effect at temperature 0".to_owned()),
        "top_p" => None,
        "budget" | "sink" | "audit" if t.mode == Mode::Dense => in_mode(),
        "budget" | "sink" | "audit" => None,
        "window" if !ranks => in_mode(),
        "cap" if !ranks || t.mode == Mode::Static => in_mode(),
        "draft" if t.emit == Emit::One && !(ranks && t.drafts) => {
            Some("has no effect: the predictor does not look ahead and `emit` is \"one\"".to_owned())
        }
        "draft" | "window" | "cap" => None,
        _ if !ranks => in_mode(),
        _ => None,
    }
}
