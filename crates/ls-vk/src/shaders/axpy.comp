// y += a · x: the smallest whole kernel, and a first sign of life of a device.
#version 450

layout(local_size_x_id = 0) in;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };

layout(push_constant) uniform Push {
    uint n;
    float a;
} push;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < push.n) {
        y[i] += push.a * x[i];
    }
}
