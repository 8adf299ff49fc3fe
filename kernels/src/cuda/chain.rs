//! The device's chain.

use super::Cuda;
use oasis_core::chain::{Chain, ChainLayer, ChainSpec, PoolCounts, SeqControl};
use oasis_core::ids::Step;
use oasis_core::ops::{RowTable, TailMove};
use oasis_core::pool::Pool;
use oasis_core::store::HostStore;
use oasis_core::{Error, Result};

/// Stands for the chain until it is there.
pub enum NoChain {}

impl Chain for Cuda {
    type Chain = NoChain;

    fn has_chain(&self, _: &ChainSpec<'_>) -> std::result::Result<(), String> {
        Err("not written yet".into())
    }

    fn open_chain(
        &mut self,
        _: &ChainSpec<'_>,
        _: &[ChainLayer<'_, Self>],
        _: &HostStore<Self>,
        _: &[u64],
    ) -> Result<NoChain> {
        Err(Error::Unsupported("not written yet".into()))
    }

    fn load_pools(&mut self, chain: &mut NoChain, _: usize, _: &[Pool]) -> Result<()> {
        match *chain {}
    }

    fn begin_pass(&mut self, chain: &mut NoChain, _: Step, _: &[SeqControl]) -> Result<()> {
        match *chain {}
    }

    fn observe(&mut self, chain: &mut NoChain, _: usize, _: &RowTable<Self>) -> Result<()> {
        match *chain {}
    }

    fn rank(&mut self, chain: &mut NoChain, _: usize, _: &RowTable<Self>) -> Result<()> {
        match *chain {}
    }

    fn commit(
        &mut self,
        chain: &mut NoChain,
        _: Step,
        _: &[TailMove],
        _: &[[u32; 2]],
        _: &[u32],
    ) -> Result<()> {
        match *chain {}
    }

    fn counts(&mut self, chain: &mut NoChain, _: &mut [PoolCounts]) -> Result<()> {
        match *chain {}
    }

    fn resident(&mut self, chain: &mut NoChain, _: usize, _: &mut Vec<u32>) -> Result<()> {
        match *chain {}
    }
}
