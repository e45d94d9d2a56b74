//! One layer's MLP on the GPU.

use std::collections::VecDeque;
use std::time::Duration;

use ls_vk::control::{Runner, Ticket, Work};
use ls_vk::{Device, Result};

use super::ring::Ring;
use crate::EngineError;
use crate::chunks::{ChunkPass, Segment};
use crate::gpu::GpuError;
use crate::weights::ChunkedMlp;

/// How long the GPU may take for a stage. Far longer than any takes, also on a driver that computes on
/// a busy processor.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// Passes whose outputs are waited for at once: the inputs of so many are kept apart.
const IN_FLIGHT: usize = 3;

/// Tokens on their way through a layer.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    pub runner: &'a mut Runner,
    /// Room for an output, `[d_model]`.
    pub sum: &'a mut [f32],
    /// Outputs that are to come, and whose they are.
    pub waiting: &'a mut VecDeque<(Ticket, usize)>,
    /// `[n, d_model]`
    pub x: &'a [f32],
    /// `[n, d_model]`
    pub out: &'a mut [f32],
    /// Whether the single token's pass has begun.
    pub has_begun: bool,
    /// What is to fail on the way.
    pub fault: Option<StageFault<'a>>,
}

/// A device that is lost when so many more stages were queued that read chunks in place.
#[derive(Debug)]
pub(super) struct StageFault<'a> {
    pub device: &'a Device,
    pub stages_left: &'a mut u64,
}

impl Flow<'_> {
    /// Queues a stage for each token. A single token has one pass for all stages, of which the `last`
    /// hands the sum out; of several tokens, each stage is a pass for itself. The last ticket.
    pub fn stage(
        &mut self,
        work: &Work,
        last: bool,
        ring: Option<&Ring>,
    ) -> Result<Option<Ticket>> {
        let d = self.sum.len();
        let n = self.x.len() / d;
        let mut latest = None;
        for t in 0..n {
            if n > 1 || !self.has_begun {
                self.has_begun = true;
                self.runner.begin(&self.x[t * d..][..d], TIMEOUT)?;
            }
            let output = n > 1 || last;
            let leases = match (ring, work) {
                (Some(ring), Work::Frames { frames, .. }) => {
                    ring.lease(frames.iter().map(|(frame, _)| *frame))?
                }
                // Frames that are held are leased for as long.
                _ => Vec::new(),
            };
            let ticket = self.runner.queue(work, output, leases)?;
            latest = Some(ticket);
            if output {
                self.waiting.push_back((ticket, t));
            }
            if self.waiting.len() > IN_FLIGHT {
                self.collect()?;
            }
            self.runner.pump()?;
        }
        Ok(latest)
    }

    /// Waits for the oldest output and adds it.
    fn collect(&mut self) -> Result<()> {
        let Some((ticket, t)) = self.waiting.pop_front() else { return Ok(()) };
        self.runner.output(ticket, self.sum, TIMEOUT)?;
        let d = self.sum.len();
        let out = &mut self.out[t * d..][..d];
        out.iter_mut().zip(&*self.sum).for_each(|(out, x)| *out += x);
        Ok(())
    }

    /// Waits for all outputs.
    pub fn finish(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            self.collect()?;
        }
        Ok(())
    }

    /// Computes the chunks of layer `i` from chunk `held` on, as they come.
    pub fn stream(
        &mut self,
        ring: &mut Ring,
        (i, mlp): (usize, &ChunkedMlp),
        pass: &ChunkPass<'_>,
        held: u32,
    ) -> std::result::Result<(), EngineError> {
        let layout = &mlp.layout;
        // A token alone gains from stages that begin early; each stage of several costs as many passes.
        let is_alone = self.x.len() == self.sum.len();
        let group = if is_alone { 1 } else { ring.group() };
        let mut frames: Vec<u32> = Vec::new();
        let mut chunks: Vec<u32> = Vec::new();
        for s in 0..layout.n_segments() {
            let Some(segment) = pass.segment(i, s, 1)? else {
                unreachable!("one thread waits, so no other's segment can have failed");
            };
            let own = layout.segment(s);
            let n_held = held.clamp(own.start, own.end) - own.start;
            self.put(ring, &segment, n_held, &mut frames)?;
            chunks.extend(own.start + n_held..own.end);
            // Its memory is given back before the GPU computes.
            drop(segment);
            let next = layout.segment(s + 1).len();
            let is_last = s + 1 == layout.n_segments();
            let is_full = !frames.is_empty() && frames.len() + next > group;
            if is_last || is_full {
                let n_neurons = |chunk: &u32| layout.neurons_in(*chunk) as u32;
                let entries = frames.drain(..).zip(chunks.drain(..).map(|c| n_neurons(&c)));
                let per_frame = layout.neurons_per_chunk as u32;
                let work = Work::Frames { per_frame, frames: entries.collect() };
                self.group(ring, &work, is_last).map_err(GpuError::from)?;
            }
        }
        Ok(())
    }

    fn put(
        &mut self,
        ring: &mut Ring,
        segment: &Segment<'_>,
        n_held: u32,
        frames: &mut Vec<u32>,
    ) -> std::result::Result<(), GpuError> {
        // Streaming leaves out what is held.
        let skipped = if matches!(segment, Segment::Mapped(..)) { n_held } else { 0 };
        Ok(ring.put(self.runner, segment.records().skip(skipped as usize), frames)?)
    }

    fn group(&mut self, ring: &mut Ring, work: &Work, last: bool) -> Result<()> {
        let Work::Frames { frames, .. } = work else { return Ok(()) };
        let ticket = self.stage(work, last, Some(ring))?;
        if let Some(ticket) = ticket {
            ring.used_by(ticket, frames.len() as u32);
        }
        Ok(())
    }
}
