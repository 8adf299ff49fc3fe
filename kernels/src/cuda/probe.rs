//! Times within a pass, by events that are part of its recording.

use super::Cuda;
use super::gpu::Gpu;
use super::lanes::{Event, Lane};
use oasis_core::Result;
use oasis_core::ops::PassSeconds;
use std::sync::Arc;

/// Pairs of events of the last pass, in the order of its work.
pub(super) struct Probe {
    pass: [Event; 2],
    waits: Pairs,
    fetches: Pairs,
    gpu: Arc<Gpu>,
}

/// Begin and end of pieces of work of one kind.
#[derive(Default)]
struct Pairs {
    events: Vec<[Event; 2]>,
    used: usize,
}

impl Pairs {
    /// The next pair (`begin`), or the last one.
    fn mark(&mut self, gpu: &Arc<Gpu>, begin: bool) -> Result<&Event> {
        if begin {
            if self.used == self.events.len() {
                self.events.push([Event::new(gpu, true)?, Event::new(gpu, true)?]);
            }
            self.used += 1;
        }
        Ok(&self.events[self.used - 1][usize::from(!begin)])
    }

    fn seconds(&self) -> Result<f64> {
        self.events[..self.used].iter().map(|[begin, end]| end.since(begin)).sum()
    }
}

impl Probe {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let pass = [Event::new(gpu, true)?, Event::new(gpu, true)?];
        Ok(Self { pass, waits: Pairs::default(), fetches: Pairs::default(), gpu: gpu.clone() })
    }
}

impl Cuda {
    pub(super) fn mark_begin(&mut self) -> Result<()> {
        let stream = self.lanes.stream(Lane::Foreground);
        let Some(probe) = &mut self.probe else { return Ok(()) };
        (probe.waits.used, probe.fetches.used) = (0, 0);
        probe.pass[0].record_readable(stream, self.recording)
    }

    pub(super) fn mark_end(&mut self) -> Result<()> {
        let stream = self.lanes.stream(Lane::Foreground);
        self.probe.as_ref().map_or(Ok(()), |probe| probe.pass[1].record_readable(stream, self.recording))
    }

    /// Around what the foreground waits for.
    pub(super) fn mark_wait(&mut self, begin: bool) -> Result<()> {
        let stream = self.lanes.stream(Lane::Foreground);
        let Some(Probe { waits, gpu, .. }) = &mut self.probe else { return Ok(()) };
        waits.mark(gpu, begin)?.record_readable(stream, self.recording)
    }

    /// Around the copies of a layer.
    pub(crate) fn mark_fetch(&mut self, begin: bool) -> Result<()> {
        let stream = self.lanes.current();
        let Some(Probe { fetches, gpu, .. }) = &mut self.probe else { return Ok(()) };
        fetches.mark(gpu, begin)?.record_readable(stream, self.recording)
    }

    pub(super) fn probed_seconds(&mut self) -> Result<Option<PassSeconds>> {
        if self.probe.is_none() {
            return Ok(None);
        }
        self.lanes.wait()?;
        let Some(Probe { pass: [begin, end], waits, fetches, .. }) = &self.probe else { return Ok(None) };
        Ok(Some(PassSeconds {
            total: end.since(begin)?,
            fetch: fetches.seconds()?,
            exposed: waits.seconds()?,
        }))
    }
}
