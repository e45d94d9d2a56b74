// Down columns: a unit is eight values of one, a quarter of its group of 32. Unit j of a group has
// values 4j to 4j + 3 and 16 + 4j to 16 + 4j + 3: what lies in one word of nibbles.

const uint C_F32 = 0, C_F16 = 1, C_BF16 = 2, C_Q8 = 3, C_Q6 = 4, C_Q5 = 5, C_Q4 = 6;

// A unit as it lies in memory, so that loads of several neurons can be in flight at once.
struct Unit {
    uint w[8];
    float scale;
};

uint column_word(uint byte) {
    return DOWN_ALIGNED == 1 ? word_at(byte >> 2) : unaligned_word(byte);
}

// Unit `unit` of the column at byte `column`.
Unit load_unit(uint column, uint unit) {
    Unit u;
    uint group = unit >> 2, j = unit & 3u;
    if (DOWN_FORMAT == C_F32) {
        uint at = column + 128 * group + 16 * j;
        for (uint k = 0; k < 4; k++) {
            u.w[k] = column_word(at + 4 * k);
            u.w[4 + k] = column_word(at + 64 + 4 * k);
        }
        return u;
    }
    if (DOWN_FORMAT == C_F16 || DOWN_FORMAT == C_BF16) {
        uint at = column + 64 * group + 8 * j;
        u.w[0] = column_word(at);
        u.w[1] = column_word(at + 4);
        u.w[2] = column_word(at + 32);
        u.w[3] = column_word(at + 36);
        return u;
    }
    u.scale = f16(half_at(column + 2 * group));
    uint integers = column + 2 * N_BLOCKS;
    switch (DOWN_FORMAT) {
        case C_Q8:
            u.w[0] = column_word(integers + 32 * group + 4 * j);
            u.w[1] = column_word(integers + 32 * group + 16 + 4 * j);
            break;
        case C_Q6:
            u.w[0] = column_word(integers + 24 * group + 4 * j);
            u.w[1] = column_word(integers + 24 * group + 16 + 4 * (j & 1u));
            break;
        case C_Q5:
            u.w[0] = column_word(integers + 20 * group + 4 * j);
            u.w[1] = column_word(integers + 20 * group + 16);
            break;
        default:
            u.w[0] = column_word(integers + 16 * group + 4 * j);
            break;
    }
    return u;
}

vec4 bytes_of(uint word) {
    return vec4(word & 0xffu, (word >> 8) & 0xffu, (word >> 16) & 0xffu, word >> 24);
}

// The low nibble of each byte, and 16: as the highest bits of a float's mantissa, since to convert an
// integer takes longer.
vec4 nibbles_of(uint word) {
    const uint MASK = 15u << 19, SIXTEEN = 0x41800000u;
    uvec4 places = uvec4(word << 19, word << 11, word << 3, word >> 5);
    return uintBitsToFloat((places & MASK) | SIXTEEN);
}

// Sums of a unit's values times factors; of quantised ones, as they are stored.
struct Sum {
    vec4 low, high;
    // Of the factors of integers, for half of the range that is added to each.
    float factors;
};

void add_integers(float factor, uint low, uint high, inout Sum sum) {
    sum.low += factor * bytes_of(low);
    sum.high += factor * bytes_of(high);
    sum.factors += factor;
}

// The sum of the values themselves.
void finish_sum(inout Sum sum) {
    const float CENTER = DOWN_FORMAT == C_Q4 ? 24.0 : DOWN_FORMAT == C_Q5 ? 16.0
        : DOWN_FORMAT == C_Q6 ? 32.0 : DOWN_FORMAT == C_Q8 ? 128.0 : 0.0;
    sum.low -= CENTER * sum.factors;
    sum.high -= CENTER * sum.factors;
}

// Adds a unit's values, times `h`.
void add_unit(Unit u, uint unit, float h, inout Sum sum) {
    uint j = unit & 3u;
    const uint NIBBLES = 0x0f0f0f0fu;
    switch (DOWN_FORMAT) {
        case C_F32:
            sum.low += h * uintBitsToFloat(uvec4(u.w[0], u.w[1], u.w[2], u.w[3]));
            sum.high += h * uintBitsToFloat(uvec4(u.w[4], u.w[5], u.w[6], u.w[7]));
            break;
        case C_F16:
            sum.low += h * vec4(unpackHalf2x16(u.w[0]), unpackHalf2x16(u.w[1]));
            sum.high += h * vec4(unpackHalf2x16(u.w[2]), unpackHalf2x16(u.w[3]));
            break;
        case C_BF16: {
            const uint TOP = 0xffff0000u;
            sum.low += h * uintBitsToFloat(uvec4(u.w[0] << 16, u.w[0] & TOP, u.w[1] << 16, u.w[1] & TOP));
            sum.high += h * uintBitsToFloat(uvec4(u.w[2] << 16, u.w[2] & TOP, u.w[3] << 16, u.w[3] & TOP));
            break;
        }
        case C_Q8:
            add_integers(h * u.scale, u.w[0], u.w[1], sum);
            break;
        case C_Q6: {
            uint shift = j < 2 ? 0 : 2;
            uint top = u.w[1] >> shift;
            uint a = (u.w[0] & NIBBLES) | ((top & 0x03030303u) << 4);
            uint b = ((u.w[0] >> 4) & NIBBLES) | (top & 0x30303030u);
            add_integers(h * u.scale, a, b, sum);
            break;
        }
        case C_Q5: {
            uint a = (u.w[0] & NIBBLES) | fifth_bits(u.w[1] >> (4 * j));
            uint b = ((u.w[0] >> 4) & NIBBLES) | fifth_bits(u.w[1] >> (16 + 4 * j));
            add_integers(h * u.scale, a, b, sum);
            break;
        }
        default:
            sum.low += h * u.scale * nibbles_of(u.w[0]);
            sum.high += h * u.scale * nibbles_of(u.w[0] >> 4);
            sum.factors += h * u.scale;
            break;
    }
}
