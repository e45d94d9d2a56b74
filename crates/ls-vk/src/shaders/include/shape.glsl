// What a pipeline is specialised for, and the buffers that every MLP kernel sees.
//
// All of it is fixed when the pipeline is made, so that formats, offsets and loop lengths fold to
// constants. The numbers must agree with kernels/mlp.rs.

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
// Threads that share the blocks of one row; a subgroup where the kernel uses subgroups.
layout(constant_id = 1) const uint TEAM = 8;
// Length of rows, columns, input and output; a multiple of 32.
layout(constant_id = 2) const uint D = 32;
layout(constant_id = 3) const uint GATE_FORMAT = 0;
layout(constant_id = 4) const uint UP_FORMAT = 0;
layout(constant_id = 5) const uint DOWN_FORMAT = 0;
// Bytes: where up rows and down columns begin in a frame, and the lengths of all three.
layout(constant_id = 6) const uint UP_AT = 0;
layout(constant_id = 7) const uint DOWN_AT = 0;
layout(constant_id = 8) const uint GATE_BYTES = 4;
layout(constant_id = 9) const uint UP_BYTES = 4;
layout(constant_id = 10) const uint DOWN_BYTES = 4;
// 1 if the integers of every column begin at a multiple of four bytes.
layout(constant_id = 11) const uint DOWN_ALIGNED = 0;
layout(constant_id = 12) const uint FRAME_BYTES = 4;
layout(constant_id = 13) const uint FRAMES_PER_SLAB = 1;
layout(constant_id = 14) const uint N_SLABS = 1;
// A row's blocks are divided among KSPLIT teams, BLOCKS_PER_LANE for each thread of a team.
layout(constant_id = 15) const uint KSPLIT = 1;
layout(constant_id = 16) const uint BLOCKS_PER_LANE = 1;
layout(constant_id = 17) const uint ACTIVATION = 0;
// Words of an input slot, of a list slot, and number of slots of the ring of stages.
layout(constant_id = 18) const uint X_WORDS = 32;
layout(constant_id = 19) const uint LIST_WORDS = 8;
layout(constant_id = 20) const uint RING = 1;
// Rows of gate and up that a team works on at once.
layout(constant_id = 22) const uint ROWS_AT_ONCE = 1;
// Columns whose loads are on their way together.
layout(constant_id = 23) const uint IN_FLIGHT = 1;
layout(constant_id = 24) const uint WORKGROUPS = 1;
// Neurons that a workgroup handles between two rounds of its threads.
layout(constant_id = 21) const uint BATCH = 16;

#ifdef ONE_SLAB
const uint MAX_SLABS = 1;
#else
const uint MAX_SLABS = 8;
#endif
const uint N_BLOCKS = D / 32;
const uint N_TEAMS = THREADS / TEAM;
// A thread adds up eight outputs at a time: a quarter of a group of 32.
const uint UNITS = D / 8;
const uint SLICES = UNITS < THREADS ? THREADS / UNITS : 1;
const uint UNIT_PASSES = (UNITS + THREADS - 1) / THREADS;
// Of these, as many as have their loads on their way together.
const uint PASSES_AT_ONCE = UNIT_PASSES < 2 ? UNIT_PASSES : 2;
const uint MAX_BATCH = 256;

// In a dispatch that lives on, frames change: what was cached of them is dropped at the barrier
// before a stage. Under the memory model that is a promise, without it the self-test looks.
#ifdef MODEL
#define FRAMES nonprivate readonly
#define INPUTS nonprivate readonly
#else
#define FRAMES readonly
#define INPUTS coherent readonly
#endif

layout(set = 0, binding = 0) FRAMES buffer Slab { uint words[]; } slabs[MAX_SLABS];
layout(set = 0, binding = 1) INPUTS buffer Inputs { uvec4 x_quads[]; };
// RING slots of a header (four words) and the stage's entries.
layout(set = 0, binding = 2) coherent readonly buffer Lists { uint lists[]; };
// Two halves of one row for each slice of each workgroup.
layout(set = 0, binding = 3) coherent buffer Partials { vec4 partials[]; };
// RING slots of D values.
layout(set = 0, binding = 4) coherent writeonly buffer Results { uvec4 results[]; };

// A stage's header: number, park word, entries, and in the last word: bits 0–9 neurons of an
// entry, then these.
const uint FLAG_NEURONS = 1u << 16; // each entry names one neuron
const uint FLAG_FIRST = 1u << 17;   // forget what was added before
const uint FLAG_OUTPUT = 1u << 18;  // sum up and hand out after it
const uint FLAG_PARK = 1u << 19;    // no stage: end the dispatch
const uint FLAG_HALF = 1u << 20;    // which half of the partial sums
const uint FLAG_FRESH = 1u << 21;  // frames or the input may have been filled since the last stage
const uint X_SLOT_SHIFT = 22;       // which slot of inputs, two bits

// Where the frame in hand lies: slab and byte.
uint slab_now;

uint word_at(uint index) {
#ifdef ONE_SLAB
    return slabs[0].words[index];
#else
    // Folded when the pipeline is made: no choice where there is none.
    if (N_SLABS == 1) {
        return slabs[0].words[index];
    }
    return slabs[slab_now].words[index];
#endif
}

uint half_at(uint byte) {
    return (word_at(byte >> 2) >> ((byte & 2u) << 3)) & 0xffffu;
}

float f16(uint bits) {
    return unpackHalf2x16(bits).x;
}

// The word at a byte that is a multiple of two.
uint unaligned_word(uint byte) {
    uint at = byte >> 2;
    uint low = word_at(at);
    if ((byte & 2u) == 0) {
        return low;
    }
    return (low >> 16) | (word_at(at + 1) << 16);
}

// A byte of any address.
uint byte_at(uint byte) {
    return (word_at(byte >> 2) >> ((byte & 3u) << 3)) & 0xffu;
}
