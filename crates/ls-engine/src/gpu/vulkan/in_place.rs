//! Chunks that the GPU reads where streaming put them.

use std::collections::VecDeque;

use ls_model::pack::LayerLayout;
use ls_vk::Result;
use ls_vk::control::{Runner, Ticket, Work};

use super::layer::{Flow, TIMEOUT};
use crate::EngineError;
use crate::chunks::{ChunkPass, Segment};
use crate::gpu::GpuError;
use crate::weights::ChunkedMlp;

/// Bytes of chunks in a stage of a single token, about: enough that handing it over costs little
/// beside it, and few enough that the GPU begins early.
const ALONE_BYTES: usize = 1 << 20;
/// The same of several tokens, each of which passes through a stage by itself.
const TOGETHER_BYTES: usize = 4 << 20;

/// Segments whose frames the next stage reads.
#[derive(Debug, Default)]
struct Group<'p> {
    segments: Vec<Segment<'p>>,
    /// Frames, and the neurons in each.
    frames: Vec<(u32, u32)>,
}

/// Stages that were queued, the oldest first, with the segments that they read.
#[derive(Debug, Default)]
struct InFlight<'p> {
    stages: VecDeque<(Ticket, Group<'p>)>,
    n_chunks: usize,
}

impl<'p> InFlight<'p> {
    fn push(&mut self, ticket: Ticket, group: Group<'p>) {
        self.n_chunks += group.frames.len();
        self.stages.push_back((ticket, group));
    }

    /// Gives back what no stage reads any more.
    fn release(&mut self, runner: &mut Runner) -> Result<()> {
        runner.pump()?;
        while let Some((_, group)) = self.stages.pop_front_if(|(ticket, _)| runner.is_done(*ticket))
        {
            self.n_chunks -= group.frames.len();
        }
        Ok(())
    }

    /// Waits for the oldest stage.
    fn wait(&mut self, runner: &mut Runner) -> Result<()> {
        if let Some((ticket, _)) = self.stages.front() {
            runner.wait(*ticket, TIMEOUT)?;
        }
        self.release(runner)
    }
}

impl Flow<'_> {
    /// Computes the chunks of layer `i` in the cache's frames, as they come. Each segment is kept until
    /// the stages of all tokens that read it are done.
    ///
    /// Where stages begin and end depends on the pack and on the room for chunks alone, not on what
    /// came when: the same setting gives the same bits.
    pub fn stream_in_place(
        &mut self,
        (i, mlp): (usize, &ChunkedMlp),
        pass: &ChunkPass<'_>,
    ) -> std::result::Result<(), EngineError> {
        let mut in_flight = InFlight::default();
        let streamed = self.queue_in_place(&mut in_flight, (i, mlp), pass);
        // Also if a chunk could not be read: no frame goes back, to be filled anew, while a stage may read it.
        while !in_flight.stages.is_empty() {
            let waited = in_flight.wait(self.runner).map_err(GpuError::from);
            if let Err(error) = waited {
                return streamed.and(Err(error.into()));
            }
        }
        streamed
    }

    fn queue_in_place<'p>(
        &mut self,
        in_flight: &mut InFlight<'p>,
        (i, mlp): (usize, &ChunkedMlp),
        pass: &ChunkPass<'p>,
    ) -> std::result::Result<(), EngineError> {
        let layout = &mlp.layout;
        let is_alone = self.x.len() == self.sum.len();
        // The other half is for reads to come.
        let most = pass.room() / 2;
        let most_at_once = stage_chunks(layout, is_alone, pass.room());
        let mut group = Group::default();
        for s in 0..layout.n_segments() {
            let chunks = layout.segment(s);
            loop {
                in_flight.release(self.runner).map_err(GpuError::from)?;
                let n_chunks = in_flight.n_chunks + group.frames.len() + chunks.len();
                let is_next = n_chunks <= most && pass.is_settled(i, s);
                if is_next || in_flight.stages.is_empty() {
                    break;
                }
                // What stages hold may be what the segment's reads wait for.
                in_flight.wait(self.runner).map_err(GpuError::from)?;
            }
            let Some(segment) = pass.segment(i, s, 1)? else {
                unreachable!("one thread waits, so no other's segment can have failed");
            };
            let neurons = chunks.map(|chunk| layout.neurons_in(chunk) as u32);
            group.frames.extend(segment.frames().zip(neurons));
            group.segments.push(segment);
            let is_last = s + 1 == layout.n_segments();
            if is_last || group.frames.len() + layout.segment(s + 1).len() > most_at_once {
                let group = std::mem::take(&mut group);
                // Where this fails the device has failed: what it still reads, nobody uses.
                let ticket = self.stage_in_place(&group, layout, is_last);
                if let Some(ticket) = ticket.map_err(GpuError::from)? {
                    in_flight.push(ticket, group);
                }
            }
        }
        Ok(())
    }

    fn stage_in_place(
        &mut self,
        group: &Group<'_>,
        layout: &LayerLayout,
        is_last: bool,
    ) -> Result<Option<Ticket>> {
        let per_frame = layout.neurons_per_chunk as u32;
        let work = Work::Frames { per_frame, frames: group.frames.clone() };
        if let Some(fault) = &mut self.fault {
            match fault.stages_left.checked_sub(1) {
                Some(left) => *fault.stages_left = left,
                None => fault.device.give_up(),
            }
        }
        self.stage(&work, is_last, None)
    }
}

/// Chunks of a stage: whole segments, one at least. Where all chunks have frames of their own, nothing
/// is gained by stages that begin early.
fn stage_chunks(layout: &LayerLayout, is_alone: bool, room: usize) -> usize {
    if room == usize::MAX {
        return usize::MAX;
    }
    let bytes = if is_alone { ALONE_BYTES } else { TOGETHER_BYTES };
    // With the next segment that is waited for it must still be within the room.
    (bytes / layout.record_bytes.max(1)).min(room / 2)
}
