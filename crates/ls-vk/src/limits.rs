//! What a device can do, as far as kernels and plans depend on it.
//!
//! Nothing else in the crate asks the driver for capabilities. So a test can take each of them
//! away, and a plan for a device that is not at hand can be run on one that is.

/// Capabilities and sizes. Start from [`Device::limits`](crate::Device::limits) or a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it where there is no comment
pub struct Limits {
    /// Bytes of one storage buffer that a kernel can see.
    pub max_storage_range: u64,
    /// Storage buffers that a kernel can see.
    pub max_storage_buffers: u32,
    /// Whether a kernel may choose among an array of buffers by a computed index.
    pub dynamic_buffer_index: bool,
    pub max_workgroup_threads: u32,
    pub max_workgroups: u32,
    pub max_shared_bytes: u32,
    /// Threads of a subgroup, when a kernel asks for whole ones.
    pub subgroup_size: u32,
    /// Whole subgroups of a workgroup.
    pub max_workgroup_subgroups: u32,
    /// Sums over subgroups in compute kernels, with a size that can be relied on.
    pub subgroup_arithmetic: bool,
    /// Products of four signed bytes each, added up.
    pub integer_dot: bool,
    /// Arithmetic with halves.
    pub float16: bool,
    /// Memory that one workgroup writes can be seen by others within a dispatch, by the rules of
    /// Vulkan's memory model.
    pub memory_model: bool,
    /// Semaphores that count, which host and device both signal.
    pub timeline_semaphore: bool,
    /// Memory of the device that the host can map coherently.
    pub mapped_device_memory: bool,
    /// All memory is the device's, and the host sees it: flash reads can land in it.
    pub unified_memory: bool,
    /// The alignment at which the device imports memory of the host, to read it where it lies; none
    /// where it cannot.
    pub host_import: Option<u64>,
    /// A queue that copies while the compute queue is busy.
    pub transfer_queue: bool,
    /// Iterations of all loops of one thread after which the driver ends them unasked and says
    /// nothing (lavapipe); none where there is no such bound.
    pub max_loop_iterations: Option<u32>,
    /// Processors that run workgroups, where the driver tells.
    pub processors: Option<u32>,
    /// Whether workgroups of one dispatch may wait for each other and for the host. The self-test
    /// decides; here it can only be forbidden.
    pub persistent: bool,
}

impl Limits {
    /// Keeps of each capability what both have.
    ///
    /// Subgroups differ in size, not in degree: where `other` has another size, what is left are
    /// kernels without subgroups.
    pub fn narrowed(&self, other: &Self) -> Self {
        let least = |a: Option<u32>, b: Option<u32>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let same_subgroups = self.subgroup_size == other.subgroup_size;
        Self {
            max_storage_range: self.max_storage_range.min(other.max_storage_range),
            max_storage_buffers: self.max_storage_buffers.min(other.max_storage_buffers),
            dynamic_buffer_index: self.dynamic_buffer_index && other.dynamic_buffer_index,
            max_workgroup_threads: self.max_workgroup_threads.min(other.max_workgroup_threads),
            max_workgroups: self.max_workgroups.min(other.max_workgroups),
            max_shared_bytes: self.max_shared_bytes.min(other.max_shared_bytes),
            subgroup_size: self.subgroup_size,
            max_workgroup_subgroups: self
                .max_workgroup_subgroups
                .min(other.max_workgroup_subgroups),
            subgroup_arithmetic: self.subgroup_arithmetic
                && other.subgroup_arithmetic
                && same_subgroups,
            integer_dot: self.integer_dot && other.integer_dot,
            float16: self.float16 && other.float16,
            memory_model: self.memory_model && other.memory_model,
            timeline_semaphore: self.timeline_semaphore && other.timeline_semaphore,
            mapped_device_memory: self.mapped_device_memory && other.mapped_device_memory,
            unified_memory: self.unified_memory && other.unified_memory,
            // Whatever suits the stricter one suits both.
            host_import: self.host_import.zip(other.host_import).map(|(a, b)| a.max(b)),
            transfer_queue: self.transfer_queue && other.transfer_queue,
            max_loop_iterations: least(self.max_loop_iterations, other.max_loop_iterations),
            processors: least(self.processors, other.processors),
            persistent: self.persistent && other.persistent,
        }
    }

    /// The least that this crate works with.
    pub fn least() -> Self {
        Self {
            max_storage_range: 1 << 27,
            max_storage_buffers: 8,
            dynamic_buffer_index: false,
            max_workgroup_threads: 128,
            max_workgroups: 65_535,
            max_shared_bytes: 16 << 10,
            subgroup_size: 1,
            max_workgroup_subgroups: 1,
            subgroup_arithmetic: false,
            integer_dot: false,
            float16: false,
            memory_model: false,
            timeline_semaphore: false,
            mapped_device_memory: false,
            unified_memory: false,
            host_import: None,
            transfer_queue: false,
            max_loop_iterations: None,
            processors: None,
            persistent: false,
        }
    }

    /// A phone with an Adreno 7xx, as its vendor's driver reports itself in public databases:
    /// subgroups of 64 to 128, 32 KiB of shared memory, all memory unified, storage buffers of
    /// 128 MiB on older drivers, one kind of queue. Whether it imports memory of the host we could not
    /// find out: here it does not.
    pub fn adreno_7xx() -> Self {
        Self {
            max_storage_range: 1 << 27,
            max_storage_buffers: 24,
            dynamic_buffer_index: true,
            max_workgroup_threads: 1024,
            max_workgroups: 65_535,
            max_shared_bytes: 32 << 10,
            subgroup_size: 64,
            max_workgroup_subgroups: 16,
            subgroup_arithmetic: true,
            integer_dot: true,
            float16: true,
            memory_model: true,
            timeline_semaphore: true,
            mapped_device_memory: true,
            unified_memory: true,
            host_import: None,
            transfer_queue: false,
            max_loop_iterations: None,
            processors: None,
            persistent: true,
        }
    }

    /// A Jetson Orin: NVIDIA's driver on unified memory. That it imports memory of the host by pages, as
    /// NVIDIA's driver for graphics cards does, is assumed.
    pub fn orin() -> Self {
        Self {
            max_storage_range: (1 << 32) - 1,
            max_storage_buffers: 1 << 20,
            dynamic_buffer_index: true,
            max_workgroup_threads: 1024,
            max_workgroups: i32::MAX as u32,
            max_shared_bytes: 48 << 10,
            subgroup_size: 32,
            max_workgroup_subgroups: 32,
            subgroup_arithmetic: true,
            integer_dot: true,
            float16: true,
            memory_model: true,
            timeline_semaphore: true,
            mapped_device_memory: true,
            unified_memory: true,
            host_import: Some(4096),
            transfer_queue: true,
            max_loop_iterations: None,
            processors: Some(16),
            persistent: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ColumnFormat, RowFormat};
    use crate::kernels::mlp::{Activation, MlpShape, Variant};

    #[test]
    fn narrowing_takes_the_lesser_of_each() {
        let (a, b) = (Limits::adreno_7xx(), Limits::orin());
        let both = a.narrowed(&b);
        assert_eq!(both.max_storage_range, a.max_storage_range);
        assert_eq!(both.processors, b.processors);
        assert!(!both.subgroup_arithmetic && !both.transfer_queue && both.integer_dot);
        let least = Limits { subgroup_size: b.subgroup_size, ..Limits::least() };
        let narrowest = b.narrowed(&least);
        assert_eq!(narrowest, Limits { processors: b.processors, ..least });
        assert_eq!(a.narrowed(&a), a);
        let large = Limits { host_import: Some(1 << 16), ..b.clone() };
        assert_eq!((b.narrowed(&large).host_import, both.host_import), (Some(1 << 16), None));
    }

    #[test]
    fn variants_need_what_they_compute_with() {
        let best = |limits: &Limits, gate, up| {
            let down = ColumnFormat::F16;
            let (activation, up_at, down_at) = (Activation::Silu, 0, 0);
            let shape = MlpShape { d_model: 256, gate, up, down, up_at, down_at, activation };
            Variant::best(limits, &shape, 2, |_| true)
        };
        let (q, half, float) = (RowFormat::Q4_K, RowFormat::F16, RowFormat::BF16);
        let all = Limits::orin();
        assert_eq!(best(&all, q, q), Some(Variant::Dot));
        assert_eq!(best(&all, q, half), Some(Variant::Half));
        assert_eq!(best(&all, half, float), Some(Variant::Subgroups));
        assert_eq!(best(&all, RowFormat::F32, q), Some(Variant::Subgroups));
        let without_bytes = Limits { integer_dot: false, ..Limits::orin() };
        assert_eq!(best(&all.narrowed(&without_bytes), q, q), Some(Variant::Half));
        let without_halves = Limits { float16: false, ..Limits::orin() };
        assert_eq!(best(&all.narrowed(&without_halves), half, half), Some(Variant::Subgroups));
        assert_eq!(best(&all.narrowed(&Limits::least()), q, q), None);
    }
}
