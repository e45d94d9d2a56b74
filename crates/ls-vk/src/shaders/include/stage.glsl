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

// Of each neuron of the batch: the bytes of its gate row (later its value), its up row and its down
// column, and its slab.
shared uvec4 sh_neuron[MAX_BATCH];
shared float sh_gate[MAX_BATCH];
shared float sh_up[MAX_BATCH];
#ifndef SUBGROUPS
shared vec2 sh_team[THREADS];
#endif

const uint INVALID = 1u << 31;

uint neurons_of_entry(Stage s) {
    return (s.bits & FLAG_NEURONS) != 0 ? 1 : s.bits & 1023u;
}

// An entry is a frame in 22 bits, and in ten the number of neurons in it or one neuron's index.
void decode(Stage s, uint place, uint to) {
    uint per = neurons_of_entry(s);
    // Most often it is a power of two, and to divide by what no constant is takes long.
    bool shifts = (per & (per - 1)) == 0;
    uint index = shifts ? place >> findLSB(per) : place / per;
    uint entry = lists[s.slot * LIST_WORDS + 4 + index];
    uint frame = entry >> 10, low = entry & 1023u;
    uint neuron = (s.bits & FLAG_NEURONS) != 0 ? low : place - index * per;
    bool valid = (s.bits & FLAG_NEURONS) != 0 || neuron < low;
    // A place that holds no neuron stands for the frame's first, which is computed and not added.
    neuron = valid ? neuron : 0;
    uint at = (frame % FRAMES_PER_SLAB) * FRAME_BYTES;
    sh_neuron[to] = uvec4(at + neuron * GATE_BYTES, at + UP_AT + neuron * UP_BYTES,
                          at + DOWN_AT + neuron * DOWN_BYTES,
                          frame / FRAMES_PER_SLAB | (valid ? 0 : INVALID));
}

// A neuron of the batch; its slab becomes the one in hand.
uvec4 take(uint i) {
    uvec4 neuron = sh_neuron[i];
    slab_now = neuron.w & (MAX_SLABS - 1);
    return neuron;
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

// Products of a thread's blocks of a neuron's gate row and up row.
vec2 products(uint i, uint first, uint x_slot, X x) {
    uvec4 neuron = take(i);
    vec2 sum = vec2(0.0);
    for (uint k = 0; k < BLOCKS_PER_LANE; k++) {
        uint block = first + k * TEAM;
        if (block < N_BLOCKS) {
            if (BLOCKS_PER_LANE > 1) {
                x = load_x(x_slot, block);
            }
            sum += vec2(dot_row_block(GATE_FORMAT, neuron.x, block, x),
                        dot_row_block(UP_FORMAT, neuron.y, block, x));
        }
    }
    return sum;
}

const uint MAX_ROWS_AT_ONCE = 2;

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
    for (uint round = 0; round < n; round += AT_ONCE * ROWS_AT_ONCE) {
        uint i = round + of_round;
        bool mine = of_round < AT_ONCE && i < n;
        vec2 sums[MAX_ROWS_AT_ONCE] = vec2[](vec2(0.0), vec2(0.0));
        if (mine) {
            // No branch within: all loads of these rows can be on their way together. Behind the
            // last neuron the first is computed again.
            [[unroll]] for (uint r = 0; r < ROWS_AT_ONCE; r++) {
                uint j = i + r * AT_ONCE;
                sums[r] = products(j < n ? j : i, first, x_slot, x);
            }
        }
        [[unroll]] for (uint r = 0; r < ROWS_AT_ONCE; r++) {
            vec2 sum = team_sum(sums[r]);
            uint j = i + r * AT_ONCE;
            if (mine && lane == 0 && j < n) {
                sh_gate[j * KSPLIT + split] = sum.x;
                sh_up[j * KSPLIT + split] = sum.y;
            }
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
        float h = (sh_neuron[i].w & INVALID) != 0 ? 0.0 : activation(g) * u;
        sh_neuron[i].x = floatBitsToUint(h);
    }
}

uint partial_row(Stage s, uint row) {
    const uint rows = WORKGROUPS * SLICES;
    return ((s.bits & FLAG_HALF) != 0 ? rows + row : row) * (D / 4);
}

// Outputs of one thread so far, in each of some passes.
struct Rows {
    vec4 low[PASSES_AT_ONCE];
    vec4 high[PASSES_AT_ONCE];
};

// Whether a thread has room for all of its outputs.
const bool HOLDS_ROWS = UNIT_PASSES == PASSES_AT_ONCE;

uint slice_of_thread() {
    return SLICES > 1 ? gl_LocalInvocationIndex / UNITS : 0;
}

uint unit_of_thread(uint pass) {
    uint t = gl_LocalInvocationIndex;
    return SLICES > 1 ? t % UNITS : t + pass * THREADS;
}

bool has_columns(uint pass) {
    return slice_of_thread() < SLICES && unit_of_thread(pass) < UNITS;
}

uint place_of_unit(Stage s, uint unit) {
    uint row = gl_WorkGroupID.x * SLICES + slice_of_thread();
    return partial_row(s, row) + 8 * (unit >> 2) + (unit & 3u);
}

void clear_rows(inout Rows rows) {
    [[unroll]] for (uint p = 0; p < PASSES_AT_ONCE; p++) {
        rows.low[p] = vec4(0.0);
        rows.high[p] = vec4(0.0);
    }
}

// Of the passes from `pass` on.
void load_rows(Stage s, uint pass, inout Rows rows) {
    [[unroll]] for (uint p = 0; p < PASSES_AT_ONCE; p++) {
        if (has_columns(pass + p)) {
            uint at = place_of_unit(s, unit_of_thread(pass + p));
            rows.low[p] = partials[at];
            rows.high[p] = partials[at + 4];
        }
    }
}

void store_rows(Stage s, uint pass, Rows rows) {
    [[unroll]] for (uint p = 0; p < PASSES_AT_ONCE; p++) {
        if (has_columns(pass + p)) {
            uint at = place_of_unit(s, unit_of_thread(pass + p));
            partials[at] = rows.low[p];
            partials[at + 4] = rows.high[p];
        }
    }
}

// Adds the columns of the batch's neurons to a thread's outputs of the passes from `pass` on.
void columns_of_batch(uint n, uint pass, inout Rows rows) {
    uint slice = slice_of_thread();
    if (slice >= n) {
        return;
    }
    Sum sums[PASSES_AT_ONCE];
    [[unroll]] for (uint p = 0; p < PASSES_AT_ONCE; p++) {
        sums[p] = Sum(vec4(0.0), vec4(0.0), 0.0);
    }
    for (uint i = slice; i < n; i += SLICES * IN_FLIGHT) {
        Unit units[PASSES_AT_ONCE * IN_FLIGHT];
        [[unroll]] for (uint p = 0; p < PASSES_AT_ONCE; p++) {
            if (has_columns(pass + p)) {
                // No branch within: all loads can be on their way together. Behind the last neuron
                // it is loaded again.
                [[unroll]] for (uint k = 0; k < IN_FLIGHT; k++) {
                    uvec4 neuron = take(min(i + k * SLICES, n - 1));
                    units[p * IN_FLIGHT + k] = load_unit(neuron.z, unit_of_thread(pass + p));
                }
            }
        }
        [[unroll]] for (uint k = 0; k < IN_FLIGHT; k++) {
            if (i + k * SLICES < n) {
                float h = uintBitsToFloat(sh_neuron[i + k * SLICES].x);
                [[unroll]] for (uint p = 0; p < PASSES_AT_ONCE; p++) {
                    add_unit(units[p * IN_FLIGHT + k], unit_of_thread(pass + p), h, sums[p]);
                }
            }
        }
    }
    [[unroll]] for (uint p = 0; p < PASSES_AT_ONCE; p++) {
        finish_sum(sums[p]);
        rows.low[p] += sums[p].low;
        rows.high[p] += sums[p].high;
    }
}

// The batches' neurons' columns, where a thread has more outputs than it has room for.
void columns_through_memory(Stage s, uint n, bool onto) {
    for (uint pass = 0; pass < UNIT_PASSES; pass += PASSES_AT_ONCE) {
        Rows rows;
        clear_rows(rows);
        if (onto) {
            load_rows(s, pass, rows);
        }
        columns_of_batch(n, pass, rows);
        store_rows(s, pass, rows);
    }
}

// Computes the workgroup's share of a stage and adds it to `rows`, or to memory if there is no room.
void run_stage(Stage s, inout Rows rows) {
    uint total = s.n_entries * neurons_of_entry(s);
    uint each = (total + WORKGROUPS - 1) / WORKGROUPS;
    uint first = min(gl_WorkGroupID.x * each, total), end = min(first + each, total);
    bool onto = (s.bits & FLAG_FIRST) == 0;
    if (!HOLDS_ROWS && first == end && !onto) {
        columns_through_memory(s, 0, false);
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
        if (HOLDS_ROWS) {
            columns_of_batch(n, 0, rows);
        } else {
            columns_through_memory(s, n, onto);
            onto = true;
        }
        barrier();
    }
}

// Gets a thread's outputs ready for a stage.
void begin_rows(Stage s, inout Rows rows) {
    clear_rows(rows);
    if (HOLDS_ROWS && (s.bits & FLAG_FIRST) == 0) {
        load_rows(s, 0, rows);
    }
}

void end_rows(Stage s, Rows rows) {
    if (HOLDS_ROWS) {
        store_rows(s, 0, rows);
    }
}
