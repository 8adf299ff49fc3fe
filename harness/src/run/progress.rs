//! Progress on the terminal: rate and time left; silent where nobody looks.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// The bar of a run.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar over `units` of which `done` are done already.
    pub fn new(units: u64, done: u64) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(units), target).with_position(done);
        let style =
            ProgressStyle::with_template("{bar:24} {pos}/{len} decodes  {per_sec}  {eta} left  {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.reset_eta();
        Self { bar }
    }

    /// `n` more units are done; the last was this one.
    pub fn advance(&self, n: u64, what: &str) {
        self.bar.inc(n);
        self.bar.set_message(what.to_owned());
    }

    /// Prints a line above the bar.
    pub fn say(&self, line: &str) {
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
