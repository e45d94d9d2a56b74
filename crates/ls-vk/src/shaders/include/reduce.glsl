// Sums up the rows of partial sums: each workgroup some outputs, in an order that is fixed by the
// number of rows. Values go out with the stage's number beside them, so that a reader knows of each
// whether it has come, whatever order writes arrive in.

shared vec4 sh_sums[THREADS];

void run_reduce(Stage s) {
    const uint QUADS = D / 4;
    uint t = gl_LocalInvocationIndex;
    uint rows = gl_NumWorkGroups.x * SLICES;
    uint each = (QUADS + gl_NumWorkGroups.x - 1) / gl_NumWorkGroups.x;
    // Outputs that the workgroup handles at once, and threads that share the rows of one.
    uint width = min(each, THREADS), shares = THREADS / width;
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
            sum = sh_sums[t];
            uvec4 bits = floatBitsToUint(sum);
            uint to = s.slot * (D / 2) + 2 * quad;
            results[to] = uvec4(bits.x, s.number, bits.y, s.number);
            results[to + 1] = uvec4(bits.z, s.number, bits.w, s.number);
        }
        barrier();
    }
}
