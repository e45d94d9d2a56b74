// Stages of the MLP in one dispatch that stays alive between them.
//
// The host writes a stage's entries and header into the stage's slot of the ring, its number last.
// Every workgroup watches that number; each computes its share, and the last one to be ready
// writes the number where the host watches. All loops are bounded: when no stage comes, the first
// workgroup parks the dispatch, and the host starts it anew.
//
// That all workgroups agree on whether a stage came before the parking or after it rests on this:
// number and park word lie in one piece of 16 bytes that is read at once, and the first workgroup
// looks at the number again after it announced that it will park. Whoever saw the number together
// with no announcement saw it before, so the first workgroup sees it too and takes the
// announcement back.
//
// Variants: plain; subgroups: SUBGROUPS; half: SUBGROUPS, HALF; dot: SUBGROUPS, DOT; model: MODEL;
// model_subgroups: MODEL, SUBGROUPS; model_half: MODEL, SUBGROUPS, HALF;
// model_dot: MODEL, SUBGROUPS, DOT
#version 450
#ifdef MODEL
#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#endif
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SUBGROUPS
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#ifdef HALF
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "include/shape.glsl"
#include "include/rows.glsl"
#include "include/columns.glsl"
#include "include/stage.glsl"
#include "include/reduce.glsl"

// The list slots again, for their headers.
layout(set = 0, binding = 5) coherent volatile buffer Doorbells { uvec4 doorbells[]; };
// For each slot, LANES numbers of the stage that is ready; then the number of a stage that got lost.
layout(set = 0, binding = 6) coherent volatile buffer Done { uint done[]; };
// Workgroups of each lane that are ready, for each slot, since the dispatch began; each counter in a
// place of its own.
layout(set = 0, binding = 7) coherent buffer Arrivals { uint arrivals[]; };

// Workgroups are counted in so many parts, since a device adds to one counter in turns.
layout(constant_id = 25) const uint LANES = 1;
const uint MAX_LANES = 8;
const uint LOST_AT = MAX_LANES * RING;
const uint APART = 8;

layout(push_constant) uniform Push {
    uint first_number;
    uint max_stages;
    uint idle_spins;
    // For those that wait for other workgroups; larger than what the first spins.
    uint patient_spins;
} push;

// All that this workgroup wrote is seen by others, and what they wrote before is seen here; nothing
// that was cached is taken for it.
void meet() {
#ifdef MODEL
    memoryBarrier(gl_ScopeQueueFamily, gl_StorageSemanticsBuffer,
                  gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
#else
    memoryBarrierBuffer();
#endif
}

const uint RUNNING = 0, PARKING = 1, PARKED = 2;
const uint GO = 0, END = 1, LOST = 2;

shared uint sh_command;
shared uint sh_entries;
shared uint sh_bits;

void accept(uvec4 header) {
    sh_entries = header.z;
    sh_bits = header.w;
    sh_command = (header.w & FLAG_PARK) != 0 ? END : GO;
}

void wait_first(uint at, uint number) {
    for (uint spin = 0; spin < push.idle_spins; spin++) {
        uvec4 header = doorbells[at];
        if (header.x == number) {
            accept(header);
            return;
        }
    }
    doorbells[at].y = PARKING;
    meet();
    uvec4 header = doorbells[at];
    if (header.x == number) {
        doorbells[at].y = RUNNING;
        accept(header);
        return;
    }
    doorbells[at].y = PARKED;
    sh_command = END;
}

void wait_other(uint at, uint number) {
    for (uint spin = 0; spin < push.patient_spins; spin++) {
        uvec4 header = doorbells[at];
        if (header.y == PARKED) {
            sh_command = END;
            return;
        }
        if (header.x == number && header.y == RUNNING) {
            accept(header);
            return;
        }
    }
    done[LOST_AT] = number;
    sh_command = LOST;
}

uint counter(uint slot, uint lane) {
    return APART * (MAX_LANES * slot + lane);
}

// What a lane's counter is when all of it has arrived, in the dispatch's `round` of the ring.
uint target(uint lane, uint round) {
    return round * ((WORKGROUPS - lane + LANES - 1) / LANES);
}

// Announces that the workgroup's share is done, and that the lane's is, if it is the last.
void arrive(uint slot, uint round, bool output_follows, uint number) {
    // Rows of sums are the workgroup's own until they are summed up: only then they must be seen.
    if (output_follows) {
        meet();
    }
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        uint lane = gl_WorkGroupID.x % LANES;
        bool last = atomicAdd(arrivals[counter(slot, lane)], 1) + 1 == target(lane, round);
        if (last && !output_follows) {
            done[MAX_LANES * slot + lane] = number;
        }
    }
}

// Workgroups of a lane that have arrived so far. Where that can be said it only looks, since all look
// at once.
uint arrived(uint slot, uint lane) {
#ifdef MODEL
    return atomicLoad(arrivals[counter(slot, lane)], gl_ScopeDevice, gl_StorageSemanticsNone,
                      gl_SemanticsRelaxed);
#else
    return atomicOr(arrivals[counter(slot, lane)], 0);
#endif
}

// Waits until every workgroup has arrived.
bool wait_for_all(uint slot, uint round, uint number) {
    for (uint lane = gl_LocalInvocationIndex; lane < LANES; lane += THREADS) {
        bool all = false;
        for (uint spin = 0; spin < push.patient_spins && !all; spin++) {
            all = arrived(slot, lane) >= target(lane, round);
        }
        if (!all) {
            done[LOST_AT] = number;
            sh_command = LOST;
        }
        meet();
    }
    barrier();
    meet();
    return sh_command == GO;
}

void main() {
    // A thread's outputs stay with it from stage to stage. They are in memory between dispatches, and
    // when they are summed up.
    Rows rows;
    bool held = false;
    Stage stage;
    for (uint k = 0; k < push.max_stages; k++) {
        uint number = push.first_number + k;
        uint slot = number % RING;
        if (gl_LocalInvocationIndex == 0) {
            uint at = slot * (LIST_WORDS / 4);
            if (gl_WorkGroupID.x == 0) {
                wait_first(at, number);
            } else {
                wait_other(at, number);
            }
        }
        barrier();
        if (sh_command != GO) {
            break;
        }
        // What is cached of frames or the input may be from before they were filled anew. Entries
        // are never cached, and read after the barrier.
        if (k == 0 || (sh_bits & FLAG_FRESH) != 0) {
            meet();
        }
        stage = Stage(number, sh_entries, sh_bits, slot);
        if (!held || (stage.bits & FLAG_FIRST) != 0) {
            begin_rows(stage, rows);
            held = true;
        }
        run_stage(stage, rows);
        uint round = k / RING + 1;
        bool hand_out = (stage.bits & FLAG_OUTPUT) != 0;
        if (hand_out) {
            end_rows(stage, rows);
        }
        arrive(slot, round, hand_out, number);
        if (!hand_out) {
            barrier();
            continue;
        }
        if (!wait_for_all(slot, round, number)) {
            break;
        }
        run_reduce(stage);
        barrier();
    }
    if (held) {
        end_rows(stage, rows);
    }
}
