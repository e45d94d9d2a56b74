// to = from, sixteen bytes a thread at a time, four on their way: what the device's memory can do.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;

layout(set = 0, binding = 0) readonly buffer From { uvec4 from[]; };
layout(set = 0, binding = 1) writeonly buffer To { uvec4 to[]; };

layout(push_constant) uniform Push {
    uint n;
} push;

const uint AT_ONCE = 4;

void main() {
    uint width = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < push.n; i += width * AT_ONCE) {
        uvec4 values[AT_ONCE];
        [[unroll]] for (uint k = 0; k < AT_ONCE; k++) {
            values[k] = from[min(i + k * width, push.n - 1)];
        }
        [[unroll]] for (uint k = 0; k < AT_ONCE; k++) {
            if (i + k * width < push.n) {
                to[i + k * width] = values[k];
            }
        }
    }
}
