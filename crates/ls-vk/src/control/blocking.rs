//! One submission and one fence for each stage: the plainest way, and the measure for the others.

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

/// How long a stage may take.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Blocking {
    device: Arc<Device>,
    mailbox: Mailbox,
    slots: Vec<Commands>,
    fence: vk::Fence,
    /// Commands were submitted that are not known to be done.
    in_flight: bool,
    done: u32,
}

impl Blocking {
    pub fn new(slab: &Arc<Slab>, plan: &Plan, memory: &Memory) -> Result<Self> {
        let device = Arc::clone(slab.device());
        let slots = record_slots(slab, plan, memory, Mode::Blocking)?;
        let info = vk::FenceCreateInfo::default();
        // SAFETY: the device is alive.
        let fence = unsafe { device.raw.create_fence(&info, None) }.during("vkCreateFence")?;
        device.name(fence, "blocking stages");
        let mailbox = memory.mailbox.clone();
        Ok(Self { device, mailbox, slots, fence, in_flight: false, done: 0 })
    }

    pub fn post(&mut self, number: u32) -> Result<()> {
        self.mailbox.ring(number)?;
        let commands = &self.slots[(number % RING) as usize];
        let raw = [commands.raw];
        let info = vk::SubmitInfo::default().command_buffers(&raw);
        let label = format_args!("blocking stage {number}").to_string();
        self.device.submit(commands.queue(), &info, self.fence, &label)?;
        self.in_flight = true;
        let nanos = TIMEOUT.as_nanos() as u64;
        // SAFETY: the fence was submitted above and is used here alone.
        match unsafe { self.device.raw.wait_for_fences(&[self.fence], true, nanos) } {
            Ok(()) => {}
            Err(vk::Result::ERROR_DEVICE_LOST) => {
                return Err(lost(&self.device, Mode::Blocking, number));
            }
            // The commands may still run: nothing may be reused, so the device is given up.
            Err(vk::Result::TIMEOUT) => {
                self.device.give_up();
                let millis = TIMEOUT.as_millis() as u64;
                return Err(VkError::Timeout { what: label, millis });
            }
            Err(code) => return Err(code).during("vkWaitForFences"),
        }
        // SAFETY: signalled, so no submission has it.
        unsafe { self.device.raw.reset_fences(&[self.fence]) }.during("vkResetFences")?;
        self.in_flight = false;
        self.done = number;
        Ok(())
    }

    pub fn is_done(&self, number: u32) -> bool {
        number == self.done || number.wrapping_sub(self.done) > u32::MAX / 2
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        let nanos = TIMEOUT.as_nanos() as u64;
        // SAFETY: the fence is alive, and used by this value alone.
        let still_runs = self.in_flight
            && unsafe { self.device.raw.wait_for_fences(&[self.fence], true, nanos) }
                == Err(vk::Result::TIMEOUT);
        if still_runs {
            // The device may still use everything: none of it may go.
            std::mem::forget(std::mem::take(&mut self.slots));
            return;
        }
        // SAFETY: no submission has the fence any more, or the device is lost.
        unsafe { self.device.raw.destroy_fence(self.fence, None) };
    }
}
