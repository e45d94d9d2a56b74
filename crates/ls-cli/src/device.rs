//! What a result says about where it was computed.

use std::cell::Cell;

use ls_engine::Engine;
use serde::Serialize;

use crate::output;

/// Where MLPs were computed.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// `cpu` or `vulkan`: what computed them in the end.
    pub device: &'static str,
    /// Name of the GPU that was asked for.
    pub gpu: Option<String>,
    /// How work was handed to it.
    pub gpu_control: Option<&'static str>,
    /// Bytes of weights that it holds.
    pub gpu_bytes: Option<u64>,
    /// Why the processor took over from it.
    pub gpu_notice: Option<String>,
}

impl DeviceReport {
    /// Now.
    pub fn of(engine: &Engine) -> Self {
        let status = engine.device();
        Self {
            device: status.device,
            gpu_bytes: status.name.is_some().then_some(status.held_bytes),
            gpu: status.name,
            gpu_control: status.control,
            gpu_notice: status.notice,
        }
    }

    /// Where nothing but the processor computes.
    pub fn cpu() -> Self {
        Self { device: "cpu", gpu: None, gpu_control: None, gpu_bytes: None, gpu_notice: None }
    }
}

/// Says on standard error, once, that the processor has taken over from a GPU.
#[derive(Debug)]
pub struct Watch<'a> {
    engine: &'a Engine,
    is_said: Cell<bool>,
}

impl<'a> Watch<'a> {
    /// What had happened while the model was loaded is said already.
    pub fn new(engine: &'a Engine) -> Self {
        Self { engine, is_said: Cell::new(engine.device().notice.is_some()) }
    }

    /// Looks.
    pub fn look(&self) {
        if !self.is_said.get()
            && let Some(notice) = self.engine.device().notice
        {
            self.is_said.set(true);
            output::note(notice);
        }
    }
}
