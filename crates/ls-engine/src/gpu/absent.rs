//! What stands in for a GPU in programs that cannot use one.

use std::convert::Infallible;

use ls_cache::Loan;
use ls_model::Config;
use ls_model::pack::LayerLayout;

use super::{GpuError, VulkanOptions};
use crate::EngineError;
use crate::chunks::{ChunkPass, ChunkSource};
use crate::weights::ChunkedMlp;

/// A device that cannot be opened.
#[derive(Debug)]
pub(crate) struct Opened(Infallible);

/// A service that cannot be taken up.
#[derive(Debug)]
pub(crate) struct Service(Infallible);

impl Opened {
    pub fn new(
        _: &VulkanOptions,
        _: &Config,
        _: &[LayerLayout],
    ) -> Result<Result<Self, (String, GpuError)>, GpuError> {
        Err(GpuError::NotBuilt)
    }

    pub fn is_in_host_memory(&self) -> bool {
        match self.0 {}
    }

    pub fn can_be_in_place(&self) -> bool {
        match self.0 {}
    }

    pub fn host_bytes(&self, _: &[LayerLayout], _: bool) -> u64 {
        match self.0 {}
    }

    pub fn name(&self) -> String {
        match self.0 {}
    }
}

impl Service {
    pub fn new(opened: &Opened, _: &[LayerLayout], _: u64) -> Result<Self, GpuError> {
        match opened.0 {}
    }

    pub fn in_place(opened: &Opened, _: &[LayerLayout], _: Loan) -> Result<Self, GpuError> {
        match opened.0 {}
    }

    pub fn is_in_place(&self) -> bool {
        match self.0 {}
    }

    pub fn rehearse(opened: &Opened, _: &[LayerLayout]) -> Result<(), GpuError> {
        match opened.0 {}
    }

    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub fn control(&self) -> &'static str {
        match self.0 {}
    }

    pub fn held(&self) -> impl Iterator<Item = u32> {
        match self.0 {}
        #[allow(unreachable_code)]
        std::iter::empty()
    }

    pub fn held_bytes(&self) -> u64 {
        match self.0 {}
    }

    pub fn holds_all(&self) -> bool {
        match self.0 {}
    }

    pub fn messages(&self) -> Vec<String> {
        match self.0 {}
    }

    pub fn fill(&mut self, _: &ChunkSource) -> Result<(), EngineError> {
        match self.0 {}
    }

    pub fn mlp(
        &mut self,
        _: usize,
        _: &ChunkedMlp,
        _: Option<&ChunkPass<'_>>,
        _: &[f32],
        _: &mut [f32],
    ) -> Result<(), EngineError> {
        match self.0 {}
    }
}
