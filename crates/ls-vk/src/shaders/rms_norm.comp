// out = x / rms(x) · weight, one workgroup.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 2) writeonly buffer Out { float result[]; };

layout(push_constant) uniform Push {
    uint n;
    float eps;
} push;

shared float sums[THREADS];

void main() {
    uint t = gl_LocalInvocationIndex;
    float sum = 0.0;
    for (uint i = t; i < push.n; i += THREADS) {
        sum += x[i] * x[i];
    }
    sums[t] = sum;
    barrier();
    for (uint step = THREADS / 2; step > 0; step >>= 1) {
        if (t < step) {
            sums[t] += sums[t + step];
        }
        barrier();
    }
    float scale = inversesqrt(sums[0] / float(push.n) + push.eps);
    for (uint i = t; i < push.n; i += THREADS) {
        result[i] = x[i] * scale * weight[i];
    }
}
