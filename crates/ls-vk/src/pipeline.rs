//! Compute pipelines and the buffers bound to them.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::sync::Arc;

use ash::vk;

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Checked, Result, VkError};

/// A compiled shader of this crate and what it expects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shader {
    /// File name without extension, with the variant: also the label in messages.
    pub name: &'static str,
    pub spirv: &'static [u8],
    /// Buffers of each binding: more than one for an array.
    pub bindings: &'static [u32],
    pub push_bytes: u32,
    /// Whether it relies on whole subgroups of the size that limits name.
    pub subgroups: bool,
}

/// A shader specialised for a shape.
pub struct Pipeline {
    device: Arc<Device>,
    pub(crate) raw: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    sets: vk::DescriptorSetLayout,
    shader: Shader,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pipeline").field(&self.shader.name).finish()
    }
}

impl Pipeline {
    /// Specialises `shader`: constant `i` gets `constants[i]`; constant 0 is the number of threads
    /// of a workgroup.
    pub(crate) fn new(device: &Arc<Device>, shader: Shader, constants: &[u32]) -> Result<Self> {
        let limits = device.limits();
        let threads = constants.first().copied().unwrap_or(1);
        let buffers = shader.bindings.iter().sum();
        within("threads of a workgroup", threads, limits.max_workgroup_threads)?;
        within("storage buffers of a kernel", buffers, limits.max_storage_buffers)?;
        let (sets, layout) = layouts(device, &shader)?;
        let made = compile(device, &shader, constants, layout);
        match made {
            Ok(raw) => {
                device.name(raw, shader.name);
                Ok(Self { device: Arc::clone(device), raw, layout, sets, shader })
            }
            Err(error) => {
                // SAFETY: nothing uses the layouts yet.
                unsafe {
                    device.raw.destroy_pipeline_layout(layout, None);
                    device.raw.destroy_descriptor_set_layout(sets, None);
                }
                device.note(Err(error))
            }
        }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

fn within(what: &'static str, needed: u32, limit: u32) -> Result<()> {
    if needed > limit {
        return Err(VkError::Limit { what, needed: needed.into(), limit: limit.into() });
    }
    Ok(())
}

fn layouts(
    device: &Device,
    shader: &Shader,
) -> Result<(vk::DescriptorSetLayout, vk::PipelineLayout)> {
    let bindings: Vec<_> = shader
        .bindings
        .iter()
        .enumerate()
        .map(|(i, n)| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(i as u32)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(*n)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        })
        .collect();
    let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    // SAFETY: `info` lives until the call returns.
    let sets = unsafe { device.raw.create_descriptor_set_layout(&info, None) }
        .during("vkCreateDescriptorSetLayout")?;
    let push = [vk::PushConstantRange::default()
        .stage_flags(vk::ShaderStageFlags::COMPUTE)
        .size(shader.push_bytes)];
    let info = vk::PipelineLayoutCreateInfo::default().set_layouts(std::slice::from_ref(&sets));
    let info = if shader.push_bytes > 0 { info.push_constant_ranges(&push) } else { info };
    // SAFETY: as above.
    let layout = unsafe { device.raw.create_pipeline_layout(&info, None) };
    layout.during("vkCreatePipelineLayout").map(|layout| (sets, layout)).inspect_err(|_| {
        // SAFETY: nothing uses it.
        unsafe { device.raw.destroy_descriptor_set_layout(sets, None) };
    })
}

fn compile(
    device: &Device,
    shader: &Shader,
    constants: &[u32],
    layout: vk::PipelineLayout,
) -> Result<vk::Pipeline> {
    let words: Vec<u32> =
        shader.spirv.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let info = vk::ShaderModuleCreateInfo::default().code(&words);
    // SAFETY: the words are a valid module: spirv-val looked at them when they were compiled.
    let module = unsafe { device.raw.create_shader_module(&info, None) };
    let module = module.during("vkCreateShaderModule")?;
    let entries: Vec<_> = (0..constants.len() as u32)
        .map(|i| vk::SpecializationMapEntry { constant_id: i, offset: 4 * i, size: 4 })
        .collect();
    let data: Vec<u8> = constants.iter().flat_map(|c| c.to_ne_bytes()).collect();
    let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
    let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
        .required_subgroup_size(device.limits().subgroup_size);
    let mut stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(c"main")
        .specialization_info(&special);
    if shader.subgroups {
        stage = stage
            .flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS)
            .push_next(&mut size);
    }
    let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
    let infos = std::slice::from_ref(&info);
    // SAFETY: `infos` and what they point to live until the call returns.
    let made =
        unsafe { device.raw.create_compute_pipelines(vk::PipelineCache::null(), infos, None) };
    // SAFETY: a module may go once the pipeline is made.
    unsafe { device.raw.destroy_shader_module(module, None) };
    made.map(|pipelines| pipelines[0]).map_err(|(_, code)| code).during("vkCreateComputePipelines")
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // SAFETY: recorded commands keep the pipeline alive until they are done.
        unsafe {
            self.device.raw.destroy_pipeline(self.raw, None);
            self.device.raw.destroy_pipeline_layout(self.layout, None);
            self.device.raw.destroy_descriptor_set_layout(self.sets, None);
        }
    }
}

/// Buffers bound to a pipeline's bindings; it keeps them alive.
pub struct BindSet {
    device: Arc<Device>,
    pool: vk::DescriptorPool,
    pub(crate) raw: vk::DescriptorSet,
    _buffers: Vec<Arc<Buffer>>,
}

impl std::fmt::Debug for BindSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BindSet").field(&self._buffers).finish()
    }
}

impl BindSet {
    /// Binds `buffers[i]` to binding `i`; an array that is longer than its buffers repeats the
    /// first. Of buffers that are longer than a kernel can see, it sees the beginning.
    pub(crate) fn new(pipeline: &Pipeline, buffers: &[&[Arc<Buffer>]]) -> Result<Self> {
        let device = &pipeline.device;
        let counts = pipeline.shader.bindings;
        assert_eq!(counts.len(), buffers.len(), "bindings of {}", pipeline.shader.name);
        let (pool, raw) = allocate(device, pipeline)?;
        let range = device.limits().max_storage_range;
        let infos: Vec<Vec<_>> = counts
            .iter()
            .zip(buffers)
            .map(|(n, buffers)| {
                let buffer = |i| buffers.get(i).unwrap_or(&buffers[0]);
                (0..*n as usize)
                    .map(|i| {
                        vk::DescriptorBufferInfo::default()
                            .buffer(buffer(i).raw)
                            .range(buffer(i).len().min(range & !3))
                    })
                    .collect()
            })
            .collect();
        let writes: Vec<_> = infos
            .iter()
            .enumerate()
            .map(|(i, infos)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(raw)
                    .dst_binding(i as u32)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(infos)
            })
            .collect();
        // SAFETY: the set is new and not in use; the buffers are alive.
        unsafe { device.raw.update_descriptor_sets(&writes, &[]) };
        let held = buffers.iter().flat_map(|buffers| buffers.iter().cloned()).collect();
        Ok(Self { device: Arc::clone(device), pool, raw, _buffers: held })
    }
}

fn allocate(
    device: &Device,
    pipeline: &Pipeline,
) -> Result<(vk::DescriptorPool, vk::DescriptorSet)> {
    let size = vk::DescriptorPoolSize::default()
        .ty(vk::DescriptorType::STORAGE_BUFFER)
        .descriptor_count(pipeline.shader.bindings.iter().sum());
    let info =
        vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(std::slice::from_ref(&size));
    // SAFETY: `info` lives until the call returns.
    let pool = unsafe { device.raw.create_descriptor_pool(&info, None) };
    let pool = pool.during("vkCreateDescriptorPool")?;
    let layouts = [pipeline.sets];
    let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
    // SAFETY: as above.
    match unsafe { device.raw.allocate_descriptor_sets(&info) } {
        Ok(sets) => Ok((pool, sets[0])),
        Err(code) => {
            // SAFETY: nothing uses the pool.
            unsafe { device.raw.destroy_descriptor_pool(pool, None) };
            Err(code).during("vkAllocateDescriptorSets")
        }
    }
}

impl Drop for BindSet {
    fn drop(&mut self) {
        // SAFETY: recorded commands keep the set alive until they are done.
        unsafe { self.device.raw.destroy_descriptor_pool(self.pool, None) };
    }
}
