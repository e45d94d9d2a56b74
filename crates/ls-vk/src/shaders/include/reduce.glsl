// Sums up the rows of partial sums: each workgroup some outputs, in an order that is fixed by the
// number of rows. The reader finds no value where none has come yet, whatever order writes arrive
// in: it left ABSENT there, which no sum is.

const uint ABSENT = 0xffffffffu, NOT_A_NUMBER = 0x7fc00000u;

uint present(uint bits) {
    return bits == ABSENT ? NOT_A_NUMBER : bits;
}

shared vec4 sh_sums[THREADS];

void run_reduce(Stage s) {
    const uint QUADS = D / 4;
    uint t = gl_LocalInvocationIndex;
    const uint rows = WORKGROUPS * SLICES;
    const uint each = (QUADS + WORKGROUPS - 1) / WORKGROUPS;
    // Outputs that the workgroup handles at once, and threads that share the rows of one.
    const uint width = each < THREADS ? each : THREADS, shares = THREADS / width;
    uint first = gl_WorkGroupID.x * each, end = min(first + each, QUADS);
    for (uint at = first; at < end; at += width) {
        uint quad = at + t % width, share = t / width;
        bool mine = share < shares && quad < end;
        vec4 sum = vec4(0.0);
        if (mine) {
            for (uint row = share; row < rows; row += shares) {
                sum += partials[partial_row(s, row) + quad];
            }
        }
        sh_sums[t] = sum;
        barrier();
        for (uint left = shares; left > 1;) {
            uint lower = (left + 1) / 2;
            if (share < left - lower) {
                sh_sums[t] += sh_sums[t + lower * width];
            }
            left = lower;
            barrier();
        }
        if (t < width && quad < end) {
            uvec4 bits = floatBitsToUint(sh_sums[t]);
            results[s.slot * QUADS + quad] =
                uvec4(present(bits.x), present(bits.y), present(bits.z), present(bits.w));
        }
        barrier();
    }
}
