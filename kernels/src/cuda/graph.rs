//! Recorded passes: what a pass puts on the lanes is captured once into a CUDA graph and replayed.

use super::Cuda;
use super::gpu::{Gpu, alone, failed};
use super::lanes::Lane;
use cudarc::driver::sys;
use oasis_core::ops::PassKey;
use oasis_core::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// A pass that was captured, ready to be launched.
struct Graph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    gpu: Arc<Gpu>,
}

// SAFETY: driver handles may be used by any thread that has the context bound; a graph has one owner.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: made by `record`, destroyed here only; a running graph is freed by the driver when it is done.
            unsafe {
                if !self.exec.is_null() {
                    cudarc::driver::result::graph::exec_destroy(self.exec).ok();
                }
                cudarc::driver::result::graph::destroy(self.graph).ok();
            }
        }
    }
}

/// What was baked into a graph beside the decode's own buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pass: PassKey,
    /// Scratch has moved so often.
    scratch: u64,
    probed: bool,
}

/// The recorded passes of one decode.
#[derive(Default)]
pub struct Recording {
    graphs: HashMap<Key, Option<Graph>>,
}

/// Graphs that are kept for one decode; one more and all are recorded anew.
const GRAPHS: usize = 64;

impl Cuda {
    /// A pass of a kind runs as it is the first time (scratch grows, kernels are loaded), is captured the second
    /// time, and replayed from then on.
    pub(super) fn replay_pass(
        &mut self,
        recording: &mut Recording,
        pass: PassKey,
        run: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.eager {
            return run(self);
        }
        let key = Key { pass, scratch: self.scratch_moves, probed: self.probe.is_some() };
        match recording.graphs.get(&key) {
            Some(Some(graph)) => return self.launch_graph(graph),
            Some(None) => {}
            None => {
                if recording.graphs.len() >= GRAPHS {
                    recording.graphs.clear();
                }
                run(self)?;
                let key = Key { scratch: self.scratch_moves, ..key };
                recording.graphs.insert(key, None);
                return Ok(());
            }
        }
        let graph = self.record(run)?;
        self.launch_graph(&graph)?;
        recording.graphs.insert(key, Some(graph));
        Ok(())
    }

    fn launch_graph(&self, graph: &Graph) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: instantiated, and what it refers to is alive: the decode owns both.
        unsafe { sys::cuGraphLaunch(graph.exec, self.lanes.stream(Lane::Foreground)) }
            .result()
            .map_err(failed("launching a recorded pass"))
    }

    fn record(&mut self, run: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<Graph> {
        let gpu = self.gpu.clone();
        // Nobody allocates or frees while a capture is under way.
        let _alone = alone();
        gpu.bind()?;
        let stream = self.lanes.stream(Lane::Foreground);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { cudarc::driver::result::stream::begin_capture(stream, mode) }
            .map_err(failed("recording a pass"))?;
        self.recording = true;
        let done = run(self);
        self.recording = false;
        // SAFETY: as above; a failed pass leaves a capture to be ended, too.
        let captured = unsafe { cudarc::driver::result::stream::end_capture(stream) };
        done?;
        let mut graph = Graph {
            graph: captured.map_err(failed("recording a pass"))?,
            exec: std::ptr::null_mut(),
            gpu: gpu.clone(),
        };
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0 as u64;
        // SAFETY: a pointer to write to, and a finished graph.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut graph.exec, graph.graph, flags) }
            .result()
            .map_err(failed("instantiating a recorded pass"))?;
        Ok(graph)
    }

    /// An error while a pass is being recorded: host data would be baked in, or the host would wait for nothing.
    pub(crate) fn not_while_recording(&self, what: &str) -> Result<()> {
        match self.recording {
            false => Ok(()),
            true => Err(Error::Invariant(format!("{what} while a pass is recorded"))),
        }
    }
}
