//! A device that was opened and passed its self-test.

use std::sync::Arc;

use ls_model::config::Activation;
use ls_model::pack::{ColumnType, LayerLayout};
use ls_model::{Config, TensorType};
use ls_vk::control::Mode;
use ls_vk::format::{ColumnFormat, RowFormat};
use ls_vk::kernels::mlp::{self, MAX_NEURONS, MlpShape};
use ls_vk::{Choice, Device, DeviceKind, Instance, Limits, SelfTest, Validation};

use super::share::ring_frames;
use crate::gpu::{Control, GpuError, GpuFault, Profile, VulkanOptions};
use crate::needs::frame_bytes;

/// What a driver that computes on the processor needs for compiled kernels, in bytes.
const COMPILED_BYTES: u64 = 16 << 20;
/// Lists, inputs and results, in bytes, but for what grows with a layer.
const LISTS_BYTES: u64 = 1 << 20;

/// A device to compute on.
#[derive(Debug)]
pub(crate) struct Opened {
    pub device: Arc<Device>,
    pub self_test: SelfTest,
    pub mode: Mode,
    /// The way to hand over stages whose frames are the cache's own.
    pub mode_in_place: Mode,
    /// Of each layer's chunks.
    pub shapes: Vec<MlpShape>,
    pub options: VulkanOptions,
}

/// A failed device's name, and what is wrong.
pub(crate) type Failed = (String, GpuError);

impl Opened {
    /// Opens the device for the chunks of `layers`.
    ///
    /// # Errors
    ///
    /// If there is no such device, or no kernel takes the weights. A device that failed is no error.
    pub fn new(
        options: &VulkanOptions,
        config: &Config,
        layers: &[LayerLayout],
    ) -> Result<Result<Self, Failed>, GpuError> {
        let shapes = layers.iter().enumerate().map(|(i, layer)| shape(i, layer, config));
        let shapes = shapes.collect::<Result<Vec<_>, _>>()?;
        let validation = if options.validation { Validation::On } else { Validation::Off };
        let instance = Instance::new(validation)?;
        let choice = options.name.clone().map_or(Choice::Best, Choice::Named);
        let device = Device::open_narrowed(&instance, &choice, |found| match options.profile {
            None => found.clone(),
            Some(Profile::Least) => Limits::least(),
            Some(Profile::Adreno7xx) => Limits::adreno_7xx(),
            Some(Profile::Orin) => Limits::orin(),
        })?;
        let failed = |error| Ok(Err((device.info().name.clone(), error)));
        let tested = match &options.cache {
            Some(folder) => SelfTest::cached(&device, folder),
            None => SelfTest::run(&device),
        };
        let mut self_test = match tested.map_err(GpuError::from) {
            Ok(tested) => tested,
            Err(error) if error.is_fault() => return failed(error),
            Err(error) => return Err(error),
        };
        if options.fault == Some(GpuFault::SelfTest) {
            self_test.variants.clear();
            self_test.failures.push("injected".to_owned());
        }
        let several = shapes.iter().any(|shape| *shape != shapes[0]);
        let Some(mode) = mode(&self_test, &device, options.control, several) else {
            return failed(GpuError::SelfTest { why: self_test.failures.join("; ") });
        };
        let mode_in_place = mode_in_place(&self_test, &device, options.control, mode);
        let options = options.clone();
        Ok(Ok(Self { device, self_test, mode, mode_in_place, shapes, options }))
    }

    /// The device's name.
    pub fn name(&self) -> String {
        self.device.info().name.clone()
    }

    /// Whether frames lie in the host's memory.
    pub fn is_in_host_memory(&self) -> bool {
        self.device.info().kind != DeviceKind::Discrete
    }

    /// Whether it may read chunks where streaming puts them: all memory is one, and the driver imports
    /// the host's.
    pub fn can_be_in_place(&self) -> bool {
        let limits = self.device.limits();
        limits.unified_memory && limits.host_import.is_some()
    }

    /// Bytes of the host's memory for all but the chunks that are held, or that are read in place.
    pub fn host_bytes(&self, layers: &[LayerLayout], in_place: bool) -> u64 {
        let limits = self.device.limits();
        let frame = frame_bytes(layers) as u64;
        let mut bytes = LISTS_BYTES;
        let longest = layers.iter().map(|layer| u64::from(layer.n_chunks)).max().unwrap_or(0);
        bytes += 32 * longest;
        if self.is_in_host_memory() {
            if !in_place {
                bytes += u64::from(ring_frames(layers)) * frame;
            }
            // Two rows of partial sums for each workgroup, of which a processor has two at most.
            let d_model = self.shapes.iter().map(|shape| shape.d_model as u64).max().unwrap_or(0);
            let workgroups = 2 * u64::from(limits.processors.unwrap_or(16));
            bytes += self.n_runners() * 2 * workgroups * d_model.max(4096) * 4;
        }
        if !limits.unified_memory {
            // Where frames cannot be written directly, what is on its way lies in the host's memory.
            bytes += u64::from(ring_frames(layers) / 2) * frame;
        }
        if self.device.info().kind == DeviceKind::Cpu {
            bytes += self.n_runners() * COMPILED_BYTES;
        }
        bytes
    }

    /// Different shapes.
    fn n_runners(&self) -> u64 {
        let is_new = |(i, shape): &(usize, &MlpShape)| !self.shapes[..*i].contains(*shape);
        self.shapes.iter().enumerate().filter(is_new).count() as u64
    }
}

/// The way to hand stages over: what is asked for, or the best that passed the self-test.
fn mode(
    tested: &SelfTest,
    device: &Device,
    asked: Option<Control>,
    several_shapes: bool,
) -> Option<Mode> {
    if tested.variants.is_empty() {
        return None;
    }
    let asked = asked.map(|control| match control {
        Control::Persistent => Mode::Persistent,
        Control::Staged => Mode::Staged,
        Control::Blocking => Mode::Blocking,
    });
    // A dispatch that lives for one shape would keep those of another waiting until it ends.
    let best = tested.modes_for(device.info().kind);
    let mut usable = best.into_iter().filter(|mode| !several_shapes || *mode != Mode::Persistent);
    match asked {
        Some(asked) => usable.find(|mode| *mode == asked),
        None => usable.next(),
    }
}

/// The same for frames that are the cache's own. Whether a running dispatch sees them change was not
/// tried out by the self-test, whose frames are the driver's: so none runs on unless it is asked for.
fn mode_in_place(
    tested: &SelfTest,
    device: &Device,
    asked: Option<Control>,
    otherwise: Mode,
) -> Mode {
    let mut modes = tested.modes_for(device.info().kind).into_iter();
    match asked {
        Some(_) => otherwise,
        None => modes.find(|mode| *mode != Mode::Persistent).unwrap_or(otherwise),
    }
}

/// The chunks of a layer as kernels see them.
fn shape(i: usize, layer: &LayerLayout, config: &Config) -> Result<MlpShape, GpuError> {
    let unsupported = |what: String| GpuError::Unsupported { layer: i, what };
    let row = |dtype: TensorType| {
        let format = row_format(dtype);
        format.ok_or_else(|| unsupported(format!("its rows are stored as {dtype}")))
    };
    if layer.neurons_per_chunk > MAX_NEURONS {
        let n = layer.neurons_per_chunk;
        let what = format!("its chunks have {n} neurons, of {MAX_NEURONS} at most; pack smaller");
        return Err(unsupported(what));
    }
    let shape = MlpShape {
        d_model: layer.d_model,
        gate: row(layer.gate)?,
        up: row(layer.up)?,
        down: column_format(layer.down),
        up_at: layer.up_at,
        down_at: layer.down_at,
        activation: match config.activation {
            Activation::Silu => mlp::Activation::Silu,
            Activation::GeluTanh => mlp::Activation::GeluTanh,
        },
    };
    shape.check().map_err(|error| unsupported(error.to_string()))?;
    Ok(shape)
}

fn row_format(dtype: TensorType) -> Option<RowFormat> {
    Some(match dtype {
        TensorType::F32 => RowFormat::F32,
        TensorType::F16 => RowFormat::F16,
        TensorType::BF16 => RowFormat::BF16,
        TensorType::Q4_0 => RowFormat::Q4_0,
        TensorType::Q4_1 => RowFormat::Q4_1,
        TensorType::Q5_0 => RowFormat::Q5_0,
        TensorType::Q5_1 => RowFormat::Q5_1,
        TensorType::Q8_0 => RowFormat::Q8_0,
        TensorType::Q4_K => RowFormat::Q4_K,
        TensorType::Q5_K => RowFormat::Q5_K,
        TensorType::Q6_K => RowFormat::Q6_K,
        TensorType::Q2_K | TensorType::Q3_K => return None,
    })
}

fn column_format(column: ColumnType) -> ColumnFormat {
    match column {
        ColumnType::F32 => ColumnFormat::F32,
        ColumnType::F16 => ColumnFormat::F16,
        ColumnType::BF16 => ColumnFormat::BF16,
        ColumnType::Q8 => ColumnFormat::Q8,
        ColumnType::Q6 => ColumnFormat::Q6,
        ColumnType::Q5 => ColumnFormat::Q5,
        ColumnType::Q4 => ColumnFormat::Q4,
    }
}
