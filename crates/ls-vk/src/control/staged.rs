//! Stages that were submitted before they are known: each waits in the device's queue for a
//! semaphore that the host signals, and signals one that the host looks at. What a stage costs is
//! then a signal, not a submission.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use super::backend::{Mode, lost, record_slots};
use super::memory::{Mailbox, Memory};
use crate::device::Device;
use crate::error::{Checked, Result, VkError};
use crate::kernels::mlp::{Plan, RING};
use crate::recorder::Commands;
use crate::slab::Slab;

/// Stages that wait in the queue.
const AHEAD: u64 = 4;
/// How long the drop waits for the device.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Staged {
    device: Arc<Device>,
    mailbox: Mailbox,
    slots: Vec<Commands>,
    /// Signalled by the host with a stage's count when it is there.
    posted: vk::Semaphore,
    /// Signalled by the device with a stage's count when it is done.
    done: vk::Semaphore,
    // Stages are counted in 64 bits here; the low 32 are their number.
    n_submitted: u64,
    n_posted: u64,
    n_done: u64,
}

impl Staged {
    pub fn new(slab: &Arc<Slab>, plan: &Plan, memory: &Memory) -> Result<Self> {
        let device = Arc::clone(slab.device());
        if !device.limits().timeline_semaphore {
            let what = "semaphores that count (Vulkan 1.2)";
            return Err(VkError::Missing { device: device.info().name.clone(), what });
        }
        let slots = record_slots(slab, plan, memory, Mode::Staged)?;
        let posted = semaphore(&device, "posted stages")?;
        let done = semaphore(&device, "done stages").inspect_err(|_| {
            // SAFETY: nothing uses it yet.
            unsafe { device.raw.destroy_semaphore(posted, None) };
        })?;
        let mailbox = memory.mailbox.clone();
        Ok(Self { device, mailbox, slots, posted, done, n_submitted: 0, n_posted: 0, n_done: 0 })
    }

    pub fn post(&mut self, number: u32) -> Result<()> {
        debug_assert_eq!(number, self.n_posted as u32 + 1, "stages come in order");
        self.mailbox.ring(number)?;
        self.n_posted += 1;
        self.signal(self.n_posted)?;
        // Those of the next stages go in while the device is at this one.
        while self.n_submitted < self.n_posted + AHEAD
            && self.n_submitted < self.n_done + u64::from(RING)
        {
            self.submit_next()?;
        }
        Ok(())
    }

    fn signal(&self, value: u64) -> Result<()> {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.posted).value(value);
        // SAFETY: values only grow, and nothing but the host signals this semaphore.
        let result = unsafe { self.device.raw.signal_semaphore(&info) };
        self.device.note(result.during("vkSignalSemaphore"))
    }

    fn submit_next(&mut self) -> Result<()> {
        let count = self.n_submitted + 1;
        let commands = &self.slots[(count % u64::from(RING)) as usize];
        let (raw, wait, signal) = ([commands.raw], [self.posted], [self.done]);
        let (wait_values, signal_values) = ([count], [count]);
        let stages = [vk::PipelineStageFlags::COMPUTE_SHADER];
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&wait_values)
            .signal_semaphore_values(&signal_values);
        let info = vk::SubmitInfo::default()
            .command_buffers(&raw)
            .wait_semaphores(&wait)
            .wait_dst_stage_mask(&stages)
            .signal_semaphores(&signal)
            .push_next(&mut values);
        self.device.submit(commands.queue(), &info, vk::Fence::null(), "staged stages")?;
        self.n_submitted = count;
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        // SAFETY: the semaphore is alive.
        let value = unsafe { self.device.raw.get_semaphore_counter_value(self.done) };
        match value {
            Ok(value) => self.n_done = value,
            Err(vk::Result::ERROR_DEVICE_LOST) => {
                return Err(lost(&self.device, Mode::Staged, self.n_posted as u32));
            }
            Err(code) => return Err(code).during("vkGetSemaphoreCounterValue"),
        }
        Ok(())
    }

    pub fn is_done(&mut self, number: u32) -> Result<bool> {
        // `number` is among the last RING ones that were posted.
        let count = self.n_posted - u64::from((self.n_posted as u32).wrapping_sub(number));
        if self.n_done < count {
            self.look()?;
        }
        // Where the queue was full when the stage was posted, it has its turn now.
        while self.n_submitted < self.n_posted && self.n_submitted < self.n_done + u64::from(RING) {
            self.submit_next()?;
        }
        Ok(self.n_done >= count)
    }
}

fn semaphore(device: &Device, name: &str) -> Result<vk::Semaphore> {
    let mut kind = vk::SemaphoreTypeCreateInfo::default()
        .semaphore_type(vk::SemaphoreType::TIMELINE)
        .initial_value(0);
    let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: `info` lives until the call returns; the feature is enabled.
    let semaphore = unsafe { device.raw.create_semaphore(&info, None) };
    let semaphore = semaphore.during("vkCreateSemaphore")?;
    device.name(semaphore, name);
    Ok(semaphore)
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Stages that wait for the host would wait for ever. What lies in their slots are old
        // lists, whose frames may hold other bytes by now: they add to sums that nobody reads.
        if self.n_submitted > self.n_posted {
            let _ = self.signal(self.n_submitted);
        }
        let (semaphores, values) = ([self.done], [self.n_submitted]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: both semaphores are alive until nothing submitted uses them.
        let waited = unsafe { self.device.raw.wait_semaphores(&info, PATIENCE.as_nanos() as u64) };
        if waited == Err(vk::Result::TIMEOUT) {
            // The device may still use everything: none of it may go.
            self.device.give_up();
            std::mem::forget(std::mem::take(&mut self.slots));
            return;
        }
        // SAFETY: the device is done with them, or lost.
        unsafe {
            self.device.raw.destroy_semaphore(self.posted, None);
            self.device.raw.destroy_semaphore(self.done, None);
        }
    }
}
