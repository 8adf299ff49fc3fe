//! The three streams of a backend handle, and the events that order them.

use super::gpu::{Gpu, failed};
use cudarc::driver::sys::{self, CUevent, CUstream};
use oasis_core::Result;
use std::sync::Arc;

/// A stream of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// What a step waits for; high priority.
    Foreground,
    /// Ranking and selection; low priority.
    Rank,
    /// Copies from the host store; low priority.
    Fetch,
}

/// An event; recorded again and again.
pub(crate) struct Event {
    event: CUevent,
    gpu: Arc<Gpu>,
}

// SAFETY: driver handles may be used by any thread that has the context bound.
unsafe impl Send for Event {}

impl Event {
    /// `timed`: it can be asked for times.
    pub(crate) fn new(gpu: &Arc<Gpu>, timed: bool) -> Result<Self> {
        gpu.bind()?;
        let flags = if timed {
            sys::CUevent_flags::CU_EVENT_DEFAULT
        } else {
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        let event = cudarc::driver::result::event::create(flags).map_err(failed("an event"))?;
        Ok(Self { event, gpu: gpu.clone() })
    }

    fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: both are alive.
        unsafe { cudarc::driver::result::event::record(self.event, stream) }.map_err(failed("an event"))
    }

    /// Records it so that it can be read later, also after a replay of what is being captured.
    pub(crate) fn record_readable(&self, stream: CUstream, capturing: bool) -> Result<()> {
        let external = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        let flag = if capturing { external } else { 0 };
        // SAFETY: both are alive.
        unsafe { sys::cuEventRecordWithFlags(self.event, stream, flag) }.result().map_err(failed("an event"))
    }

    /// Seconds from `start` to this event; both are done.
    pub(crate) fn since(&self, start: &Self) -> Result<f64> {
        // SAFETY: both are alive and timed; the driver says so if they are not done.
        let ms = unsafe { cudarc::driver::result::event::elapsed(start.event, self.event) };
        ms.map(|ms| f64::from(ms) / 1e3).map_err(failed("the time between two events"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: made by `new`, destroyed here only.
            unsafe { cudarc::driver::result::event::destroy(self.event) }.ok();
        }
    }
}

/// See the module.
pub(crate) struct Lanes {
    streams: [CUstream; 3],
    /// The foreground has come so far when background work begins.
    forked: Event,
    /// End of the ranking lane's, and of the fetch lane's, work so far.
    ranked: Event,
    fetched: Event,
    current: Lane,
    /// Lanes with work that the foreground has not waited for.
    ahead: [bool; 3],
    gpu: Arc<Gpu>,
}

// SAFETY: as for events.
unsafe impl Send for Lanes {}

impl Lanes {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.bind()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: two integers to write to.
        unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }
            .result()
            .map_err(failed("priorities of streams"))?;
        let event = || Event::new(gpu, false);
        let mut lanes = Self {
            streams: [std::ptr::null_mut(); 3],
            forked: event()?,
            ranked: event()?,
            fetched: event()?,
            current: Lane::Foreground,
            ahead: [false; 3],
            gpu: gpu.clone(),
        };
        for (stream, priority) in lanes.streams.iter_mut().zip([greatest, least, least]) {
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: a pointer to write to.
            unsafe { sys::cuStreamCreateWithPriority(stream, flags, priority) }
                .result()
                .map_err(failed("a stream"))?;
        }
        Ok(lanes)
    }

    pub(crate) fn stream(&self, lane: Lane) -> CUstream {
        self.streams[lane as usize]
    }

    /// The stream that launches and copies go to.
    pub(crate) fn current(&self) -> CUstream {
        self.stream(self.current)
    }

    /// What follows goes to this lane, which first waits for the work so far of the lane it depends on: ranking for
    /// the foreground, fetching for ranking. Back to the foreground waits for nothing.
    pub(crate) fn switch(&mut self, to: Lane) -> Result<()> {
        match to {
            Lane::Foreground => {}
            Lane::Rank => self.after(&self.forked, Lane::Foreground, to)?,
            Lane::Fetch => self.after(&self.ranked, Lane::Rank, to)?,
        }
        self.ahead[to as usize] |= to != Lane::Foreground;
        self.current = to;
        Ok(())
    }

    /// The foreground waits for all ranking and fetching so far.
    pub(crate) fn join(&mut self) -> Result<()> {
        for (lane, event) in [(Lane::Rank, &self.ranked), (Lane::Fetch, &self.fetched)] {
            // A lane that did nothing has no part in a capture, and must not be drawn into it.
            if std::mem::take(&mut self.ahead[lane as usize]) {
                self.after(event, lane, Lane::Foreground)?;
            }
        }
        Ok(())
    }

    fn after(&self, event: &Event, done: Lane, waits: Lane) -> Result<()> {
        self.gpu.bind()?;
        event.record(self.stream(done))?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event are alive.
        unsafe { cudarc::driver::result::stream::wait_event(self.stream(waits), event.event, flags) }
            .map_err(failed("waiting for an event"))
    }

    /// The host waits for all lanes.
    pub(crate) fn wait(&self) -> Result<()> {
        self.gpu.bind()?;
        for stream in self.streams {
            // SAFETY: alive.
            unsafe { cudarc::driver::result::stream::synchronize(stream) }
                .map_err(failed("the device's work"))?;
        }
        Ok(())
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        if self.wait().is_ok() {
            for stream in self.streams.into_iter().filter(|s| !s.is_null()) {
                // SAFETY: made by `new`, destroyed here only; nothing runs on it.
                unsafe { cudarc::driver::result::stream::destroy(stream) }.ok();
            }
        }
    }
}
