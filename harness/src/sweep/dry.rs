//! What a sweep would do: its cells, what each takes, and how long all of it will take.

use super::Sweeping;
use super::plan::{Part, Ready};
use crate::report::grid::Grid;
use crate::report::{self, units};
use crate::run::dry::{self, Cost};
use crate::run::probe::{Estimate, Probe, STEPS};
use crate::spec::shown;
use anyhow::Result;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// Weights up to this many bytes are loaded for a measurement without being asked.
const SMALL: usize = 1 << 30;

/// Prints the plan.
pub(super) fn print(sweep: &Sweeping<'_>) -> Result<ExitCode> {
    let record = &sweep.planned.record;
    let (runs, cells) = (sweep.planned.parts.len(), sweep.planned.cells());
    let mut out = format!("sweep {} · {} · {runs} run(s), {cells} cells\n", record.name, record.fingerprint);
    for axis in &record.axes {
        let places: Vec<String> =
            axis.values.iter().map(|v| v.iter().map(shown).collect::<Vec<_>>().join(" & ")).collect();
        out += &format!("axis {}: {}\n", axis.keys.join(" & "), places.join(", "));
    }
    let (mut decodes, mut seconds) = (0, Some(0.0));
    let mut code = ExitCode::SUCCESS;
    for (i, (part, run)) in sweep.planned.parts.iter().zip(&record.runs).enumerate() {
        let own = record.own(run);
        if own == 0 {
            continue;
        }
        out += &format!("\nrun {}: {own} decodes\n", run.name);
        let ready = match &part.ready {
            Ok(ready) => ready,
            Err(error) => {
                out += &format!("it will fail: {error}\n");
                code = ExitCode::FAILURE;
                continue;
            }
        };
        let only = sweep.only(i);
        let estimate = estimate(sweep, part, ready, &only)?;
        decodes += own;
        seconds = seconds.zip(estimate.as_ref()).map(|(a, b)| a + b.seconds());
        out += &table(sweep, part, ready, (&only, estimate.as_ref()))?;
    }
    out += &format!("\n{decodes} decodes, {}\n", time(seconds));
    report::say(&out)?;
    Ok(code)
}

fn time(seconds: Option<f64>) -> String {
    match seconds {
        Some(s) => format!(
            "about {}: measured just now on the first {STEPS} steps of one sample of every task in every cell, and its \
             prefill; answers that end early make it shorter",
            units::seconds(s)
        ),
        None => format!(
            "no estimate of the time: the weights are more than {}; --probe loads them and measures",
            units::bytes(SMALL as u64)
        ),
    }
}

/// Measures, unless the model is large and nobody asked.
fn estimate(sweep: &Sweeping<'_>, part: &Part, ready: &Ready, only: &[bool]) -> Result<Option<Estimate>> {
    let weights = dry::weights_bytes(&ready.opened.checkpoint.config);
    if weights > SMALL && !sweep.args.probe {
        return Ok(None);
    }
    let stop = AtomicBool::new(false);
    sweep.request(part, ready, Path::new(""), only, &stop).with(Probe).map(Some)
}

fn table(
    sweep: &Sweeping<'_>,
    part: &Part,
    ready: &Ready,
    (only, estimate): (&[bool], Option<&Estimate>),
) -> Result<String> {
    let (plan, samples) = (&part.plan, &ready.samples);
    let g = &ready.opened.checkpoint.config.geometry;
    let cells = || plan.cells.iter().zip(only).filter(|(_, only)| **only).map(|(cell, _)| cell);
    let costs: Vec<Option<Cost>> =
        cells().map(|c| dry::cost(plan, sweep.app, samples, c, g)).collect::<Result<_>>()?;
    let steps: usize = samples.jobs.iter().map(|j| j.max_new()).sum::<usize>() * plan.repeats as usize;
    let of = |f: &dyn Fn(&Cost) -> Option<String>| costs.iter().map(|c| f(c.as_ref()?)).collect::<Vec<_>>();
    let mut grid = Grid::default();
    grid.words("cell", cells().map(|c| Some(c.label.clone())).collect());
    grid.numbers("K", of(&|c| c.k.map(|k| k.to_string())));
    grid.numbers("C", of(&|c| c.c.map(|c| c.to_string())));
    grid.numbers("steps\nat most", costs.iter().map(|_| Some(steps.to_string())).collect());
    grid.numbers("device", of(&|c| Some(units::bytes(c.device))));
    grid.numbers("host", of(&|c| Some(units::bytes(c.host))));
    grid.numbers("moved a step\nat most", of(&|c| Some(units::bytes(c.moved))));
    if let Some(estimate) = estimate {
        let fails = |s: &Option<f64>| Some(s.map_or("fails".to_owned(), units::seconds));
        let own = estimate.cells.iter().zip(only).filter(|(_, only)| **only).map(|(seconds, _)| seconds);
        grid.numbers("one\nworker", own.map(fails).collect());
    }
    let mut out = grid.terminal(report::WIDTH);
    out += &format!("weights {}", units::bytes(dry::weights_bytes(&ready.opened.checkpoint.config) as u64));
    if let Some(e) = estimate {
        let prefill = units::seconds(e.prefill);
        out += &format!(
            ", prefills {prefill} on one worker, {} with {} worker(s)",
            units::seconds(e.seconds()),
            e.workers
        );
    }
    Ok(out + "\n")
}
