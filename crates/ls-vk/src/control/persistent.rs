//! One dispatch that lives over many stages.
//!
//! The device's side is `shaders/mlp_persistent.comp`. It ends by itself after a number of stages,
//! or when none has come for a while; then the fence is signalled, and it is started anew from the
//! first stage that is not done. No dispatch lives longer than [`LIFE`] while the host is there to
//! end it, so that no watchdog takes it for a hang.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::RunnerOptions;
use super::backend::{Mode, lost};
use super::memory::{Mailbox, Memory};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Result, VkError};
use crate::kernels::mlp::{Plan, RING};
use crate::memory::MemoryKind;
use crate::pipeline::{BindSet, Pipeline};
use crate::recorder::{For, Pending, Recorder};
use crate::slab::Slab;

/// After this the host ends a dispatch at the next stage. Watchdogs bite at two seconds and more.
const LIFE: Duration = Duration::from_millis(200);
/// How long the host waits for a dispatch that it told to end.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the host looks at the mailbox alone before it asks the driver whether the dispatch has
/// ended: while it is in the driver, a stage may be done unseen.
const PATIENCE: Duration = Duration::from_micros(30);
/// As in the shader: parts that workgroups are counted in, words from a counter to the next, and the
/// word that names a stage that got lost.
const MAX_LANES: u32 = 8;
const APART: u32 = 8;
const LOST_AT: u32 = MAX_LANES * RING;
/// Looks at the mailbox before one at the clock.
const LOOKS: u32 = 16;

#[derive(Debug)]
pub(super) struct Persistent {
    device: Arc<Device>,
    mailbox: Mailbox,
    pipeline: Arc<Pipeline>,
    set: Arc<BindSet>,
    done: Arc<Buffer>,
    arrivals: Arc<Buffer>,
    workgroups: u32,
    lanes: u32,
    spins: u32,
    patient: u32,
    max_stages: u32,
    running: Option<(Pending, Instant)>,
    /// The oldest stage that is not known to be done, and the one after the youngest posted.
    oldest: u32,
    next: u32,
    looks: u32,
    /// When the host began to wait for the oldest stage, or asked the driver last.
    asked: Option<Instant>,
    launches: u64,
}

impl Persistent {
    pub fn new(
        slab: &Arc<Slab>,
        plan: &Plan,
        memory: &Memory,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let device = Arc::clone(slab.device());
        let missing = |what| VkError::Missing { device: device.info().name.clone(), what };
        let limits = device.limits();
        if !limits.persistent || !limits.mapped_device_memory {
            return Err(missing("memory that host and a running kernel both see"));
        }
        let shader = plan.variant().persistent_shader(limits);
        let shader = shader.ok_or_else(|| missing("a persistent kernel for one slab"))?;
        let kind = options.completion.unwrap_or(MemoryKind::Readback);
        // Each look at mapped memory may cross a bus.
        let lanes = if kind == MemoryKind::Readback { plan.workgroups.min(MAX_LANES) } else { 1 };
        let constants = [&plan.constants()[..], &[lanes]].concat();
        let pipeline = Arc::new(Pipeline::new(&device, shader, &constants)?);
        let words = |n: u32| 4 * u64::from(n);
        let done = Arc::new(Buffer::new(&device, kind, words(LOST_AT + 1), "done stages")?);
        done.fill(0)?;
        let counters = words(RING * MAX_LANES * APART);
        let arrivals = Buffer::new(&device, MemoryKind::Device, counters, "arrivals")?;
        let arrivals = Arc::new(arrivals);
        let one = |buffer: &Arc<Buffer>| [Arc::clone(buffer)];
        let set = BindSet::new(
            &pipeline,
            &[
                slab.buffers(),
                &one(&memory.inputs),
                &one(memory.lists()),
                &one(&memory.partials),
                &one(&memory.results),
                &one(memory.lists()),
                &one(&done),
                &one(&arrivals),
            ],
        )?;
        // On lavapipe spins count against the iterations that a thread has: an eighth goes to each
        // of a stage, the wait for it and the wait for others, and there are two stages.
        let bound = device.limits().max_loop_iterations.map(|n| n / 8);
        let spins = options.spins.unwrap_or(8192);
        let (max_spins, max_stages) =
            (bound.map_or(u32::MAX, |n| n / 4), bound.map_or(u32::MAX, |_| 2));
        Ok(Self {
            mailbox: memory.mailbox.clone(),
            pipeline,
            set: Arc::new(set),
            done,
            arrivals,
            workgroups: plan.workgroups,
            lanes,
            spins: spins.min(max_spins),
            patient: bound.unwrap_or_else(|| spins.saturating_mul(4).max(1 << 14)),
            max_stages: options.max_stages.unwrap_or(1 << 20).min(max_stages),
            running: None,
            oldest: 1,
            next: 1,
            looks: 0,
            asked: None,
            launches: 0,
            device,
        })
    }

    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Ends a dispatch that has lived long, while it waits for just this stage.
    pub fn prepare(&mut self, number: u32) -> Result<()> {
        let old = self.running.as_ref().is_some_and(|(_, began)| began.elapsed() > LIFE);
        if old && self.oldest == number {
            self.end(number)?;
            self.mailbox.unring(number)?;
        }
        Ok(())
    }

    pub fn post(&mut self, number: u32) -> Result<()> {
        self.mailbox.ring(number)?;
        self.next = number.wrapping_add(1);
        if self.running.is_none() {
            self.launch()?;
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        self.mailbox.unpark(self.oldest)?;
        let mut recorder = Recorder::new(&self.device, For::Compute, "persistent stages")?;
        // Others spin longer than the first workgroup, which decides, and may start last.
        let push = [self.oldest, self.max_stages, self.spins, self.patient];
        recorder.fill(&self.arrivals, 0).barrier().dispatch(
            &self.pipeline,
            &self.set,
            &push,
            self.workgroups,
        );
        let pending = recorder.finish()?.submit()?;
        self.launches += 1;
        self.running = Some((pending, Instant::now()));
        Ok(())
    }

    /// Tells the dispatch to end at stage `number`, which has not been posted, and waits for it.
    fn end(&mut self, number: u32) -> Result<()> {
        let Some((pending, _)) = self.running.take() else { return Ok(()) };
        self.mailbox.ring_park(number)?;
        pending.wait(END_TIMEOUT).map(drop).inspect_err(|_| self.device.give_up())
    }

    pub fn is_done(&mut self, memory: &mut Memory, number: u32, output: bool) -> Result<bool> {
        if self.has_come(memory, number, output)? {
            self.oldest = number.wrapping_add(1);
            (self.looks, self.asked) = (0, None);
            return Ok(true);
        }
        self.looks += 1;
        if self.looks >= LOOKS {
            self.looks = 0;
            let now = Instant::now();
            match self.asked {
                Some(asked) if now.duration_since(asked) < PATIENCE => {}
                Some(_) => {
                    self.revive(memory, number, output)?;
                    self.asked = Some(Instant::now());
                }
                None => self.asked = Some(now),
            }
        }
        Ok(false)
    }

    fn has_come(&self, memory: &mut Memory, number: u32, output: bool) -> Result<bool> {
        if !output {
            let first = u64::from(MAX_LANES * (number % RING));
            for lane in 0..u64::from(self.lanes) {
                if self.done.peek(first + lane)? != number {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        memory.collect(number)
    }

    /// Starts the dispatch anew if it has ended.
    fn revive(&mut self, memory: &mut Memory, number: u32, output: bool) -> Result<()> {
        match &self.running {
            Some((pending, _)) if !pending.is_done()? => return Ok(()),
            Some(_) => self.running = None,
            None => {}
        }
        if self.device.is_lost() {
            return Err(lost(&self.device, Mode::Persistent, number));
        }
        let stage = self.done.peek(LOST_AT.into())?;
        if stage != 0 {
            return Err(VkError::Stalled { stage });
        }
        // It may have done this stage just before it ended.
        if !self.has_come(memory, number, output)? {
            self.oldest = number;
            self.launch()?;
        }
        Ok(())
    }
}

impl Drop for Persistent {
    fn drop(&mut self) {
        // Stages that were posted are done first; then it finds this one.
        let _ = self.end(self.next);
    }
}
