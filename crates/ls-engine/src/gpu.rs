//! The MLPs of a pack on a GPU, all else on the CPU.
//!
//! Chunks lie in *frames* of the GPU's memory. As many as there is memory for are *held*: the first ones
//! of each layer, the same share of every layer. They are brought there once, when the model is loaded.
//! The others pass through a ring of frames, each time a layer is computed; they come from the mapped
//! file or, under a budget, from the streaming, which then reads what the GPU does not hold and nothing else.
//!
//! A GPU that shares the host's memory and can import it needs neither under a budget: it computes *in
//! place*, from the cache's own frames. The streaming retains and reads as for the CPU, and each segment
//! is kept until the stage that reads it is done.
//!
//! Each token of a batch is a pass of its own through the layer's frames. So a prompt takes the GPU as
//! long for each token as decoding does, but what is streamed is read once for the whole batch.
//!
//! When the GPU fails, it is retired: the pass that was under way begins anew on the CPU, and so does
//! every later one. [`DeviceStatus::notice`] says so.
//!
//! Without the feature `vulkan`, and in statically linked programs (which cannot load Vulkan's loader),
//! all of it is absent: asking for a GPU is an error.

mod error;
#[cfg_attr(
    not(all(feature = "vulkan", not(any(target_feature = "crt-static", target_env = "musl")))),
    path = "gpu/absent.rs"
)]
mod vulkan;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::EngineError;
use crate::chunks::{ChunkPass, ChunkSource};
use crate::weights::ChunkedMlp;
pub use error::GpuError;
pub(crate) use vulkan::{Opened, Service};

/// Where MLPs are computed.
#[derive(Clone, Debug, Default)]
pub enum Device {
    /// On the CPU.
    #[default]
    Cpu,
    /// Those of packs on a GPU, through Vulkan.
    Vulkan(VulkanOptions),
}

/// Which GPU, and how it is used.
#[derive(Clone, Debug, Default)]
pub struct VulkanOptions {
    /// A part of the device's name. `None`: the best one that does not compute on the processor; such a
    /// one is only taken when it is named.
    pub name: Option<String>,
    /// Folder for the results of self-tests, which otherwise run each time.
    pub cache: Option<PathBuf>,
    /// How stages are handed to the device; `None`: the best way that passed the self-test.
    pub control: Option<Control>,
    /// Most bytes of chunks that the device holds; `None`: as many as it has memory for.
    pub memory: Option<u64>,
    /// Whether the validation layers check each call; what they say is in [`DeviceStatus::messages`].
    pub validation: bool,
    /// Takes from the device what another one lacks: for tests.
    pub profile: Option<Profile>,
    /// A failure to inject: for tests.
    pub fault: Option<GpuFault>,
}

/// How stages are handed to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// A dispatch that lives over many stages.
    Persistent,
    /// Recorded stages that wait for a semaphore.
    Staged,
    /// A submission for each stage.
    Blocking,
}

/// A device that is not at hand, as far as its limits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The least that works.
    Least,
    /// A phone with an Adreno 7xx.
    Adreno7xx,
    /// A Jetson Orin.
    Orin,
}

/// A failure to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFault {
    /// No kernel passes the self-test.
    SelfTest,
    /// The device is lost after it computed so many layers.
    LostAfter(u64),
    /// The device is lost after so many stages were queued that read chunks in place.
    LostAfterStages(u64),
    /// The driver does not import the cache's memory.
    Import,
}

/// Where MLPs are computed now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStatus {
    /// `cpu` or `vulkan`: what computes them now.
    pub device: &'static str,
    /// Name of the GPU that was asked for.
    pub name: Option<String>,
    /// How stages are handed to it.
    pub control: Option<&'static str>,
    /// Bytes of chunks that it holds.
    pub held_bytes: u64,
    /// Whether it reads streamed chunks where they were read to: none is copied.
    pub in_place: bool,
    /// Why chunks are copied, where the device should be able to read them in place.
    pub copy_reason: Option<String>,
    /// Why the CPU has taken over.
    pub notice: Option<String>,
    /// What the validation layers said.
    pub messages: Vec<String>,
}

/// A GPU in service, or one that has failed.
#[derive(Debug)]
pub(crate) struct Gpu {
    name: String,
    control: Option<&'static str>,
    held_bytes: u64,
    holds_all: bool,
    in_place: bool,
    copy_reason: Option<String>,
    service: Mutex<Option<Service>>,
    in_service: AtomicBool,
    notice: Mutex<Option<String>>,
    messages: Mutex<Vec<String>>,
    /// Bytes and transit frames of the cache when the GPU holds nothing.
    cache: Mutex<Option<(u64, u64)>>,
}

impl Gpu {
    /// Takes a service up.
    pub fn new(service: Service, cache: Option<(u64, u64)>) -> Self {
        Self {
            name: service.name().to_owned(),
            control: Some(service.control()),
            held_bytes: service.held_bytes(),
            holds_all: service.holds_all(),
            in_place: service.is_in_place(),
            copy_reason: None,
            service: Mutex::new(Some(service)),
            in_service: AtomicBool::new(true),
            notice: Mutex::new(None),
            messages: Mutex::default(),
            cache: Mutex::new(cache),
        }
    }

    /// One that failed before it was in service.
    pub fn failed(name: String, error: &GpuError) -> Self {
        let notice = Mutex::new(Some(notice(&name, error)));
        Self {
            name,
            control: None,
            held_bytes: 0,
            holds_all: false,
            in_place: false,
            copy_reason: None,
            service: Mutex::new(None),
            in_service: AtomicBool::new(false),
            notice,
            messages: Mutex::default(),
            cache: Mutex::new(None),
        }
    }

    /// The same, whose driver did not import the cache's memory if there is a `reason`.
    pub fn copying_for(mut self, reason: Option<&GpuError>) -> Self {
        self.copy_reason = reason.map(ToString::to_string);
        self
    }

    /// Whether it computes.
    pub fn in_service(&self) -> bool {
        self.in_service.load(Ordering::Acquire)
    }

    /// Whether it holds every chunk: a pass takes none from elsewhere.
    pub fn holds_all(&self) -> bool {
        self.holds_all
    }

    /// Bytes of the chunks that it holds.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// What the cache has when the GPU is retired.
    pub fn set_cache(&self, bytes: u64, transit: u64) {
        *self.cache.lock() = Some((bytes, transit));
    }

    /// Sets `out`, `[n, d_model]`, to what the MLP of layer `i` gives for the inputs `x`, `[n, d_model]`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Gpu`] if it failed; others if chunks could not be read.
    pub fn mlp(
        &self,
        i: usize,
        mlp: &ChunkedMlp,
        pass: Option<&ChunkPass<'_>>,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        match &mut *self.service.lock() {
            Some(service) => service.mlp(i, mlp, pass, x, out),
            None => Err(GpuError::Retired.into()),
        }
    }

    /// Ends the service after a failure: what it held comes from `chunks` again. Call it when no pass of
    /// the caller is under way.
    pub fn retire(&self, error: &GpuError, chunks: Option<&ChunkSource>) {
        // Taken before anything is waited for: another caller's pass may wait for the service's lock.
        let service = self.service.lock().take();
        // Its frames go at the end of the block: the cache may need their memory.
        if let Some(service) = service {
            self.messages.lock().extend(service.messages());
            self.notice.lock().get_or_insert_with(|| notice(&self.name, error));
        }
        if let Some(streamer) = chunks.and_then(ChunkSource::streamer) {
            streamer.hold(std::iter::repeat(0));
            if let Some((bytes, transit)) = *self.cache.lock() {
                streamer.set_cache(bytes, transit);
            }
        }
        // Last: whoever sees it begins a pass that takes all chunks from there.
        self.in_service.store(false, Ordering::Release);
    }

    /// What is known of it.
    pub fn status(&self) -> DeviceStatus {
        let in_service = self.in_service();
        let mut messages = self.messages.lock();
        if let Some(service) = &*self.service.lock() {
            messages.extend(service.messages());
        }
        DeviceStatus {
            device: if in_service { "vulkan" } else { "cpu" },
            name: Some(self.name.clone()),
            control: self.control,
            held_bytes: if in_service { self.held_bytes } else { 0 },
            in_place: in_service && self.in_place,
            copy_reason: self.copy_reason.clone(),
            notice: self.notice.lock().clone(),
            messages: messages.clone(),
        }
    }
}

fn notice(name: &str, error: &GpuError) -> String {
    format!("the GPU {name} is not used any more: {error}; the CPU takes over, and nothing is lost")
}

impl DeviceStatus {
    /// Of an engine that was asked for no GPU.
    pub(crate) fn cpu() -> Self {
        Self {
            device: "cpu",
            name: None,
            control: None,
            held_bytes: 0,
            in_place: false,
            copy_reason: None,
            notice: None,
            messages: Vec::new(),
        }
    }
}
