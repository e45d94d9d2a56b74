//! Recording commands, submitting them, waiting for them.
//!
//! What a recording uses it keeps alive, and a submission keeps its recording, so nothing is
//! destroyed under a device that still works with it.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use crate::buffer::Buffer;
use crate::device::{Device, Queue};
use crate::error::{Checked, Result, VkError};
use crate::pipeline::{BindSet, Pipeline};

/// Commands that are being recorded.
pub struct Recorder {
    commands: Commands,
}

/// Commands that can be submitted, any number of times, one after the other.
pub struct Commands {
    device: Arc<Device>,
    pool: vk::CommandPool,
    pub(crate) raw: vk::CommandBuffer,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
    label: String,
    transfer: bool,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Recorder").field(&self.commands.label).finish()
    }
}

impl std::fmt::Debug for Commands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Commands").field(&self.label).finish()
    }
}

/// The queue that commands are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Kernels and copies.
    Compute,
    /// Copies, beside running kernels; the compute queue where there is no other.
    Transfer,
}

impl Recorder {
    /// Begins to record; `label` names the commands in errors and messages.
    pub fn new(device: &Arc<Device>, queue: For, label: &str) -> Result<Self> {
        let transfer = queue == For::Transfer && device.transfer.is_some();
        let family = if transfer { device.transfer.as_ref() } else { None };
        let family = family.unwrap_or(&device.compute).family;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
        // SAFETY: the device is alive, here and below.
        let pool = unsafe { device.raw.create_command_pool(&info, None) };
        let pool = pool.during("vkCreateCommandPool")?;
        let mut commands = Commands {
            device: Arc::clone(device),
            pool,
            raw: vk::CommandBuffer::null(),
            kept: vec![],
            label: label.into(),
            transfer,
        };
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is used by this recorder alone.
        let made = unsafe { device.raw.allocate_command_buffers(&info) };
        commands.raw = made.during("vkAllocateCommandBuffers")?[0];
        device.name(commands.raw, label);
        let info = vk::CommandBufferBeginInfo::default();
        // SAFETY: the buffer is new.
        unsafe { device.raw.begin_command_buffer(commands.raw, &info) }
            .during("vkBeginCommandBuffer")?;
        Ok(Self { commands })
    }

    /// Runs a pipeline over `groups` workgroups.
    pub fn dispatch(
        &mut self,
        pipeline: &Arc<Pipeline>,
        set: &Arc<BindSet>,
        push: &[u32],
        groups: u32,
    ) -> &mut Self {
        let (raw, commands) = (&self.commands.device.raw, self.commands.raw);
        let bytes: Vec<u8> = push.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let point = vk::PipelineBindPoint::COMPUTE;
        // SAFETY: recording has begun; pipeline and set belong together and are kept below.
        unsafe {
            raw.cmd_bind_pipeline(commands, point, pipeline.raw);
            raw.cmd_bind_descriptor_sets(commands, point, pipeline.layout, 0, &[set.raw], &[]);
            if !bytes.is_empty() {
                let stage = vk::ShaderStageFlags::COMPUTE;
                raw.cmd_push_constants(commands, pipeline.layout, stage, 0, &bytes);
            }
            raw.cmd_dispatch(commands, groups, 1, 1);
        }
        self.commands.kept.push(Arc::clone(pipeline) as _);
        self.commands.kept.push(Arc::clone(set) as _);
        self
    }

    /// What was written before is seen by all that follows, the host included.
    pub fn barrier(&mut self) -> &mut Self {
        use vk::{AccessFlags as A, PipelineStageFlags as S};
        let all = A::MEMORY_READ | A::MEMORY_WRITE;
        let memory = vk::MemoryBarrier::default().src_access_mask(all).dst_access_mask(all);
        let stages = if self.commands.transfer {
            S::TRANSFER | S::HOST
        } else {
            S::COMPUTE_SHADER | S::TRANSFER | S::HOST
        };
        // SAFETY: recording has begun; the barrier names no object.
        unsafe {
            self.commands.device.raw.cmd_pipeline_barrier(
                self.commands.raw,
                stages,
                stages,
                vk::DependencyFlags::empty(),
                &[memory],
                &[],
                &[],
            );
        }
        self
    }

    /// Copies `(from, to, bytes)` pieces of one buffer to another.
    ///
    /// # Errors
    ///
    /// [`VkError::OutOfRange`].
    pub fn copy(
        &mut self,
        from: &Arc<Buffer>,
        to: &Arc<Buffer>,
        pieces: &[(u64, u64, u64)],
    ) -> Result<&mut Self> {
        for (at, buffer, bytes) in pieces.iter().flat_map(|p| [(p.0, from, p.2), (p.1, to, p.2)]) {
            let end = at.saturating_add(bytes);
            if end > buffer.len() || bytes == 0 {
                return Err(VkError::OutOfRange { at, end, len: buffer.len() });
            }
        }
        if pieces.is_empty() {
            return Ok(self);
        }
        let regions: Vec<_> = pieces
            .iter()
            .map(|p| vk::BufferCopy { src_offset: p.0, dst_offset: p.1, size: p.2 })
            .collect();
        // SAFETY: recording has begun; the ranges were checked; the buffers are kept below.
        unsafe {
            self.commands.device.raw.cmd_copy_buffer(self.commands.raw, from.raw, to.raw, &regions);
        }
        self.commands.kept.extend([Arc::clone(from) as _, Arc::clone(to) as _]);
        Ok(self)
    }

    /// Fills a buffer with one word.
    pub fn fill(&mut self, buffer: &Arc<Buffer>, word: u32) -> &mut Self {
        // SAFETY: recording has begun; the buffer is kept below.
        unsafe {
            self.commands.device.raw.cmd_fill_buffer(
                self.commands.raw,
                buffer.raw,
                0,
                vk::WHOLE_SIZE,
                word,
            );
        }
        self.commands.kept.push(Arc::clone(buffer) as _);
        self
    }

    /// Ends the recording; all that it wrote is visible to the host once it has run.
    pub fn finish(mut self) -> Result<Commands> {
        self.barrier();
        let commands = self.commands;
        // SAFETY: recording has begun and nothing is open.
        unsafe { commands.device.raw.end_command_buffer(commands.raw) }
            .during("vkEndCommandBuffer")?;
        Ok(commands)
    }
}

impl Commands {
    pub(crate) fn queue(&self) -> &Queue {
        let transfer = if self.transfer { self.device.transfer.as_ref() } else { None };
        transfer.unwrap_or(&self.device.compute)
    }

    /// Submits; the commands come back from [`Pending::wait`].
    pub fn submit(self) -> Result<Pending> {
        let device = Arc::clone(&self.device);
        let info = vk::FenceCreateInfo::default();
        // SAFETY: the device is alive.
        let fence = unsafe { device.raw.create_fence(&info, None) }.during("vkCreateFence")?;
        let raw = [self.raw];
        let submit = vk::SubmitInfo::default().command_buffers(&raw);
        if let Err(error) = device.submit(self.queue(), &submit, fence, &self.label) {
            // SAFETY: the fence was not submitted.
            unsafe { device.raw.destroy_fence(fence, None) };
            return Err(error);
        }
        Ok(Pending { commands: Some(self), fence })
    }

    /// Submits and waits at most `timeout`.
    pub fn run(self, timeout: Duration) -> Result<Self> {
        self.submit()?.wait(timeout)
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // SAFETY: commands in flight are owned by a `Pending` or by whoever submitted them raw,
        // who drop them when they are done.
        unsafe { self.device.raw.destroy_command_pool(self.pool, None) };
    }
}

/// How long a drop waits for the device before it rather leaks what is in use.
const PATIENCE: Duration = Duration::from_secs(10);

/// Commands that the device works on.
#[must_use = "dropping it waits"]
#[derive(Debug)]
pub struct Pending {
    commands: Option<Commands>,
    fence: vk::Fence,
}

impl Pending {
    /// Whether the commands are done.
    pub fn is_done(&self) -> Result<bool> {
        let Some(commands) = &self.commands else { return Ok(true) };
        // SAFETY: the fence is alive while the commands are.
        let status = unsafe { commands.device.raw.get_fence_status(self.fence) };
        commands.device.note(status.during("vkGetFenceStatus"))
    }

    /// Waits, and hands the commands back.
    ///
    /// # Errors
    ///
    /// [`VkError::Timeout`]: they still run, and the drop of this value waits for them once more.
    /// [`VkError::DeviceLost`].
    pub fn wait(mut self, timeout: Duration) -> Result<Commands> {
        self.wait_fence(timeout)?;
        let commands = self.commands.take().expect("taken here alone");
        // SAFETY: the device is done with the fence.
        unsafe { commands.device.raw.destroy_fence(self.fence, None) };
        Ok(commands)
    }

    fn wait_fence(&self, timeout: Duration) -> Result<()> {
        let commands = self.commands.as_ref().expect("there until waited for");
        let device = &commands.device;
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the fence is alive.
        match unsafe { device.raw.wait_for_fences(&[self.fence], true, nanos) } {
            Err(vk::Result::TIMEOUT) => Err(VkError::Timeout {
                what: commands.label.clone(),
                millis: timeout.as_millis() as u64,
            }),
            Err(vk::Result::ERROR_DEVICE_LOST) => {
                device.note(Err(VkError::DeviceLost { during: commands.label.clone() }))
            }
            other => other.during("vkWaitForFences"),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(commands) = &self.commands else {
            return;
        };
        let device = Arc::clone(&commands.device);
        if matches!(self.wait_fence(PATIENCE), Err(VkError::Timeout { .. })) {
            // The device may still use everything: none of it may go. Nor is the device any good.
            device.give_up();
            std::mem::forget(self.commands.take());
            return;
        }
        // SAFETY: the device is done with the fence, or lost.
        unsafe { device.raw.destroy_fence(self.fence, None) };
    }
}
