//! The queue of stages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::{Backend, Mode};
use super::memory::{self, Memory};
use super::{RunnerOptions, Ticket, Work};
use crate::error::{Result, VkError};
use crate::kernels::mlp::{MlpShape, Plan, PlanOptions, RING, Variant, X_SLOTS};
use crate::memory::MemoryKind;
use crate::slab::{FrameLease, Slab};

/// A stage, or a part of one that is too long for a dispatch.
#[derive(Debug)]
struct Queued {
    ticket: Ticket,
    pass: u64,
    bits: u32,
    entries: Vec<u32>,
    output: bool,
    /// The last part of its ticket.
    last: bool,
    /// Dropped when the device is done with the part.
    _leases: Vec<FrameLease>,
}

#[derive(Debug)]
struct Posted {
    number: u32,
    stage: Queued,
}

/// Runs the stages of one shape of MLP on the frames of a slab.
#[derive(Debug)]
pub struct Runner {
    // First: it stops the device before anything that is in use goes.
    backend: Backend,
    memory: Memory,
    plan: Plan,
    slab: Arc<Slab>,
    queue: VecDeque<Queued>,
    posted: VecDeque<Posted>,
    outputs: VecDeque<(Ticket, Vec<f32>)>,
    spare: Vec<Vec<f32>>,
    spare_entries: Vec<Vec<u32>>,
    next_ticket: u64,
    next_number: u32,
    pass: u64,
    /// The pass that a stage was posted of last.
    begun: u64,
    /// Of the slab when a stage was posted last.
    fillings: Option<u64>,
    /// The ticket of which the first parts were posted and the last was not.
    split: Option<Ticket>,
    depth: usize,
    failed: Option<VkError>,
}

/// Outputs that wait to be taken; older ones are dropped.
const KEPT_OUTPUTS: usize = 16;

impl Runner {
    /// Compiles the kernels for a shape and gets their memory.
    ///
    /// # Errors
    ///
    /// [`VkError::Shape`], [`VkError::Limit`], [`VkError::Missing`] where the device cannot run the
    /// mode or variant that was asked for.
    pub fn new(slab: &Arc<Slab>, shape: MlpShape, options: &RunnerOptions) -> Result<Self> {
        let device = slab.device();
        let (mode, limits) = (options.mode.unwrap_or(Mode::Blocking), device.limits());
        let plan_options = PlanOptions {
            variant: variant(slab, &shape, options, mode)?,
            tuning: options.tuning,
            max_entries: options.max_entries.unwrap_or(4096),
        };
        let mut plan = Plan::new(shape, slab.layout(), limits, &plan_options)?;
        if mode == Mode::Persistent && options.tuning.workgroups.is_none() {
            // All workgroups of a persistent dispatch must run at once: fewer, until they do.
            // Lavapipe never promises it for more than one.
            if limits.max_loop_iterations.is_some() {
                plan.workgroups = 1;
            }
            while plan.workgroups > 1 && !Self::build(slab, plan, mode, options)?.all_meet()? {
                plan.workgroups = plan.workgroups.div_ceil(2);
            }
        }
        Self::build(slab, plan, mode, options)
    }

    /// Whether the workgroups of a dispatch meet when a stage hands out its sums.
    fn all_meet(mut self) -> Result<bool> {
        const TIMEOUT: Duration = Duration::from_secs(5);
        let mut out = vec![0.0; self.plan.shape.d_model];
        self.begin(&out, TIMEOUT)?;
        let ticket = self.queue(&Work::Neurons(vec![]), true, vec![])?;
        match self.output(ticket, &mut out, TIMEOUT) {
            Ok(()) => Ok(true),
            Err(VkError::Stalled { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn build(slab: &Arc<Slab>, plan: Plan, mode: Mode, options: &RunnerOptions) -> Result<Self> {
        let completion = options.completion.unwrap_or(MemoryKind::Readback);
        let memory = Memory::new(slab.device(), &plan, completion)?;
        let backend = Backend::new(mode, slab, &plan, &memory, options)?;
        Ok(Self {
            backend,
            memory,
            plan,
            slab: Arc::clone(slab),
            queue: VecDeque::new(),
            posted: VecDeque::new(),
            outputs: VecDeque::new(),
            spare: vec![],
            spare_entries: vec![],
            next_ticket: 1,
            // Zero is what fresh memory may hold.
            next_number: 1,
            pass: 0,
            begun: 0,
            fillings: None,
            split: None,
            depth: options.depth.unwrap_or(2).clamp(1, RING / 2) as usize,
            failed: None,
        })
    }

    /// How the work is laid out.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How stages are handed to the device.
    pub fn mode(&self) -> Mode {
        self.backend.mode()
    }

    /// How often a persistent dispatch was started; 0 in the other modes.
    pub fn launches(&self) -> u64 {
        self.backend.launches()
    }

    /// Begins a pass with the input `x`, `[d_model]`. Stages that are queued from now on belong to
    /// it. Waits while the inputs of earlier passes are in use.
    ///
    /// # Errors
    ///
    /// [`VkError::Shape`] for another length; [`VkError::DeviceLost`], [`VkError::Timeout`].
    pub fn begin(&mut self, x: &[f32], timeout: Duration) -> Result<()> {
        if x.len() != self.plan.shape.d_model {
            let what = format!("{} inputs for a width of {}", x.len(), self.plan.shape.d_model);
            return Err(VkError::Shape { what });
        }
        let pass = self.pass + 1;
        let slots = u64::from(X_SLOTS);
        self.until(timeout, "the input of an earlier pass", |runner| {
            runner.oldest_pass().is_none_or(|oldest| oldest + slots > pass)
        })?;
        self.memory.write_input(&self.plan, (pass % slots) as u32, x)?;
        self.pass = pass;
        Ok(())
    }

    fn oldest_pass(&self) -> Option<u64> {
        let posted = self.posted.iter().map(|p| p.stage.pass);
        posted.chain(self.queue.iter().map(|q| q.pass)).min()
    }

    /// Queues a stage of the pass that was begun last. With `output`, the sum of all stages of the
    /// pass that were handed to the device up to this one can be taken afterwards. The leases are
    /// dropped when the device is done with the stage.
    ///
    /// # Errors
    ///
    /// [`VkError::Shape`], [`VkError::Frame`], [`VkError::Limit`] for a list that does not fit.
    pub fn queue(&mut self, work: &Work, output: bool, leases: Vec<FrameLease>) -> Result<Ticket> {
        if self.pass == 0 {
            return Err(VkError::Shape { what: "a stage without an input".into() });
        }
        let n_entries = work.entries().len();
        if n_entries > self.plan.max_entries as usize {
            let (needed, limit) = (n_entries as u64, self.plan.max_entries.into());
            return Err(VkError::Limit { what: "entries of a stage", needed, limit });
        }
        let mut entries = self.spare_entries.pop().unwrap_or_default();
        work.encode(&self.slab, &self.plan.shape, &mut entries)?;
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        // Sums of other workgroups' rows come on top, and in a persistent dispatch other stages.
        let eighths = if self.mode() == Mode::Persistent { 1 } else { 6 };
        let most = self.plan.max_neurons(self.slab.device().limits(), eighths);
        let size = usize::try_from(most / u64::from(work.per_entry())).unwrap_or(usize::MAX).max(1);
        let bits = memory::bits(work, self.pass);
        let part = |entries, last, leases| Queued {
            ticket,
            pass: self.pass,
            bits,
            entries,
            output: output && last,
            last,
            _leases: leases,
        };
        while entries.len() > size {
            let rest = entries.split_off(size);
            self.queue.push_back(part(entries, false, vec![]));
            entries = rest;
        }
        self.queue.push_back(part(entries, true, leases));
        Ok(ticket)
    }

    /// Takes a stage back, unless the device was given any of it already; says whether it did.
    /// Its leases end.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let given = self.posted.iter().any(|p| p.stage.ticket == ticket);
        if given || self.split == Some(ticket) {
            return false;
        }
        let before = self.queue.len();
        self.queue.retain(|q| q.ticket != ticket);
        before != self.queue.len()
    }

    /// Puts stages that still wait in the order of `tickets`, in the places that they have among
    /// the others. Tickets that the device was given already are passed over, as are those of other
    /// passes than the one begun last: sums of different passes do not mix.
    pub fn reorder(&mut self, tickets: &[Ticket]) {
        let (pass, split) = (self.pass, self.split);
        let movable =
            |q: &Queued| q.pass == pass && split != Some(q.ticket) && tickets.contains(&q.ticket);
        let (mut places, mut taken) = (vec![], vec![]);
        let mut kept: VecDeque<Option<Queued>> = VecDeque::new();
        for (i, queued) in std::mem::take(&mut self.queue).into_iter().enumerate() {
            if movable(&queued) {
                places.push(i);
                taken.push(queued);
                kept.push_back(None);
            } else {
                kept.push_back(Some(queued));
            }
        }
        let rank = |q: &Queued| tickets.iter().position(|t| *t == q.ticket);
        // Stable: the parts of a stage stay in their order.
        taken.sort_by_key(rank);
        places.into_iter().zip(taken).for_each(|(i, queued)| kept[i] = Some(queued));
        self.queue = kept.into_iter().flatten().collect();
    }

    /// Takes note of what the device has done and gives it what is next, without waiting.
    ///
    /// # Errors
    ///
    /// [`VkError::DeviceLost`], [`VkError::Stalled`]: all later calls fail likewise.
    pub fn pump(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let lost = VkError::DeviceLost { during: format!("{} stages", self.mode()) };
        let there = if self.slab.device().is_lost() { Err(lost) } else { Ok(()) };
        there.and_then(|()| self.retire()).and_then(|()| self.post()).inspect_err(|error| {
            self.failed = Some(error.clone());
        })
    }

    fn retire(&mut self) -> Result<()> {
        while let Some(oldest) = self.posted.front() {
            let (number, output) = (oldest.number, oldest.stage.output);
            if !self.backend.is_done(&mut self.memory, number, output)? {
                return Ok(());
            }
            let mut posted = self.posted.pop_front().expect("looked at above");
            if self.spare_entries.len() < KEPT_OUTPUTS {
                self.spare_entries.push(std::mem::take(&mut posted.stage.entries));
            }
            if output {
                let values = self.memory.take_results(self.spare.pop().unwrap_or_default());
                if self.outputs.len() == KEPT_OUTPUTS {
                    self.spare.extend(self.outputs.pop_front().map(|(_, values)| values));
                }
                self.outputs.push_back((posted.stage.ticket, values));
            }
        }
        Ok(())
    }

    fn post(&mut self) -> Result<()> {
        while self.posted.len() < self.depth {
            let Some(next) = self.queue.front() else { return Ok(()) };
            // Sums that are being handed out must not be added to, nor begun anew, meanwhile.
            let half = next.pass % 2;
            if self.posted.iter().any(|p| p.stage.output && p.stage.pass % 2 == half) {
                return Ok(());
            }
            let stage = self.queue.pop_front().expect("looked at above");
            let mut bits = stage.bits;
            if stage.pass != self.begun {
                bits |= memory::FLAG_FIRST;
                self.begun = stage.pass;
            }
            if stage.output {
                bits |= memory::FLAG_OUTPUT;
            }
            let fillings = self.slab.fillings();
            if bits & memory::FLAG_FIRST != 0 || fillings.is_none() || fillings != self.fillings {
                bits |= memory::FLAG_FRESH;
                self.fillings = fillings;
            }
            let number = self.next_number;
            self.next_number = number.wrapping_add(1);
            self.backend.prepare(number)?;
            self.memory.mailbox.write(number, &stage.entries, bits)?;
            self.split = (!stage.last).then_some(stage.ticket);
            self.posted.push_back(Posted { number, stage });
            self.backend.post(number)?;
        }
        Ok(())
    }

    /// Whether the device is done with a stage (or it was cancelled), as of the last
    /// [`Runner::pump`].
    pub fn is_done(&self, ticket: Ticket) -> bool {
        let waits = self.queue.iter().any(|q| q.ticket == ticket);
        ticket.0 < self.next_ticket
            && !waits
            && !self.posted.iter().any(|p| p.stage.ticket == ticket)
    }

    /// Waits until the device is done with a stage.
    ///
    /// # Errors
    ///
    /// [`VkError::Timeout`] after `timeout`: the stage goes on. [`VkError::DeviceLost`].
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<()> {
        if ticket.0 >= self.next_ticket {
            return Err(VkError::UnknownStage { ticket: ticket.0 });
        }
        self.until(timeout, "a stage", |runner| runner.is_done(ticket))
    }

    /// Waits for a stage that was queued with `output`, and copies the sum to `out`, `[d_model]`.
    ///
    /// # Errors
    ///
    /// As [`Runner::wait`]; [`VkError::UnknownStage`] if it has no output, or had it taken.
    pub fn output(&mut self, ticket: Ticket, out: &mut [f32], timeout: Duration) -> Result<()> {
        self.wait(ticket, timeout)?;
        let place = self.outputs.iter().position(|(of, _)| *of == ticket);
        let place = place.ok_or(VkError::UnknownStage { ticket: ticket.0 })?;
        let (_, values) = self.outputs.remove(place).expect("found above");
        if values.len() != out.len() {
            let what = format!("{} outputs for a width of {}", out.len(), values.len());
            return Err(VkError::Shape { what });
        }
        out.copy_from_slice(&values);
        self.spare.push(values);
        Ok(())
    }

    /// Pumps until `done`.
    fn until(&mut self, timeout: Duration, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        let began = Instant::now();
        for turn in 0u64.. {
            self.pump()?;
            if done(self) {
                return Ok(());
            }
            // A stage takes microseconds; only what takes longer shares the processor.
            if turn % 16 == 0 && began.elapsed() > Duration::from_micros(200) {
                if began.elapsed() > timeout {
                    let millis = timeout.as_millis() as u64;
                    return Err(VkError::Timeout { what: what.into(), millis });
                }
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        unreachable!("2^64 turns")
    }
}

/// The best variant that the options allow and the device can run.
fn variant(slab: &Slab, shape: &MlpShape, options: &RunnerOptions, mode: Mode) -> Result<Variant> {
    let device = slab.device();
    let allowed = |v: Variant| match options.variant {
        Some(variant) => v == variant,
        None => mode != Mode::Persistent || v.persistent_shader(device.limits()).is_some(),
    };
    let best = Variant::best(device.limits(), shape, slab.layout().n_slabs, allowed);
    let what = "what this variant of the kernel needs";
    best.ok_or_else(|| VkError::Missing { device: device.info().name.clone(), what })
}
