//! Perplexity of a model on a text, as llama-perplexity computes it.
//!
//! The text is tokenised once and cut into windows of `n_ctx` tokens that do not overlap; what does
//! not fill a window is left out. Each window is computed from an empty state. If the model starts
//! texts with a BOS token, it takes the place of the window's first token. Only the second half
//! counts: the logits after token i, from i = n_ctx/2 on, against token i + 1, which makes
//! n_ctx − n_ctx/2 − 1 predictions per window, each with some context.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::{Engine, EngineError, State};

/// How to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerplexityOptions {
    /// Tokens in a window.
    pub n_ctx: usize,
    /// At most this many windows; `None`: as many as the text has.
    pub max_chunks: Option<usize>,
    /// Takes the place of each window's first token; `None` when the model uses no BOS.
    pub bos: Option<u32>,
}

/// The estimate after some predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// exp(mean negative log-likelihood).
    pub ppl: f64,
    /// Standard error of `ppl`.
    pub stderr: f64,
    /// Predictions that count.
    pub tokens: usize,
    /// Windows.
    pub chunks: usize,
}

/// Why perplexity could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerplexityError {
    /// A window has no second half to predict, or does not fit the state.
    #[error(
        "a window of {n_ctx} tokens cannot be measured; it needs 4, and the context has {limit}"
    )]
    Window {
        /// The window asked for.
        n_ctx: usize,
        /// The longest that fits the state.
        limit: usize,
    },
    /// The text is shorter than two windows.
    #[error(
        "the text has {tokens} tokens, but two windows of {n_ctx} are needed; \
         use a longer text or a smaller window"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        n_ctx: usize,
    },
    /// A logit is not a number, or all are −∞.
    #[error("the logits after token {position} of window {chunk} are not finite")]
    NotFinite {
        /// Window.
        chunk: usize,
        /// Position in the window.
        position: usize,
    },
    /// The text has a token that the model does not.
    #[error("token {token} of the text is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Rows of the logits.
        vocab_size: usize,
    },
    /// The model could not be computed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What a measurement needs of a model: the logits along a window.
trait Windows {
    fn capacity(&self) -> usize;
    /// Computes `window` from an empty state; hands `each` the logits after token i, i ≥ `from`.
    fn compute(
        &mut self,
        window: &[u32],
        from: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError>;
}

struct EngineWindows<'a> {
    engine: &'a Engine,
    state: &'a mut State,
}

impl Windows for EngineWindows<'_> {
    fn capacity(&self) -> usize {
        self.state.capacity()
    }

    fn compute(
        &mut self,
        window: &[u32],
        from: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        self.state.truncate(0);
        self.engine.prefill_each(self.state, window, from, each)
    }
}

/// Windows that a text of `n_tokens` will be measured in.
pub fn n_chunks(n_tokens: usize, options: &PerplexityOptions) -> usize {
    let all = n_tokens / options.n_ctx.max(1);
    options.max_chunks.map_or(all, |max| all.min(max))
}

/// Measures the perplexity of `tokens`, the whole text with its BOS if the model has one.
///
/// After each window `progress` gets the estimate so far; a `Break` ends the measurement there.
pub fn perplexity(
    engine: &Engine,
    state: &mut State,
    tokens: &[u32],
    options: &PerplexityOptions,
    progress: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, PerplexityError> {
    measure(&mut EngineWindows { engine, state }, tokens, options, progress)
}

fn measure(
    model: &mut dyn Windows,
    tokens: &[u32],
    options: &PerplexityOptions,
    progress: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, PerplexityError> {
    check(tokens.len(), options, model.capacity())?;
    let mut sum = NllSum::default();
    let mut estimate = sum.estimate(0);
    for (chunk, window) in windows(tokens, options).enumerate() {
        add_window(model, &window, chunk, &mut sum)?;
        estimate = sum.estimate(chunk + 1);
        if progress(&estimate).is_break() {
            break;
        }
    }
    Ok(estimate)
}

/// Whether a text of `n_tokens` can be measured with a state of that capacity.
pub(crate) fn check(
    n_tokens: usize,
    options: &PerplexityOptions,
    capacity: usize,
) -> Result<(), PerplexityError> {
    let n_ctx = options.n_ctx;
    if n_ctx < 4 || n_ctx > capacity {
        return Err(PerplexityError::Window { n_ctx, limit: capacity });
    }
    if n_tokens / 2 < n_ctx {
        return Err(PerplexityError::TextTooShort { tokens: n_tokens, n_ctx });
    }
    Ok(())
}

/// The windows of a text that was checked.
pub(crate) fn windows(
    tokens: &[u32],
    options: &PerplexityOptions,
) -> impl Iterator<Item = Vec<u32>> {
    let windows = tokens.chunks_exact(options.n_ctx).take(n_chunks(tokens.len(), options));
    windows.map(|text| {
        let mut window = text.to_vec();
        if let Some(bos) = options.bos {
            window[0] = bos;
        }
        window
    })
}

fn add_window(
    model: &mut dyn Windows,
    window: &[u32],
    chunk: usize,
    sum: &mut NllSum,
) -> Result<(), PerplexityError> {
    let mut failure = None;
    model.compute(window, window.len() / 2, &mut |position, logits| {
        // Nothing follows the last token of the window.
        let Some(&next) = window.get(position + 1) else { return };
        match negative_log_likelihood(logits, next) {
            Ok(nll) => sum.add(nll),
            Err(fault) => {
                failure.get_or_insert(fault.at(chunk, position, next, logits.len()));
            }
        }
    })?;
    failure.map_or(Ok(()), Err)
}

/// What is wrong with a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    NotFinite,
    UnknownToken,
}

impl Fault {
    /// Of the prediction of `token` after `position` in window `chunk`.
    pub fn at(
        self,
        chunk: usize,
        position: usize,
        token: u32,
        vocab_size: usize,
    ) -> PerplexityError {
        match self {
            Self::NotFinite => PerplexityError::NotFinite { chunk, position },
            Self::UnknownToken => PerplexityError::UnknownToken { token, vocab_size },
        }
    }
}

/// −ln softmax(logits)[token], in double precision.
pub(crate) fn negative_log_likelihood(logits: &[f32], token: u32) -> Result<f64, Fault> {
    let &logit = logits.get(token as usize).ok_or(Fault::UnknownToken)?;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = f64::from(largest);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
    let nll = sum.ln() - (f64::from(logit) - largest);
    if nll.is_finite() { Ok(nll) } else { Err(Fault::NotFinite) }
}

/// Sums over predictions.
#[derive(Debug, Default)]
pub(crate) struct NllSum {
    n: usize,
    nll: f64,
    nll_squared: f64,
}

impl NllSum {
    pub fn add(&mut self, nll: f64) {
        self.n += 1;
        self.nll += nll;
        self.nll_squared += nll * nll;
    }

    /// The error of the mean is sqrt((E[x²] − E[x]²) / (n − 1)); that of its exponential is, to
    /// first order, the same times the perplexity.
    pub fn estimate(&self, chunks: usize) -> Perplexity {
        let n = self.n as f64;
        let mean = self.nll / n;
        let variance = (self.nll_squared / n - mean * mean).max(0.0);
        let ppl = mean.exp();
        Perplexity { ppl, stderr: ppl * (variance / (n - 1.0)).sqrt(), tokens: self.n, chunks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the token after t, which is t + 1, the probability that weight 3 against 1 for each
    /// other token makes; records its windows.
    struct Successor {
        vocab_size: usize,
        capacity: usize,
        windows: Vec<Vec<u32>>,
        bad_at: Option<usize>,
    }

    impl Successor {
        fn new(vocab_size: usize) -> Self {
            Self { vocab_size, capacity: 64, windows: Vec::new(), bad_at: None }
        }
    }

    impl Windows for Successor {
        fn capacity(&self) -> usize {
            self.capacity
        }

        fn compute(
            &mut self,
            window: &[u32],
            from: usize,
            each: &mut dyn FnMut(usize, &[f32]),
        ) -> Result<(), EngineError> {
            self.windows.push(window.to_vec());
            for (i, &token) in window.iter().enumerate().skip(from) {
                let mut logits = vec![0f32; self.vocab_size];
                logits[(token as usize + 1) % self.vocab_size] = 3f32.ln();
                if self.bad_at == Some(i) {
                    logits[0] = f32::NAN;
                }
                each(i, &logits);
            }
            Ok(())
        }
    }

    fn options(n_ctx: usize) -> PerplexityOptions {
        PerplexityOptions { n_ctx, max_chunks: None, bos: None }
    }

    fn go_on(_: &Perplexity) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn a_predictable_text_has_the_perplexity_of_its_predictions() {
        let mut model = Successor::new(10);
        let text: Vec<u32> = (0..25).map(|i| i % 10).collect();
        let got = measure(&mut model, &text, &options(8), &mut go_on).unwrap();
        // Weight 3 of 12: p = 1/4 each time. Tokens 5, 6, 7 of each of three windows count.
        assert!((got.ppl - 4.0).abs() < 1e-6, "{got:?}");
        assert!(got.stderr.abs() < 1e-4);
        assert_eq!((got.tokens, got.chunks), (9, 3));
        assert_eq!(model.windows, [&text[..8], &text[8..16], &text[16..24]]);
    }

    #[test]
    fn bos_replaces_the_first_token_of_each_window_only() {
        let mut model = Successor::new(10);
        let text: Vec<u32> = (0..16).map(|i| i % 8 + 1).collect();
        let options = PerplexityOptions { bos: Some(0), ..options(8) };
        measure(&mut model, &text, &options, &mut go_on).unwrap();
        assert_eq!(model.windows, vec![vec![0, 2, 3, 4, 5, 6, 7, 8]; 2]);
    }

    #[test]
    fn mean_and_error_are_those_of_the_sample() {
        let mut sum = NllSum::default();
        for nll in [1.0, 2.0, 3.0, 6.0] {
            sum.add(nll);
        }
        let got = sum.estimate(1);
        // Mean 3, mean square 12.5, variance 3.5, error sqrt(3.5 / 3).
        assert!((got.ppl - 3f64.exp()).abs() < 1e-9);
        assert!((got.stderr - 3f64.exp() * (3.5f64 / 3.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn running_estimates_can_be_cut_short() {
        let mut model = Successor::new(10);
        let text: Vec<u32> = (0..40).map(|i| i % 10).collect();
        let mut chunks = Vec::new();
        let mut stop_at_two = |estimate: &Perplexity| {
            chunks.push(estimate.chunks);
            if estimate.chunks == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let got = measure(&mut model, &text, &options(8), &mut stop_at_two).unwrap();
        assert_eq!((got.chunks, chunks), (2, vec![1, 2]));
        let limited = PerplexityOptions { max_chunks: Some(3), ..options(8) };
        assert_eq!(measure(&mut model, &text, &limited, &mut go_on).unwrap().chunks, 3);
    }

    #[test]
    fn log_softmax_survives_large_logits() {
        let nll = negative_log_likelihood(&[1e30, 1e30, -1e30], 0).unwrap();
        assert!((nll - 2f64.ln()).abs() < 1e-9, "{nll}");
        assert_eq!(negative_log_likelihood(&[0.0, f32::NAN], 0), Err(Fault::NotFinite));
        assert_eq!(negative_log_likelihood(&[f32::NEG_INFINITY; 2], 0), Err(Fault::NotFinite));
        assert_eq!(negative_log_likelihood(&[0.0], 1), Err(Fault::UnknownToken));
    }

    #[test]
    fn faults_say_where() {
        let text: Vec<u32> = (0..16).map(|i| i % 8).collect();
        let mut model = Successor { bad_at: Some(6), ..Successor::new(10) };
        let error = measure(&mut model, &text, &options(8), &mut go_on).unwrap_err();
        assert!(matches!(error, PerplexityError::NotFinite { chunk: 0, position: 6 }), "{error}");
        let mut model = Successor::new(10);
        let error = measure(&mut model, &text[..15], &options(8), &mut go_on).unwrap_err();
        assert!(matches!(error, PerplexityError::TextTooShort { tokens: 15, n_ctx: 8 }));
        for n_ctx in [0, 3, 65] {
            let error = measure(&mut model, &text, &options(n_ctx), &mut go_on).unwrap_err();
            assert!(matches!(error, PerplexityError::Window { limit: 64, .. }), "{error}");
        }
        let mut model = Successor::new(7);
        let error = measure(&mut model, &text, &options(8), &mut go_on).unwrap_err();
        assert!(matches!(error, PerplexityError::UnknownToken { token: 7, .. }), "{error}");
    }
}
