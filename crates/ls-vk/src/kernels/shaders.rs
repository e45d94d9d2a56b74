//! The compiled shaders, as `cargo xtask shaders` writes them.

use crate::pipeline::Shader;

/// Buffers of weights that a kernel chooses among.
pub(crate) const MAX_SLABS: u32 = 8;

macro_rules! spirv {
    ($file:literal) => {
        include_bytes!(concat!("../shaders/spv/", $file, ".spv"))
    };
}

macro_rules! shader {
    ($const:ident, $name:literal, $bindings:expr, $push:literal, $subgroups:literal) => {
        pub(crate) const $const: Shader = Shader {
            name: $name,
            spirv: spirv!($name),
            bindings: $bindings,
            push_bytes: $push,
            subgroups: $subgroups,
        };
    };
}

const STAGE: &[u32] = &[MAX_SLABS, 1, 1, 1, 1];
const STAGE_ONE: &[u32] = &[1, 1, 1, 1, 1];
const PERSISTENT: &[u32] = &[MAX_SLABS, 1, 1, 1, 1, 1, 1, 1];

shader!(AXPY, "axpy", &[1, 1], 8, false);
shader!(COPY, "copy", &[1, 1], 4, false);
shader!(RMS_NORM, "rms_norm", &[1, 1, 1], 8, false);
shader!(PROJECT, "project", &[1, 1, 1, 1, 1], 8, false);
shader!(MLP_REDUCE, "mlp_reduce", STAGE_ONE, 4, false);
shader!(MLP_STAGE_ONE, "mlp_stage.one", STAGE_ONE, 4, false);
shader!(MLP_STAGE, "mlp_stage", STAGE, 4, false);
shader!(MLP_STAGE_SUBGROUPS, "mlp_stage.subgroups", STAGE, 4, true);
shader!(MLP_STAGE_HALF, "mlp_stage.half", STAGE, 4, true);
shader!(MLP_STAGE_DOT, "mlp_stage.dot", STAGE, 4, true);
shader!(MLP_PERSISTENT, "mlp_persistent", PERSISTENT, 16, false);
shader!(MLP_PERSISTENT_SUBGROUPS, "mlp_persistent.subgroups", PERSISTENT, 16, true);
shader!(MLP_PERSISTENT_HALF, "mlp_persistent.half", PERSISTENT, 16, true);
shader!(MLP_PERSISTENT_DOT, "mlp_persistent.dot", PERSISTENT, 16, true);
shader!(MLP_PERSISTENT_MODEL, "mlp_persistent.model", PERSISTENT, 16, false);
shader!(MLP_PERSISTENT_MODEL_SUBGROUPS, "mlp_persistent.model_subgroups", PERSISTENT, 16, true);
shader!(MLP_PERSISTENT_MODEL_HALF, "mlp_persistent.model_half", PERSISTENT, 16, true);
shader!(MLP_PERSISTENT_MODEL_DOT, "mlp_persistent.model_dot", PERSISTENT, 16, true);
