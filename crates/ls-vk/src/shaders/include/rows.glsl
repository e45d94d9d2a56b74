// Blocks of 32 weights of a row, in GGUF's formats, and their product with the input.
//
// Any quantised format comes apart as w = scale · q + min, with q a signed byte (never above 127)
// and a pair of scale and min for each half of 16.

const uint F32 = 0, F16 = 1, BF16 = 2, Q4_0 = 3, Q4_1 = 4, Q5_0 = 5, Q5_1 = 6, Q8_0 = 7;
const uint Q4_K = 8, Q5_K = 9, Q6_K = 10;

struct Block {
    uint q[8];
    float s0, s1, m0, m1;
};

// A block's inputs. They lie by quads of words: the first of each block, the second of each, and so
// on, so that neighbouring threads read neighbouring quads; last, for each block, its scale, the sums
// of its halves, and nothing.
struct X {
#ifdef DOT
    uint q[8];
    float scale;
#elif defined(HALF)
    // Of each four, the first and the third, then the second and the fourth.
    f16vec2 h[16];
    float scale;
#else
    float x[32];
#endif
    // Sums of each half.
    float sum0, sum1;
};

uint blocks_before(uint format, uint block) {
    return format >= Q4_K ? block >> 3 : block;
}

uint block_bytes(uint format) {
    switch (format) {
        case F32: return 128;
        case F16: case BF16: return 64;
        case Q4_0: return 18;
        case Q4_1: return 20;
        case Q5_0: return 22;
        case Q5_1: return 24;
        case Q8_0: return 34;
        case Q4_K: return 144;
        case Q5_K: return 176;
        default: return 210;
    }
}

bool is_quantized(uint format) {
    return format >= Q4_0;
}

// Four bits of each of two halves: the low and the high nibbles of 16 bytes.
void nibbles(uint w0, uint w1, uint w2, uint w3, inout Block b) {
    const uint LOW = 0x0f0f0f0fu;
    b.q[0] = w0 & LOW;
    b.q[1] = w1 & LOW;
    b.q[2] = w2 & LOW;
    b.q[3] = w3 & LOW;
    b.q[4] = (w0 >> 4) & LOW;
    b.q[5] = (w1 >> 4) & LOW;
    b.q[6] = (w2 >> 4) & LOW;
    b.q[7] = (w3 >> 4) & LOW;
}

// Bits 0 to 3 to the fifth bits of four bytes.
uint fifth_bits(uint bits) {
    return (((bits & 15u) * 0x00204081u) & 0x01010101u) << 4;
}

void add_fifth_bits(uint bits, inout Block b) {
    for (uint k = 0; k < 8; k++) {
        b.q[k] |= fifth_bits(bits >> (4 * k));
    }
}

void set_scale(float scale, float min_value, inout Block b) {
    b.s0 = scale;
    b.s1 = scale;
    b.m0 = min_value;
    b.m1 = min_value;
}

// A scale of two bytes, then four words. They span five words, whichever way they lie.
void load_q4_0(uint at, inout Block b) {
    uint w = at >> 2;
    uint w0 = word_at(w), w1 = word_at(w + 1), w2 = word_at(w + 2), w3 = word_at(w + 3);
    uint w4 = word_at(w + 4);
    bool odd = (at & 2u) != 0;
    float d = f16(odd ? w0 >> 16 : w0 & 0xffffu);
    nibbles(odd ? w1 : (w0 >> 16) | (w1 << 16), odd ? w2 : (w1 >> 16) | (w2 << 16),
            odd ? w3 : (w2 >> 16) | (w3 << 16), odd ? w4 : (w3 >> 16) | (w4 << 16), b);
    set_scale(d, -8.0 * d, b);
}

void load_q8_0(uint at, inout Block b) {
    uint w = at >> 2;
    bool odd = (at & 2u) != 0;
    uint before = word_at(w);
    float d = f16(odd ? before >> 16 : before & 0xffffu);
    for (uint k = 0; k < 8; k++) {
        uint next = word_at(w + k + 1);
        b.q[k] = odd ? next : (before >> 16) | (next << 16);
        before = next;
    }
    set_scale(d, 0.0, b);
}

void load_nibbles(uint at, inout Block b) {
    nibbles(unaligned_word(at), unaligned_word(at + 4), unaligned_word(at + 8),
            unaligned_word(at + 12), b);
}

// Scale and min of a 32nd of a Q4_K or Q5_K super-block, six bits each in twelve bytes.
void scales_k4(uint at, uint sub, inout Block b) {
    uint dm = unaligned_word(at);
    uint s0 = unaligned_word(at + 4), s1 = unaligned_word(at + 8), s2 = unaligned_word(at + 12);
    uint shift = 8 * (sub & 3u);
    uint a = s0 >> shift, m = s1 >> shift, both = s2 >> shift;
    uint scale = sub < 4 ? a & 63u : (both & 15u) | ((a >> 6) & 3u) << 4;
    uint low = sub < 4 ? m & 63u : ((both >> 4) & 15u) | ((m >> 6) & 3u) << 4;
    vec2 d = unpackHalf2x16(dm);
    set_scale(d.x * float(scale), -d.y * float(low), b);
}

// Four bits of each of 32 bytes, the low or the high ones.
void load_nibbles_k(uint at, uint sub, inout Block b) {
    uint shift = 4 * (sub & 1u);
    for (uint k = 0; k < 8; k++) {
        b.q[k] = (unaligned_word(at + 32 * (sub >> 1) + 4 * k) >> shift) & 0x0f0f0f0fu;
    }
}

void load_q5_k(uint at, uint sub, inout Block b) {
    scales_k4(at, sub, b);
    load_nibbles_k(at + 48, sub, b);
    for (uint k = 0; k < 8; k++) {
        b.q[k] |= ((unaligned_word(at + 16 + 4 * k) >> sub) & 0x01010101u) << 4;
    }
}

float signed_byte(uint byte) {
    return float(int(byte << 24) >> 24);
}

void load_q6_k(uint at, uint sub, inout Block b) {
    uint half_block = sub >> 2, quarter = sub & 3u;
    uint low = at + 64 * half_block + 32 * (quarter & 1u);
    uint high = at + 128 + 32 * half_block;
    for (uint k = 0; k < 8; k++) {
        uint l = unaligned_word(low + 4 * k) >> (4 * (quarter >> 1));
        uint h = unaligned_word(high + 4 * k) >> (2 * quarter);
        b.q[k] = (l & 0x0f0f0f0fu) | ((h & 0x03030303u) << 4);
    }
    float d = f16(half_at(at + 208));
    b.s0 = d * signed_byte(byte_at(at + 192 + 2 * sub));
    b.s1 = d * signed_byte(byte_at(at + 193 + 2 * sub));
    b.m0 = -32.0 * b.s0;
    b.m1 = -32.0 * b.s1;
}

// Block `block` of the row at byte `row`.
Block load_block(uint format, uint row, uint block) {
    Block b;
    uint at = row + blocks_before(format, block) * block_bytes(format);
    uint sub = block & 7u;
    switch (format) {
        case Q4_0:
            load_q4_0(at, b);
            break;
        case Q4_1: {
            vec2 dm = unpackHalf2x16(unaligned_word(at));
            load_nibbles(at + 4, b);
            set_scale(dm.x, dm.y, b);
            break;
        }
        case Q5_0: {
            float d = f16(half_at(at));
            load_nibbles(at + 6, b);
            add_fifth_bits(unaligned_word(at + 2), b);
            set_scale(d, -16.0 * d, b);
            break;
        }
        case Q5_1: {
            vec2 dm = unpackHalf2x16(unaligned_word(at));
            load_nibbles(at + 8, b);
            add_fifth_bits(unaligned_word(at + 4), b);
            set_scale(dm.x, dm.y, b);
            break;
        }
        case Q8_0:
            load_q8_0(at, b);
            break;
        case Q4_K:
            scales_k4(at, sub, b);
            load_nibbles_k(at + 16, sub, b);
            break;
        case Q5_K:
            load_q5_k(at, sub, b);
            break;
        case Q6_K:
            load_q6_k(at, sub, b);
            break;
    }
    return b;
}

#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int signed_dot4(int a, int b, spirv_literal int packed_format);

// As floats: 16 products of a byte and a byte are exact in them.
float dot_words(Block b, X x, uint from) {
    int sum = 0;
    for (uint k = from; k < from + 4; k++) {
        sum += signed_dot4(int(b.q[k]), int(x.q[k]), 0);
    }
    return float(sum);
}

float dot_block(Block b, X x) {
    float products = b.s0 * dot_words(b, x, 0) + b.s1 * dot_words(b, x, 4);
    return x.scale * products + b.m0 * x.sum0 + b.m1 * x.sum1;
}

// Bytes.
X load_x(uint slot, uint block) {
    X x;
    uint at = slot * (X_WORDS / 4) + block;
    [[unroll]] for (uint k = 0; k < 2; k++) {
        uvec4 quad = x_quads[at + k * N_BLOCKS];
        x.q[4 * k] = quad.x;
        x.q[4 * k + 1] = quad.y;
        x.q[4 * k + 2] = quad.z;
        x.q[4 * k + 3] = quad.w;
    }
    vec4 rest = uintBitsToFloat(x_quads[at + 2 * N_BLOCKS]);
    x.scale = rest.x;
    x.sum0 = rest.y;
    x.sum1 = rest.z;
    return x;
}

float dot_row_block(uint format, uint row, uint block, X x) {
    return dot_block(load_block(format, row, block), x);
}
#elif defined(HALF)
// What is in the middle of a format's bytes. Less it, they are as small as the weights are, and so
// are the errors of their products; the rest is a min, whose product is in floats.
uint center_of(uint format) {
    switch (format) {
        case Q8_0: return 128;
        case Q6_K: return 32;
        case Q5_0: case Q5_1: case Q5_K: return 16;
        default: return 8;
    }
}

// The first and the third byte, less their center: 1024's half with a byte in its low bits is 1024
// and the byte, and what is taken from it is exact.
f16vec2 centered(uint word, uint center) {
    return unpackFloat2x16((word & 0x00ff00ffu) | 0x64006400u) - f16vec2(1024 + center);
}

// Sums of 8 products in each of two lanes. Centered bytes are at most 128, inputs at most 32: they
// stay below 2¹⁵.
float dot_16(Block b, X x, uint from, uint center) {
    // Signed bytes become unsigned ones.
    uint flip = center == 128 ? 0x80808080u : 0;
    f16vec2 sum = f16vec2(0.0);
    for (uint k = from; k < from + 4; k++) {
        uint word = b.q[k] ^ flip;
        sum += centered(word, center) * x.h[2 * k];
        sum += centered(word >> 8, center) * x.h[2 * k + 1];
    }
    return float(sum.x) + float(sum.y);
}

float dot_block(uint format, Block b, X x) {
    uint center = center_of(format);
    float products = b.s0 * dot_16(b, x, 0, center) + b.s1 * dot_16(b, x, 4, center);
    // The bytes of Q8_0 are signed: they had no center to begin with.
    float moved = format == Q8_0 ? 0.0 : float(center);
    float m0 = b.m0 + moved * b.s0, m1 = b.m1 + moved * b.s1;
    return x.scale * products + m0 * x.sum0 + m1 * x.sum1;
}

float dot_f16(uint at, X x) {
    float sum = 0.0;
    for (uint from = 0; from < 8; from += 4) {
        f16vec2 lanes = f16vec2(0.0);
        for (uint k = from; k < from + 4; k++) {
            f16vec2 a = x.h[2 * k], b = x.h[2 * k + 1];
            lanes += unpackFloat2x16(unaligned_word(at + 8 * k)) * f16vec2(a.x, b.x);
            lanes += unpackFloat2x16(unaligned_word(at + 8 * k + 4)) * f16vec2(a.y, b.y);
        }
        sum += float(lanes.x) + float(lanes.y);
    }
    return x.scale * sum;
}

float dot_row_block(uint format, uint row, uint block, X x) {
    if (format == F16) {
        return dot_f16(row + block * block_bytes(format), x);
    }
    return dot_block(format, load_block(format, row, block), x);
}

// Halves.
X load_x(uint slot, uint block) {
    X x;
    uint at = slot * (X_WORDS / 4) + block;
    [[unroll]] for (uint k = 0; k < 4; k++) {
        uvec4 quad = x_quads[at + k * N_BLOCKS];
        x.h[4 * k] = unpackFloat2x16(quad.x);
        x.h[4 * k + 1] = unpackFloat2x16(quad.y);
        x.h[4 * k + 2] = unpackFloat2x16(quad.z);
        x.h[4 * k + 3] = unpackFloat2x16(quad.w);
    }
    vec4 rest = uintBitsToFloat(x_quads[at + 4 * N_BLOCKS]);
    x.scale = rest.x;
    x.sum0 = rest.y;
    x.sum1 = rest.z;
    return x;
}
#else
float dot_half(Block b, X x, uint from) {
    float sum = 0.0;
    for (uint k = from; k < from + 4; k++) {
        int word = int(b.q[k]);
        for (uint i = 0; i < 4; i++) {
            sum += float(bitfieldExtract(word, int(8 * i), 8)) * x.x[4 * k + i];
        }
    }
    return sum;
}

float dot_floats(uint format, uint at, X x) {
    float sum = 0.0;
    if (format == F32) {
        for (uint k = 0; k < 32; k++) {
            sum += uintBitsToFloat(unaligned_word(at + 4 * k)) * x.x[k];
        }
        return sum;
    }
    for (uint k = 0; k < 16; k++) {
        uint word = unaligned_word(at + 4 * k);
        vec2 w = format == F16 ? unpackHalf2x16(word)
                               : uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u));
        sum += w.x * x.x[2 * k] + w.y * x.x[2 * k + 1];
    }
    return sum;
}

float dot_row_block(uint format, uint row, uint block, X x) {
    if (!is_quantized(format)) {
        return dot_floats(format, row + block * block_bytes(format), x);
    }
    Block b = load_block(format, row, block);
    return b.s0 * dot_half(b, x, 0) + b.s1 * dot_half(b, x, 4) + b.m0 * x.sum0 + b.m1 * x.sum1;
}

X load_x(uint slot, uint block) {
    X x;
    uint at = slot * (X_WORDS / 4) + block;
    [[unroll]] for (uint k = 0; k < 8; k++) {
        vec4 quad = uintBitsToFloat(x_quads[at + k * N_BLOCKS]);
        x.x[4 * k] = quad.x;
        x.x[4 * k + 1] = quad.y;
        x.x[4 * k + 2] = quad.z;
        x.x[4 * k + 3] = quad.w;
    }
    vec4 rest = uintBitsToFloat(x_quads[at + 8 * N_BLOCKS]);
    x.sum0 = rest.y;
    x.sum1 = rest.z;
    return x;
}
#endif
