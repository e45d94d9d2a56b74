// One stage of an MLP: a workgroup computes some neurons of the list whole, gate and up rows first,
// then their down columns, and adds to a row of partial sums that is its own. Nothing is shared
// between workgroups until the rows are summed up, so a stage needs no barrier among them.

struct Stage {
    uint number;
    uint n_entries;
    // Neurons of an entry, flags, slot of inputs.
    uint bits;
    // Slot of the ring.
    uint slot;
};

shared uint sh_place[MAX_BATCH];
shared uint sh_neuron[MAX_BATCH];
shared float sh_gate[MAX_BATCH];
shared float sh_up[MAX_BATCH];
shared float sh_h[MAX_BATCH];
#ifndef SUBGROUPS
shared vec2 sh_team[THREADS];
#endif

const uint INVALID = 1u << 31;
const uint SLAB_SHIFT = 16;

uint neurons_of_entry(Stage s) {
    return (s.bits & FLAG_NEURONS) != 0 ? 1 : s.bits & 1023u;
}

// An entry is a frame in 22 bits, and in ten the number of neurons in it or one neuron's index.
void decode(Stage s, uint place, uint to) {
    uint per = neurons_of_entry(s);
    uint entry = lists[s.slot * LIST_WORDS + 4 + place / per];
    uint frame = entry >> 10, low = entry & 1023u;
    uint neuron = (s.bits & FLAG_NEURONS) != 0 ? low : place % per;
    bool valid = (s.bits & FLAG_NEURONS) != 0 || neuron < low;
    // A place that holds no neuron stands for the frame's first, which is computed and not added.
    neuron = valid ? neuron : 0;
    sh_place[to] = (frame % FRAMES_PER_SLAB) * FRAME_BYTES;
    sh_neuron[to] = neuron | (frame / FRAMES_PER_SLAB) << SLAB_SHIFT | (valid ? 0 : INVALID);
}

uint take(uint i) {
    uint packed = sh_neuron[i];
    slab_now = (packed >> SLAB_SHIFT) & (MAX_SLABS - 1);
    return packed & 1023u;
}

float activation(float x) {
    if (ACTIVATION == 0) {
        return x / (1.0 + exp(-x));
    }
    // tanh's approximation of GELU: sigmoid of twice its argument.
    float z = 1.595769121605731 * x * (1.0 + 0.044715 * x * x);
    return x / (1.0 + exp(-z));
}

// Sums over the threads of a team, for its first thread.
vec2 team_sum(vec2 v) {
#ifdef SUBGROUPS
    return subgroupAdd(v);
#else
    uint t = gl_LocalInvocationIndex;
    sh_team[t] = v;
    barrier();
    for (uint step = TEAM / 2; step > 0; step >>= 1) {
        if (t % TEAM < step) {
            sh_team[t] += sh_team[t + step];
        }
        barrier();
    }
    vec2 sum = sh_team[t - t % TEAM];
    barrier();
    return sum;
#endif
}

// Products of gate and up rows of the batch's neurons: sh_gate and sh_up of [neuron][split].
void rows_of_batch(Stage s, uint n) {
    uint x_slot = (s.bits >> X_SLOT_SHIFT) & 3u;
#ifdef SUBGROUPS
    uint team = gl_SubgroupID, lane = gl_SubgroupInvocationID;
#else
    uint team = gl_LocalInvocationIndex / TEAM, lane = gl_LocalInvocationIndex % TEAM;
#endif
    const uint AT_ONCE = N_TEAMS / KSPLIT;
    uint split = team % KSPLIT, of_round = team / KSPLIT;
    uint first = split * TEAM * BLOCKS_PER_LANE + lane;
    X x;
    if (BLOCKS_PER_LANE == 1 && first < N_BLOCKS) {
        x = load_x(x_slot, first);
    }
    for (uint round = 0; round < n; round += AT_ONCE) {
        uint i = round + of_round;
        bool mine = of_round < AT_ONCE && i < n;
        vec2 sum = vec2(0.0);
        if (mine) {
            uint neuron = take(i);
            uint gate = sh_place[i] + neuron * GATE_BYTES;
            uint up = sh_place[i] + UP_AT + neuron * UP_BYTES;
            for (uint k = 0; k < BLOCKS_PER_LANE; k++) {
                uint block = first + k * TEAM;
                if (block < N_BLOCKS) {
                    if (BLOCKS_PER_LANE > 1) {
                        x = load_x(x_slot, block);
                    }
                    sum += vec2(dot_row_block(GATE_FORMAT, gate, block, x),
                                dot_row_block(UP_FORMAT, up, block, x));
                }
            }
        }
        sum = team_sum(sum);
        if (mine && lane == 0) {
            sh_gate[i * KSPLIT + split] = sum.x;
            sh_up[i * KSPLIT + split] = sum.y;
        }
    }
}

void values_of_batch(uint n) {
    for (uint i = gl_LocalInvocationIndex; i < n; i += THREADS) {
        float g = 0.0, u = 0.0;
        for (uint k = 0; k < KSPLIT; k++) {
            g += sh_gate[i * KSPLIT + k];
            u += sh_up[i * KSPLIT + k];
        }
        sh_h[i] = (sh_neuron[i] & INVALID) != 0 ? 0.0 : activation(g) * u;
    }
}

uint partial_row(Stage s, uint row) {
    uint rows = gl_NumWorkGroups.x * SLICES;
    return ((s.bits & FLAG_HALF) != 0 ? rows + row : row) * (D / 4);
}

void store_unit(Stage s, uint row, uint unit, vec4 low, vec4 high, bool onto) {
    uint at = partial_row(s, row) + 8 * (unit >> 2) + (unit & 3u);
    partials[at] = onto ? partials[at] + low : low;
    partials[at + 4] = onto ? partials[at + 4] + high : high;
}

const uint IN_FLIGHT = 4;

// Adds the columns of the batch's neurons to the workgroup's rows, or begins them.
void columns_of_batch(Stage s, uint n, bool onto) {
    uint t = gl_LocalInvocationIndex;
    uint slice = SLICES > 1 ? t / UNITS : 0;
    if (slice >= SLICES) {
        return;
    }
    for (uint pass = 0; pass < UNIT_PASSES; pass++) {
        uint unit = (SLICES > 1 ? t % UNITS : t) + pass * THREADS;
        if (unit >= UNITS) {
            break;
        }
        vec4 low = vec4(0.0), high = vec4(0.0);
        for (uint i = slice; i < n; i += SLICES * IN_FLIGHT) {
            Unit units[IN_FLIGHT];
            [[unroll]] for (uint k = 0; k < IN_FLIGHT; k++) {
                uint j = min(i + k * SLICES, n - 1);
                uint neuron = take(j);
                units[k] = load_unit(sh_place[j] + DOWN_AT + neuron * DOWN_BYTES, unit);
            }
            [[unroll]] for (uint k = 0; k < IN_FLIGHT; k++) {
                uint j = i + k * SLICES;
                add_unit(units[k], unit, j < n ? sh_h[min(j, n - 1)] : 0.0, low, high);
            }
        }
        store_unit(s, gl_WorkGroupID.x * SLICES + slice, unit, low, high, onto);
    }
}

// Computes the workgroup's share of a stage.
void run_stage(Stage s) {
    uint total = s.n_entries * neurons_of_entry(s);
    uint each = (total + gl_NumWorkGroups.x - 1) / gl_NumWorkGroups.x;
    uint first = min(gl_WorkGroupID.x * each, total), end = min(first + each, total);
    bool onto = (s.bits & FLAG_FIRST) == 0;
    if (first == end && !onto) {
        columns_of_batch(s, 0, false);
    }
    for (uint at = first; at < end; at += BATCH) {
        uint n = min(BATCH, end - at);
        for (uint i = gl_LocalInvocationIndex; i < n; i += THREADS) {
            decode(s, at + i, i);
        }
        barrier();
        rows_of_batch(s, n);
        barrier();
        values_of_batch(n);
        barrier();
        columns_of_batch(s, n, onto);
        onto = true;
        barrier();
    }
}
