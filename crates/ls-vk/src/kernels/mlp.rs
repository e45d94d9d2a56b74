//! The gated MLP over frames: `Σ_j act(gate_j · x) · (up_j · x) · down_j` over the neurons of a list.

use std::sync::Arc;

use super::shaders::{self, MAX_SLABS};
use crate::error::{Result, VkError};
use crate::format::{ColumnFormat, GROUP, RowFormat};
use crate::limits::Limits;
use crate::pipeline::Shader;
use crate::{Buffer, Device};

/// The gate's activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Activation {
    /// x · sigmoid(x): SwiGLU.
    Silu = 0,
    /// GELU by its tanh approximation: GeGLU.
    GeluTanh = 1,
}

/// What a frame holds and where: some neurons' gate rows from byte 0 on, their up rows at `up_at`,
/// their down columns at `down_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MlpShape {
    /// Values of a row, of a column, of the input and of the output: a multiple of 32.
    pub d_model: usize,
    /// Gate rows.
    pub gate: RowFormat,
    /// Up rows.
    pub up: RowFormat,
    /// Down columns.
    pub down: ColumnFormat,
    /// Bytes, even.
    pub up_at: usize,
    /// Bytes, even.
    pub down_at: usize,
    /// The gate's activation.
    pub activation: Activation,
}

/// Neurons of a frame that an entry of a list can name.
pub const MAX_NEURONS: usize = 1023;
/// Frames that an entry can name.
pub const MAX_FRAMES: u32 = 1 << 22;

impl MlpShape {
    /// Fails unless rows and columns are whole blocks and all begins at even bytes.
    pub fn check(&self) -> Result<()> {
        let d = self.d_model;
        let shape = |what: String| Err(VkError::Shape { what });
        if d == 0 || !d.is_multiple_of(GROUP) || d > 1 << 20 {
            return shape(format!("a width of {d} is no multiple of {GROUP} up to {}", 1 << 20));
        }
        for format in [self.gate, self.up] {
            if format.row_bytes(d).is_none() {
                return shape(format!("{d} values are not whole blocks of {format}"));
            }
        }
        if !self.up_at.is_multiple_of(2) || !self.down_at.is_multiple_of(2) {
            return shape(format!("rows at {} or columns at {} are odd", self.up_at, self.down_at));
        }
        Ok(())
    }

    /// Bytes of one neuron's gate row, up row and down column.
    ///
    /// # Panics
    ///
    /// If the shape was not checked.
    pub fn neuron_bytes(&self) -> [usize; 3] {
        let d = self.d_model;
        let rows = |format: RowFormat| format.row_bytes(d).expect("a checked shape");
        let column = self.down.column_bytes(d).expect("a checked shape");
        [rows(self.gate), rows(self.up), column]
    }

    /// How many bytes a frame with `n` neurons needs, and at least.
    pub fn bytes_for(&self, n: usize) -> usize {
        let [gate, up, down] = self.neuron_bytes();
        (n * gate).max(self.up_at + n * up).max(self.down_at + n * down)
    }
}

/// A way to compute the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Floats, sums through shared memory, one buffer of weights: runs everywhere.
    One,
    /// The same with several buffers of weights.
    Plain,
    /// Floats, sums over subgroups.
    Subgroups,
    /// Products of rows in halves, two at once, sums over subgroups. Overflows, visibly, where 8
    /// weights of F16 rows come to more than 2047.
    Half,
    /// The input in bytes, products of four at once, sums over subgroups.
    Dot,
}

impl Variant {
    /// Every variant, the most general first.
    pub const ALL: [Self; 5] = [Self::One, Self::Plain, Self::Subgroups, Self::Half, Self::Dot];

    /// Whether a device can run it for these rows.
    pub fn is_possible(self, limits: &Limits, shape: &MlpShape, n_slabs: u32) -> bool {
        let many = limits.dynamic_buffer_index && limits.max_storage_buffers >= MAX_SLABS + 4;
        let rows = [shape.gate, shape.up];
        let quantized = rows.iter().all(|row| row.is_quantized());
        // Other floats have values that halves have not.
        let halves = rows.iter().all(|row| row.is_quantized() || *row == RowFormat::F16);
        match self {
            Self::One => n_slabs == 1,
            Self::Plain => many,
            Self::Subgroups => many && limits.subgroup_arithmetic,
            Self::Half => many && limits.subgroup_arithmetic && limits.float16 && halves,
            Self::Dot => many && limits.subgroup_arithmetic && limits.integer_dot && quantized,
        }
    }

    /// The best of those that are possible and allowed.
    pub fn best(
        limits: &Limits,
        shape: &MlpShape,
        n_slabs: u32,
        allowed: impl Fn(Self) -> bool,
    ) -> Option<Self> {
        let possible = |v: &Self| v.is_possible(limits, shape, n_slabs) && allowed(*v);
        Self::ALL.into_iter().rev().find(possible)
    }

    pub(crate) fn stage_shader(self) -> Shader {
        match self {
            Self::One => shaders::MLP_STAGE_ONE,
            Self::Plain => shaders::MLP_STAGE,
            Self::Subgroups => shaders::MLP_STAGE_SUBGROUPS,
            Self::Half => shaders::MLP_STAGE_HALF,
            Self::Dot => shaders::MLP_STAGE_DOT,
        }
    }

    /// The kernel that lives over many stages; by the rules of the memory model where the device
    /// has it.
    pub(crate) fn persistent_shader(self, limits: &Limits) -> Option<Shader> {
        match (self, limits.memory_model) {
            (Self::One, _) => None,
            (Self::Plain, false) => Some(shaders::MLP_PERSISTENT),
            (Self::Subgroups, false) => Some(shaders::MLP_PERSISTENT_SUBGROUPS),
            (Self::Half, false) => Some(shaders::MLP_PERSISTENT_HALF),
            (Self::Dot, false) => Some(shaders::MLP_PERSISTENT_DOT),
            (Self::Plain, true) => Some(shaders::MLP_PERSISTENT_MODEL),
            (Self::Subgroups, true) => Some(shaders::MLP_PERSISTENT_MODEL_SUBGROUPS),
            (Self::Half, true) => Some(shaders::MLP_PERSISTENT_MODEL_HALF),
            (Self::Dot, true) => Some(shaders::MLP_PERSISTENT_MODEL_DOT),
        }
    }
}

/// Stages that can be on their way at once; a power of two, so that numbers may wrap.
pub const RING: u32 = 8;
/// Slots of inputs.
pub(crate) const X_SLOTS: u32 = 4;

/// Neurons in a workgroup's tables.
const MAX_BATCH: u32 = 256;
/// Words before a list's entries.
pub(crate) const HEADER_WORDS: u32 = 4;

/// How the work of a shape is laid out on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(crate) shape: MlpShape,
    pub(crate) variant: Variant,
    /// Of a workgroup.
    pub threads: u32,
    /// Threads that share a row.
    pub team: u32,
    /// Workgroups of a dispatch.
    pub workgroups: u32,
    k_split: u32,
    blocks_per_lane: u32,
    batch: u32,
    rows_at_once: u32,
    in_flight: u32,
    /// Entries that a list can hold.
    pub max_entries: u32,
    frame_bytes: u32,
    frames_per_slab: u32,
    n_slabs: u32,
}

/// How a kernel is laid out on a device; what is not given is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Workgroups of a dispatch.
    pub workgroups: Option<u32>,
    /// Threads of a workgroup, a power of two.
    pub threads: Option<u32>,
    /// Rows of gate and up that a team of threads works on at once, 1 or 2.
    pub rows_at_once: Option<u32>,
    /// Columns whose loads are on their way together, 1 to 16.
    pub in_flight: Option<u32>,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// The way to compute.
    pub variant: Variant,
    /// How the kernel is laid out.
    pub tuning: Tuning,
    /// Entries that a stage may have.
    pub max_entries: u32,
}

/// How frames lie in buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// Of a frame.
    pub frame_bytes: u32,
    /// Frames in each buffer but the last.
    pub frames_per_slab: u32,
    /// Buffers.
    pub n_slabs: u32,
}

impl Plan {
    /// Lays the work out.
    ///
    /// # Errors
    ///
    /// [`VkError::Shape`] for an impossible shape, [`VkError::Limit`] where the device is too small.
    pub fn new(
        shape: MlpShape,
        frames: FrameLayout,
        limits: &Limits,
        options: &PlanOptions,
    ) -> Result<Self> {
        shape.check()?;
        let tuning = &options.tuning;
        // A processor gains nothing from loads on their way, and its compiler takes its time.
        let on_processor = limits.max_loop_iterations.is_some();
        if frames.n_slabs > MAX_SLABS {
            let (needed, limit) = (frames.n_slabs.into(), MAX_SLABS.into());
            return Err(VkError::Limit { what: "buffers of weights", needed, limit });
        }
        let subgroups = options.variant.stage_shader().subgroups;
        let team = if subgroups { limits.subgroup_size } else { 32 };
        let most = 1 << limits.max_workgroup_threads.ilog2();
        let most = if subgroups { most.min(team * limits.max_workgroup_subgroups) } else { most };
        let threads = tuning.threads.unwrap_or(if on_processor { 512 } else { 256 }).min(most);
        if threads < team || !threads.is_power_of_two() || !team.is_power_of_two() {
            let (needed, limit) = (threads.into(), team.into());
            return Err(VkError::Limit {
                what: "threads, a power of two of a team",
                needed,
                limit,
            });
        }
        let teams = threads / team;
        let blocks = (shape.d_model / GROUP) as u32;
        let blocks_per_lane = blocks.div_ceil(team * teams.min(MAX_BATCH));
        let k_split = blocks.div_ceil(team * blocks_per_lane);
        let processors = limits.processors.unwrap_or(16);
        let per_processor = (1024 / threads).clamp(1, 2);
        let workgroups = tuning.workgroups.unwrap_or(processors * per_processor);
        Ok(Self {
            shape,
            variant: options.variant,
            threads,
            team,
            workgroups: workgroups.clamp(1, limits.max_workgroups.min(4096)),
            k_split,
            blocks_per_lane,
            batch: MAX_BATCH / k_split,
            in_flight: tuning.in_flight.unwrap_or(if on_processor { 1 } else { 4 }).clamp(1, 16),
            rows_at_once: tuning
                .rows_at_once
                .unwrap_or(if on_processor { 1 } else { 2 })
                .clamp(1, 2),
            max_entries: options.max_entries.max(1).next_multiple_of(4),
            frame_bytes: frames.frame_bytes,
            frames_per_slab: frames.frames_per_slab,
            n_slabs: frames.n_slabs,
        })
    }

    /// The shape that it is for.
    pub fn shape(&self) -> &MlpShape {
        &self.shape
    }

    /// The way to compute.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Words of an input slot.
    pub(crate) fn x_words(&self) -> u32 {
        let (d, blocks) = (self.shape.d_model as u32, (self.shape.d_model / GROUP) as u32);
        match self.variant {
            Variant::Dot => d / 4 + 4 * blocks,
            Variant::Half => d / 2 + 4 * blocks,
            Variant::One | Variant::Plain | Variant::Subgroups => d + 4 * blocks,
        }
    }

    pub(crate) fn list_words(&self) -> u32 {
        // Whole cache lines, so that no two slots share one.
        (HEADER_WORDS + self.max_entries).next_multiple_of(16)
    }

    /// Bytes of the partial sums.
    pub(crate) fn partial_bytes(&self) -> u64 {
        let d = self.shape.d_model as u64;
        let units = d / 8;
        let slices = if units < self.threads.into() { u64::from(self.threads) / units } else { 1 };
        2 * u64::from(self.workgroups) * slices * d * 4
    }

    /// Values for the shaders' constants.
    pub(crate) fn constants(&self) -> [u32; 25] {
        let s = &self.shape;
        let [gate, up, down] = s.neuron_bytes();
        let groups = s.d_model / GROUP;
        let integers = if s.down.is_quantized() { 2 * groups } else { 0 };
        let aligned = [s.down_at, down, integers, self.frame_bytes as usize]
            .iter()
            .all(|at| at.is_multiple_of(4));
        [
            self.threads,
            self.team,
            s.d_model as u32,
            s.gate as u32,
            s.up as u32,
            s.down as u32,
            s.up_at as u32,
            s.down_at as u32,
            gate as u32,
            up as u32,
            down as u32,
            aligned.into(),
            self.frame_bytes,
            self.frames_per_slab,
            self.n_slabs,
            self.k_split,
            self.blocks_per_lane,
            s.activation as u32,
            self.x_words(),
            self.list_words(),
            RING,
            self.batch,
            self.rows_at_once,
            self.in_flight,
            self.workgroups,
        ]
    }

    /// An upper bound for the loop iterations of a thread in a stage of `n` neurons, sums included.
    pub(crate) fn iterations(&self, n: u64) -> u64 {
        let each = n.div_ceil(self.workgroups.into());
        let batches = each.div_ceil(self.batch.into());
        let at_once = u64::from((self.threads / self.team / self.k_split).max(1));
        let per_row = u64::from(self.blocks_per_lane) * 80 + u64::from(self.team.ilog2()) + 1;
        let rows = (each.div_ceil(at_once) + 2 * batches) * (per_row + 3);
        let values = batches * (u64::from(self.k_split) + 1) * 4;
        let units = (self.shape.d_model as u64 / 8).div_ceil(self.threads.into());
        let columns = units * ((each + 16 * batches) * 3 + 20 * batches);
        rows + values + columns + 4 * batches
    }

    /// How many neurons a stage may have so that no thread's loops are ended by the driver, when
    /// it may use `eighths` of what a thread has.
    pub(crate) fn max_neurons(&self, limits: &Limits, eighths: u64) -> u64 {
        let Some(most) = limits.max_loop_iterations else { return u64::MAX };
        let most = u64::from(most) * eighths / 8;
        let (mut low, mut high) = (1u64, 1u64 << 32);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.iterations(middle) <= most { low = middle } else { high = middle - 1 }
        }
        low
    }
}

/// Fails unless `buffer` belongs to the device and has `bytes` bytes that a kernel can see.
pub(crate) fn fits(device: &Arc<Device>, buffer: &Buffer, bytes: u64) -> Result<()> {
    let len = buffer.len().min(device.limits().max_storage_range);
    if !Arc::ptr_eq(device, buffer.device()) || bytes > len {
        return Err(VkError::OutOfRange { at: 0, end: bytes, len });
    }
    Ok(())
}
