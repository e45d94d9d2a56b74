//! Time of one prediction at the sizes of a 7-billion-parameter model, on one thread.
//!
//! Beside the hash predictors stand low-rank networks of 16-bit weights, which are widened on the
//! way as a kernel of that type does, and the selection that follows.

use std::fmt;

use divan::Bencher;
use ls_hash::{
    FeatureKind, Form, Isa, LookupPredictor, LookupShape, Mask, Norm, Predictor, Selector, Shape,
    WeightType,
};

const N_INPUTS: usize = 4096;
const N_OUTPUTS: usize = 14336;
/// Of features that look-up predictors know: what the engine trains.
const KINDS: usize = 3;

#[derive(Clone)]
struct Case {
    name: &'static str,
    shape: Shape,
    isa: Isa,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let predictor = Predictor::random(self.shape.clone(), 1).expect("a valid shape");
        let mb = predictor.n_bytes() as f64 / 1e6;
        write!(f, "{:<28} {mb:.2} MB {}", self.name, self.isa)
    }
}

fn shape(bits: usize, blocks_per_bit: usize, form: Form, n_codes: usize) -> Shape {
    let base = Shape::new(N_INPUTS, N_OUTPUTS);
    Shape { stacks: vec![bits], blocks_per_bit, form, n_codes, norm: Norm::Rms, ..base }
}

fn cases() -> Vec<Case> {
    let (one, two) = (Form::Direct, Form::Bilinear);
    let ternary = Shape { weights: WeightType::Ternary, ..shape(256, Shape::DENSE, one, 1) };
    let stacked = Shape { stacks: vec![128, 128], ..shape(128, 4, one, 1) };
    let shapes = [
        ("256 bits of 128", shape(256, 4, one, 1)),
        ("2 × 128 bits of 256", shape(128, 8, two, 1)),
        ("2 stacks of 128 bits", stacked),
        ("2 codes of 128 bits of 128", shape(128, 4, one, 2)),
        ("256 bits, dense ternary", ternary),
        ("512 bits of 128", shape(512, 4, one, 1)),
        ("2 × 1024 bits of 128", shape(1024, 4, two, 1)),
    ];
    let each = shapes.into_iter().flat_map(|(name, shape)| {
        let isas = Isa::available().into_iter().filter(|isa| *isa != Isa::SCALAR);
        isas.map(move |isa| Case { name, shape: shape.clone(), isa })
    });
    each.collect()
}

fn features() -> Vec<f32> {
    (0..N_INPUTS).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
}

#[divan::bench(args = cases())]
fn hash(bencher: Bencher<'_, '_>, case: &Case) {
    let predictor = Predictor::random(case.shape.clone(), 1).expect("a valid shape");
    let predictor = predictor.with_isa(case.isa);
    let mut state = predictor.state();
    let features = features();
    bencher.bench_local(|| {
        predictor.set(&mut state, divan::black_box(&features));
        state.scores()[0]
    });
}

#[derive(Clone, Copy)]
struct LookupCase {
    bytes: usize,
    isa: Isa,
}

impl fmt::Display for LookupCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} MB {}", self.bytes as f64 / 1e6, self.isa)
    }
}

impl LookupCase {
    fn predictor(self) -> LookupPredictor {
        let shape = LookupShape::within(N_INPUTS, N_OUTPUTS, self.bytes, KINDS).expect("enough");
        LookupPredictor::random(shape, 1).expect("a valid shape").with_isa(self.isa)
    }

    fn all() -> Vec<Self> {
        let isas = || Isa::available().into_iter().filter(|isa| *isa != Isa::SCALAR);
        let sizes = [750_000, 3_750_000].into_iter();
        sizes.flat_map(|bytes| isas().map(move |isa| Self { bytes, isa })).collect()
    }
}

#[divan::bench(args = LookupCase::all())]
fn lookup(bencher: Bencher<'_, '_>, case: LookupCase) {
    let predictor = case.predictor();
    let mut state = predictor.state();
    let features = features();
    bencher.bench_local(|| {
        predictor.set(&mut state, divan::black_box(&features), FeatureKind::Exact);
        state.scores()[0]
    });
}

/// Projection and tables alone.
#[divan::bench(args = LookupCase::all())]
fn lookup_prepare(bencher: Bencher<'_, '_>, case: LookupCase) {
    let predictor = case.predictor();
    let mut state = predictor.state();
    let features = features();
    bencher.bench_local(|| {
        predictor.prepare(&mut state, divan::black_box(&features), FeatureKind::Exact)
    });
}

/// A token with what it was corrected by.
#[divan::bench(args = LookupCase::all())]
fn lookup_observed(bencher: Bencher<'_, '_>, case: LookupCase) {
    let predictor = case.predictor();
    let mut state = predictor.state();
    let features = features();
    let (mask, ones) = (Mask::repeat(true, N_OUTPUTS), vec![1.0; N_OUTPUTS]);
    bencher.bench_local(|| {
        predictor.observe(&mut state, &mask, &ones, &ones);
        predictor.set(&mut state, divan::black_box(&features), FeatureKind::Exact);
        state.scores()[0]
    });
}

/// Rows of 16-bit weights times a vector.
fn multiply(rows: &[u16], x: &[f32], out: &mut [f32]) {
    for (row, out) in rows.chunks_exact(x.len()).zip(out) {
        let mut sums = [0.0f32; 32];
        for (row, x) in row.as_chunks::<32>().0.iter().zip(x.as_chunks::<32>().0) {
            for i in 0..32 {
                sums[i] += f32::from_bits(u32::from(row[i]) << 16) * x[i];
            }
        }
        // By halves, which vectors can do.
        for half in [16, 8, 4, 2, 1] {
            for i in 0..half {
                sums[i] += sums[i + half];
            }
        }
        *out = sums[0];
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_wide(rows: &[u16], x: &[f32], out: &mut [f32]) {
    multiply(rows, x, out);
}

fn multiply_best(rows: &[u16], x: &[f32], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[allow(unsafe_code)]
        // SAFETY: the processor has both features.
        return unsafe { multiply_wide(rows, x, out) };
    }
    multiply(rows, x, out);
}

#[derive(Clone, Copy)]
struct Rank(usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = (2 * self.0 * (N_INPUTS + N_OUTPUTS)) as f64 / 1e6;
        write!(f, "rank {} {mb:.2} MB", self.0)
    }
}

#[divan::bench(args = [Rank(128), Rank(512)])]
fn low_rank_16_bit(bencher: Bencher<'_, '_>, Rank(rank): Rank) {
    let inner = vec![0x3c00; rank * N_INPUTS];
    let outer = vec![0x3c00; N_OUTPUTS * rank];
    let x = features();
    let (mut hidden, mut out) = (vec![0.0; rank], vec![0.0; N_OUTPUTS]);
    bencher.bench_local(|| {
        multiply_best(&inner, divan::black_box(&x), &mut hidden);
        for hidden in &mut hidden {
            *hidden = hidden.max(0.0);
        }
        multiply_best(&outer, &hidden, &mut out);
        out[0]
    });
}

/// A change of a sixteenth of the features, there and back.
#[divan::bench]
fn update_few(bencher: Bencher<'_, '_>) {
    let shape = Shape { norm: Norm::None, ..shape(128, 8, Form::Bilinear, 1) };
    let predictor = Predictor::random(shape, 1).expect("a valid shape");
    let mut state = predictor.state();
    let mut delta = vec![0.0; N_INPUTS];
    delta[..N_INPUTS / 16].fill(0.5);
    bencher.bench_local(|| {
        delta.iter_mut().for_each(|delta| *delta = -*delta);
        predictor.update(&mut state, &delta);
    });
}

#[divan::bench]
fn select_half(bencher: Bencher<'_, '_>) {
    let shape = shape(128, 8, Form::Bilinear, 1);
    let predictor = Predictor::random(shape, 1).expect("a valid shape");
    let mut state = predictor.state();
    predictor.set(&mut state, &features());
    let (mut selector, mut mask) = (Selector::default(), Mask::new());
    bencher
        .bench_local(|| selector.top_k(divan::black_box(state.scores()), N_OUTPUTS / 2, &mut mask));
}

fn main() {
    divan::main();
}
