// Sums the workgroups' partial sums up after a stage that asks for it.
#version 450
#define ONE_SLAB
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/shape.glsl"
#include "include/rows.glsl"
#include "include/columns.glsl"
#include "include/stage.glsl"
#include "include/reduce.glsl"

layout(push_constant) uniform Push {
    uint slot;
} push;

void main() {
    uint at = push.slot * LIST_WORDS;
    Stage stage = Stage(lists[at], lists[at + 2], lists[at + 3], push.slot);
    if ((stage.bits & FLAG_OUTPUT) != 0) {
        run_reduce(stage);
    }
}
