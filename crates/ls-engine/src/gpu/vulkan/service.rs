//! A GPU with the chunks that it holds.

use std::collections::VecDeque;
use std::sync::Arc;

use ls_cache::Loan;
use ls_model::pack::LayerLayout;
use ls_vk::control::{Mode, Runner, RunnerOptions, Ticket, Work};
use ls_vk::kernels::mlp::{MlpShape, Variant};
use ls_vk::{Device, FrameLease, Slab, VkError, twin};

use super::layer::{Flow, StageFault, TIMEOUT};
use super::open::Opened;
use super::ring::Ring;
use super::share::{Share, n_chunks};
use crate::EngineError;
use crate::chunks::{ChunkPass, ChunkSource};
use crate::gpu::{GpuError, GpuFault};
use crate::needs::frame_bytes;
use crate::weights::ChunkedMlp;

/// Of the magnitude of what is summed up: errors of floats, of halves, and of inputs in bytes.
const FLOAT_BOUND: f64 = 6e-6;
const HALVES_BOUND: f64 = 1e-2;
const BYTES_BOUND: f64 = 1e-2;

/// A layer on the GPU.
#[derive(Debug)]
struct GpuLayer {
    /// Which runner has its shape.
    runner: usize,
    layout: LayerLayout,
    /// The chunks that are held: all of them in one stage.
    held: Work,
    n_held: u32,
}

/// Computes layers on a GPU, one at a time.
#[derive(Debug)]
pub(crate) struct Service {
    // First: they stop the device before its frames go.
    runners: Vec<Runner>,
    layers: Vec<GpuLayer>,
    /// Of the frames that are held.
    leases: Vec<FrameLease>,
    /// `None`: chunks are read in place.
    ring: Option<Ring>,
    slab: Arc<Slab>,
    device: Arc<Device>,
    /// Room for an output, `[d_model]`.
    sum: Vec<f32>,
    waiting: VecDeque<(Ticket, usize)>,
    /// The runner that may still have stages of a layer that was given up.
    unfinished: Option<usize>,
    mode: Mode,
    fault: Option<GpuFault>,
    n_computed: u64,
    /// Stages until the device is lost, if that is the fault.
    stages_left: u64,
}

impl Service {
    /// Makes room for as many of `wanted` chunks as the device has memory for, and compiles kernels.
    ///
    /// # Errors
    ///
    /// If the device has no memory for the smallest share, or fails.
    pub fn new(opened: &Opened, layers: &[LayerLayout], wanted: u64) -> Result<Self, GpuError> {
        let frame = frame_bytes(layers);
        let frame_bytes = u32::try_from(frame).unwrap_or(u32::MAX);
        let most = opened.options.memory.map_or(u64::MAX, |bytes| bytes / frame.max(1) as u64);
        let mut n_held = wanted.min(n_chunks(layers)).min(most);
        let (share, slab) = loop {
            let share = Share::of(layers, n_held);
            match Slab::new(&opened.device, frame_bytes, share.n_frames(), None) {
                Ok(slab) => break (share, slab),
                Err(VkError::OutOfMemory { .. } | VkError::Limit { .. }) if n_held > 0 => {
                    // Down to none in some steps.
                    n_held = n_held * 7 / 8;
                }
                Err(error) => return Err(error.into()),
            }
        };
        let ring = Ring::new(Arc::clone(&slab), share.n_held());
        Self::on(slab, opened, layers, (&share, Some(ring), opened.mode))
    }

    /// Computes from the frames of a cache, whose memory the driver imports, and compiles kernels.
    ///
    /// # Errors
    ///
    /// If the driver does not import it, or fails.
    pub fn in_place(
        opened: &Opened,
        layers: &[LayerLayout],
        memory: Loan,
    ) -> Result<Self, GpuError> {
        if opened.options.fault == Some(GpuFault::Import) {
            return Err(GpuError::Import);
        }
        let frame_bytes = u32::try_from(memory.frame_bytes()).unwrap_or(u32::MAX);
        let n_frames = u32::try_from(memory.n_frames()).unwrap_or(u32::MAX);
        let slab = Slab::import(&opened.device, memory, frame_bytes, n_frames)?;
        Self::on(slab, opened, layers, (&Share::none(layers), None, opened.mode_in_place))
    }

    /// Compiles kernels for the frames of `slab`.
    fn on(
        slab: Arc<Slab>,
        opened: &Opened,
        layers: &[LayerLayout],
        (share, ring, mode): (&Share, Option<Ring>, Mode),
    ) -> Result<Self, GpuError> {
        let mut shapes: Vec<MlpShape> = Vec::new();
        let (mut first, mut of) = (0, Vec::new());
        for ((layout, shape), n_held) in layers.iter().zip(&opened.shapes).zip(&share.held) {
            let known = shapes.iter().position(|known| known == shape);
            let runner = known.unwrap_or_else(|| {
                shapes.push(*shape);
                shapes.len() - 1
            });
            let entry = |chunk: u32| (first + chunk, layout.neurons_in(chunk) as u32);
            let frames = (0..*n_held).map(entry).collect();
            let held = Work::Frames { per_frame: layout.neurons_per_chunk as u32, frames };
            of.push(GpuLayer { runner, layout: *layout, held, n_held: *n_held });
            first += n_held;
        }
        let longest = layers.iter().map(|layer| layer.n_chunks).max();
        let runner = |shape: &MlpShape| runner(opened, &slab, *shape, (longest, mode));
        let runners = shapes.iter().map(runner).collect::<Result<Vec<_>, _>>()?;
        let d_model = shapes.first().map_or(0, |shape| shape.d_model);
        Ok(Self {
            runners,
            layers: of,
            leases: Vec::new(),
            ring,
            slab,
            device: Arc::clone(&opened.device),
            sum: vec![0.0; d_model],
            waiting: VecDeque::new(),
            unfinished: None,
            mode,
            fault: opened.options.fault,
            n_computed: 0,
            stages_left: match opened.options.fault {
                Some(GpuFault::LostAfterStages(n)) => n,
                _ => 0,
            },
        })
    }

    /// Compiles the kernels, runs them on nothing, and gives all of it back. What the driver holds from
    /// then on counts as the program's own.
    ///
    /// # Errors
    ///
    /// As [`Service::new`].
    pub fn rehearse(opened: &Opened, layers: &[LayerLayout]) -> Result<(), GpuError> {
        let mut service = match opened.can_be_in_place() {
            false => Self::new(opened, layers, 0)?,
            true => {
                // Kernels do not depend on how many frames there are.
                let frame_bytes = u32::try_from(frame_bytes(layers)).unwrap_or(u32::MAX);
                let slab = Slab::new(&opened.device, frame_bytes, 1, None)?;
                Self::on(slab, opened, layers, (&Share::none(layers), None, opened.mode_in_place))?
            }
        };
        for runner in &mut service.runners {
            service.sum.fill(0.0);
            runner.begin(&service.sum, TIMEOUT)?;
            let nothing = runner.queue(&Work::Neurons(vec![]), true, vec![])?;
            runner.output(nothing, &mut service.sum, TIMEOUT)?;
        }
        Ok(())
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.device.info().name
    }

    /// How stages are handed over.
    pub fn control(&self) -> &'static str {
        match self.mode {
            Mode::Persistent => "persistent",
            Mode::Staged => "staged",
            Mode::Blocking => "blocking",
        }
    }

    /// Chunks of each layer that are held, from the first on.
    pub fn held(&self) -> impl Iterator<Item = u32> {
        self.layers.iter().map(|layer| layer.n_held)
    }

    /// Bytes of them.
    pub fn held_bytes(&self) -> u64 {
        let n: u64 = self.held().map(u64::from).sum();
        n * u64::from(self.slab.frame_bytes())
    }

    /// Whether chunks are read where streaming puts them.
    pub fn is_in_place(&self) -> bool {
        self.ring.is_none()
    }

    /// Whether all chunks are held.
    pub fn holds_all(&self) -> bool {
        self.layers.iter().all(|layer| layer.n_held == layer.layout.n_chunks)
    }

    /// What the validation layers said since it was asked last.
    pub fn messages(&self) -> Vec<String> {
        self.device.instance().messages().take()
    }

    /// Brings the chunks that are held from `source`, and tries each shape on a chunk of the model.
    ///
    /// # Errors
    ///
    /// [`EngineError::Gpu`] if the device fails or computes something else than it should; others if
    /// chunks cannot be read.
    pub fn fill(&mut self, source: &ChunkSource) -> Result<(), EngineError> {
        let mut is_tried = vec![false; self.runners.len()];
        let mut first = 0;
        for i in 0..self.layers.len() {
            let (layout, n_held) = (self.layers[i].layout, self.layers[i].n_held);
            let is_new = !std::mem::replace(&mut is_tried[self.layers[i].runner], true);
            if n_held == 0 && !is_new {
                continue;
            }
            let pass = source.begin_layer(i);
            pass.begin_layer(i);
            for s in 0..layout.n_segments() {
                let chunks = layout.segment(s);
                if chunks.start >= n_held && s > 0 {
                    break;
                }
                let Some(segment) = pass.segment(i, s, 1)? else {
                    unreachable!("one thread waits, so no other's segment can have failed");
                };
                let records = segment.records().zip(chunks.start..n_held);
                self.hold(records.map(|(record, chunk)| (first + chunk, record)))?;
                if s == 0 && is_new {
                    let record = segment.records().next().unwrap_or_default();
                    self.try_out(i, record, segment.frames().next())?;
                }
            }
            first += n_held;
        }
        Ok(())
    }

    /// Writes chunks to frames that are held.
    fn hold<'r>(&mut self, records: impl Iterator<Item = (u32, &'r [u8])>) -> Result<(), GpuError> {
        let (mut writers, mut frames) = (Vec::new(), Vec::new());
        for (frame, record) in records {
            let mut writer = self.slab.write(frame)?;
            writer[..record.len()].copy_from_slice(record);
            frames.push(frame);
            writers.push(writer);
        }
        self.slab.finish(writers)?;
        for frame in frames {
            self.leases.push(self.slab.lease(frame)?);
        }
        Ok(())
    }

    /// The first chunk of layer `i`, whose bytes `record` are, against its definition; in place, it is
    /// in frame `at`. Drivers miscompile, and the self-test has not all formats.
    fn try_out(&mut self, i: usize, record: &[u8], at: Option<u32>) -> Result<(), GpuError> {
        let layer = &self.layers[i];
        let runner = &mut self.runners[layer.runner];
        let shape = *runner.plan().shape();
        let n = layer.layout.neurons_in(0);
        let mut frames = Vec::new();
        match &layer.held {
            Work::Frames { frames: held, .. } if !held.is_empty() => frames.push(held[0].0),
            _ => match &mut self.ring {
                Some(ring) => ring.put(runner, std::iter::once(record), &mut frames)?,
                None => frames.extend(at),
            },
        }
        let frames = frames.into_iter().map(|frame| (frame, n as u32)).collect();
        let work = Work::Frames { per_frame: n as u32, frames };
        let x = twin::Random::new(7).floats(shape.d_model);
        runner.begin(&x, TIMEOUT)?;
        let ticket = runner.queue(&work, true, vec![])?;
        runner.output(ticket, &mut self.sum, TIMEOUT)?;
        self.ring.iter_mut().for_each(Ring::reset);
        let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let answer = twin::mlp(&shape, (0..n).map(|j| (record, j)), &exact);
        let wants = answer.out.iter().zip(&answer.magnitude);
        let error = self.sum.iter().zip(wants).map(|(got, (want, size))| {
            let error = (f64::from(*got) - want).abs() / (size + 1e-9);
            // A NaN must not pass for the smallest error.
            if error.is_nan() { f64::INFINITY } else { error }
        });
        let (error, variant) = (error.fold(0.0, f64::max), runner.plan().variant());
        let bound = match variant {
            Variant::One | Variant::Plain | Variant::Subgroups => FLOAT_BOUND,
            Variant::Half => HALVES_BOUND,
            Variant::Dot => BYTES_BOUND,
        };
        if error > bound {
            let kernel = format!("mlp {variant:?} of layer {i}");
            let device = self.device.info().name.clone();
            return Err(VkError::WrongAnswer { kernel, device, error, bound }.into());
        }
        Ok(())
    }

    /// Sets `out`, `[n, d_model]`, to what the MLP of layer `i` gives for the inputs `x`.
    pub fn mlp(
        &mut self,
        i: usize,
        mlp: &ChunkedMlp,
        pass: Option<&ChunkPass<'_>>,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        if self.fault == Some(GpuFault::LostAfter(self.n_computed)) {
            self.device.give_up();
        }
        self.n_computed += 1;
        self.settle()?;
        let layer = &self.layers[i];
        let runner = &mut self.runners[layer.runner];
        self.unfinished = Some(layer.runner);
        out.fill(0.0);
        let (sum, waiting) = (&mut self.sum[..], &mut self.waiting);
        let (device, stages_left) = (&*self.device, &mut self.stages_left);
        let fault = matches!(self.fault, Some(GpuFault::LostAfterStages(_)));
        let fault = fault.then_some(StageFault { device, stages_left });
        let mut flow = Flow { runner, sum, waiting, x, out, has_begun: false, fault };
        let holds_all = layer.n_held == layer.layout.n_chunks;
        if layer.n_held > 0 {
            flow.stage(&layer.held, holds_all, None).map_err(GpuError::from)?;
        }
        match pass {
            Some(pass) if !holds_all => {
                pass.begin_layer(i);
                match &mut self.ring {
                    Some(ring) => flow.stream(ring, (i, mlp), pass, layer.n_held)?,
                    None => flow.stream_in_place((i, mlp), pass)?,
                }
                flow.finish().map_err(GpuError::from)?;
                self.ring.iter_mut().for_each(Ring::reset);
                pass.end_layer(i);
            }
            _ => flow.finish().map_err(GpuError::from)?,
        }
        self.unfinished = None;
        Ok(())
    }

    /// Waits for what is left of a layer whose chunks could not be read: its frames are used anew.
    fn settle(&mut self) -> Result<(), GpuError> {
        let Some(runner) = self.unfinished else { return Ok(()) };
        let runner = &mut self.runners[runner];
        self.sum.fill(0.0);
        runner.begin(&self.sum, TIMEOUT)?;
        let behind = runner.queue(&Work::Neurons(vec![]), false, vec![])?;
        runner.wait(behind, TIMEOUT)?;
        self.waiting.clear();
        self.ring.iter_mut().for_each(Ring::reset);
        self.unfinished = None;
        Ok(())
    }
}

/// Compiles the kernels for a shape.
fn runner(
    opened: &Opened,
    slab: &Arc<Slab>,
    shape: MlpShape,
    (max_entries, mode): (Option<u32>, Mode),
) -> Result<Runner, GpuError> {
    let (limits, n_slabs) = (opened.device.limits(), slab.layout().n_slabs);
    let is_allowed = |variant: Variant| {
        opened.self_test.variants.contains(&variant)
            // The plainest kernel has no persistent form.
            && (mode != Mode::Persistent || variant != Variant::One)
    };
    let Some(variant) = Variant::best(limits, &shape, n_slabs, is_allowed) else {
        let failures = &opened.self_test.failures;
        let why = format!("no kernel for {n_slabs} buffers is right; {}", failures.join("; "));
        return Err(GpuError::SelfTest { why });
    };
    let options = RunnerOptions {
        mode: Some(mode),
        variant: Some(variant),
        max_entries,
        ..RunnerOptions::default()
    };
    Ok(Runner::new(slab, shape, &options)?)
}
