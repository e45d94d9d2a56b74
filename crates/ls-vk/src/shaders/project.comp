// out[r] = sign bits or values of M · x, M of f16 [rows, cols]: the predictor's projection. One
// workgroup makes 32 rows; with bits, word r / 32 has bit r % 32 set where the product is above its
// threshold.
#version 450

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
// Threads of a row, a power of two of at most THREADS.
layout(constant_id = 1) const uint TEAM = 16;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer M { uint m[]; };
layout(set = 0, binding = 2) readonly buffer Threshold { float threshold[]; };
layout(set = 0, binding = 3) writeonly buffer Values { float values[]; };
layout(set = 0, binding = 4) writeonly buffer Bits { uint bits[]; };

layout(push_constant) uniform Push {
    uint rows;
    // Even.
    uint cols;
} push;

shared float sums[THREADS];
shared uint word;

void main() {
    const uint AT_ONCE = THREADS / TEAM;
    uint t = gl_LocalInvocationIndex, lane = t % TEAM;
    if (t == 0) {
        word = 0;
    }
    for (uint first = 0; first < 32; first += AT_ONCE) {
        uint bit = first + t / TEAM;
        uint row = gl_WorkGroupID.x * 32 + bit;
        float sum = 0.0;
        if (bit < 32 && row < push.rows) {
            for (uint k = lane; k < push.cols / 2; k += TEAM) {
                vec2 w = unpackHalf2x16(m[row * (push.cols / 2) + k]);
                sum += w.x * x[2 * k] + w.y * x[2 * k + 1];
            }
        }
        sums[t] = sum;
        barrier();
        for (uint step = TEAM / 2; step > 0; step >>= 1) {
            if (lane < step) {
                sums[t] += sums[t + step];
            }
            barrier();
        }
        if (lane == 0 && bit < 32 && row < push.rows) {
            values[row] = sums[t];
            if (sums[t] > threshold[row]) {
                atomicOr(word, 1u << bit);
            }
        }
        barrier();
    }
    if (t == 0) {
        bits[gl_WorkGroupID.x] = word;
    }
}
