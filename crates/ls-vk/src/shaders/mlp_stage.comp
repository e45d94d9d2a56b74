// A stage of the MLP as a dispatch of its own: each workgroup's share into its partial sums.
//
// Variants: plain; one: ONE_SLAB; subgroups: SUBGROUPS; half: SUBGROUPS, HALF;
// dot: SUBGROUPS, DOT
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SUBGROUPS
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#ifdef HALF
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "include/shape.glsl"
#include "include/rows.glsl"
#include "include/columns.glsl"
#include "include/stage.glsl"

layout(push_constant) uniform Push {
    uint slot;
} push;

void main() {
    uint at = push.slot * LIST_WORDS;
    Stage stage = Stage(lists[at], lists[at + 2], lists[at + 3], push.slot);
    Rows rows;
    begin_rows(stage, rows);
    run_stage(stage, rows);
    end_rows(stage, rows);
}
