//! `oasis trace info`: what a trace holds.

use super::folder::{Folder, Header, Origin};
use crate::report::grid::Grid;
use crate::report::{self, say, units};
use anyhow::{Result, bail};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `oasis trace info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the trace
    dir: PathBuf,
    /// Read every shard: check its hash, its tensors and its numbers
    #[arg(long)]
    verify: bool,
}

/// Prints the header; with `--verify` reads the shards.
pub fn run(args: &Args) -> Result<ExitCode> {
    let folder = Folder::open(&args.dir)?;
    say(&render(&folder.header))?;
    if args.verify {
        for (i, shard) in folder.header.shards.iter().enumerate() {
            if !folder.intact(i)? {
                bail!("{}: its SHA-256 is not that of trace.json: it was changed", shard.file);
            }
            folder.shard(i)?;
        }
        say(&format!("verified: {} shards\n", folder.header.shards.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(header: &Header) -> String {
    let g = &header.geometry;
    let mut text = String::new();
    let from = match (&header.recorded, header.origin) {
        (Some(r), Origin::Recorded) => {
            format!("recorded in cell `{}` ({}, blocks of {})", r.cell, r.mode, r.block)
        }
        _ => "imported".to_owned(),
    };
    let drafts = match header.recorded.as_ref().and_then(|r| r.draft.as_deref()) {
        Some(draft) if header.drafts => format!("draft rows of {draft}"),
        _ if header.drafts => "draft rows".to_owned(),
        _ => "no draft rows: a predictor that looks ahead can't be replayed".to_owned(),
    };
    let _ = writeln!(text, "{}, {from}; {drafts}", header.model);
    let _ = writeln!(
        text,
        "{} layers, {} query heads on {} KV heads of {}",
        g.layers, g.heads, g.kv_heads, g.head_dim
    );
    let column =
        |f: &dyn Fn(&super::ShardHeader) -> String| header.shards.iter().map(|s| Some(f(s))).collect();
    let mut grid = Grid::default();
    grid.words("file", column(&|s| s.file.clone()));
    grid.words("sample", column(&|s| s.sample.clone()));
    grid.numbers("prompt", column(&|s| s.prompt.to_string()));
    grid.numbers("steps", column(&|s| s.steps.to_string()));
    grid.numbers("rows", column(&|s| s.rows.to_string()));
    grid.numbers("size", column(&|s| units::bytes(s.bytes)));
    text + &grid.terminal(report::WIDTH)
}
