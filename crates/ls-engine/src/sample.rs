//! Choosing the next token from logits.
//!
//! The steps run in the order that the field uses: repetition penalty, top-k, top-p, min-p,
//! temperature, draw. Top-p and min-p therefore judge the distribution at temperature 1, and a high
//! temperature spreads probability over the survivors only.

use std::collections::VecDeque;

use crate::rng::Pcg32;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// Divides the logits before the draw; 0 takes the likeliest token and draws nothing.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest likeliest tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this fraction of the likeliest one; 0 drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 changes nothing.
    pub repeat_penalty: f32,
    /// How many of the latest tokens count as recent.
    pub repeat_last_n: usize,
    /// Start of the random numbers.
    pub seed: u64,
}

impl Default for SampleParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: 0,
        }
    }
}

impl SampleParams {
    /// The likeliest token every time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    fn validate(&self) -> Result<(), SampleError> {
        let check = |name, value: f32, ok: bool, allowed| {
            if ok { Ok(()) } else { Err(SampleError::OutOfRange { name, value, allowed }) }
        };
        let t = self.temperature;
        check("temperature", t, t.is_finite() && t >= 0.0, "a finite number, 0 or more")?;
        check("top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, at most 1")?;
        check("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        let r = self.repeat_penalty;
        check("repeat-penalty", r, r.is_finite() && r > 0.0, "a finite number above 0")
    }
}

/// Why no token could be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A parameter makes no sense.
    #[error("{name} is {value}, but must be {allowed}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What it may be.
        allowed: &'static str,
    },
    /// A logit is NaN or +∞: the weights are damaged or the computation overflowed.
    #[error(
        "the logit of token {token} is {value}; the model file may be damaged, try another copy"
    )]
    NotFinite {
        /// Index of the logit.
        token: usize,
        /// NaN or +∞.
        value: f32,
    },
    /// There are no logits, or all are −∞.
    #[error("none of the {n_logits} tokens has a probability above zero")]
    NoCandidate {
        /// Length of the logits.
        n_logits: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
}

/// Likeliest first, equal ones by id. Total, since no logit is NaN here.
fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Chooses tokens; remembers the recent ones and the state of its random numbers.
///
/// ```
/// # use ls_engine::{SampleParams, Sampler};
/// let mut sampler = Sampler::new(SampleParams::greedy())?;
/// assert_eq!(sampler.sample(&[0.1, 2.0, -1.0])?, 1);
/// # Ok::<(), ls_engine::SampleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SampleParams,
    rng: Pcg32,
    recent: VecDeque<u32>,
    unique: Vec<u32>,
    penalised: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler with `params`, which are checked here.
    pub fn new(params: SampleParams) -> Result<Self, SampleError> {
        params.validate()?;
        // All that it can hold, unless that is absurd: sampling is to allocate nothing later.
        let recent = params.repeat_last_n.min(1 << 16);
        Ok(Self {
            rng: Pcg32::new(params.seed),
            recent: VecDeque::with_capacity(recent),
            unique: Vec::with_capacity(recent),
            penalised: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
            params,
        })
    }

    /// The parameters.
    pub fn params(&self) -> &SampleParams {
        &self.params
    }

    /// Counts `token` among the recent ones, as for each token of a prompt.
    pub fn accept(&mut self, token: u32) {
        if self.params.repeat_penalty == 1.0 || self.params.repeat_last_n == 0 {
            return;
        }
        if self.recent.len() == self.params.repeat_last_n {
            self.recent.pop_front();
        }
        self.recent.push_back(token);
    }

    /// Chooses the token after which `logits`, `[vocab_size]`, were computed, and accepts it.
    ///
    /// Of equal logits the lowest id ranks first. After the first call nothing is allocated.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        let mut penalised = std::mem::take(&mut self.penalised);
        let logits = self.penalise(logits, &mut penalised);
        let chosen = self.choose(logits);
        self.penalised = penalised;
        let token = chosen?;
        self.accept(token);
        Ok(token)
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        let best = argmax(logits)?;
        if self.params.temperature == 0.0 || self.params.top_k == 1 {
            return Ok(best);
        }
        self.collect(logits);
        self.cut_top_p();
        self.cut_min_p();
        Ok(self.draw())
    }

    /// Applies the repetition penalty in `buffer`, or leaves `logits` where there is none.
    fn penalise<'a>(&mut self, logits: &'a [f32], buffer: &'a mut Vec<f32>) -> &'a [f32] {
        if self.recent.is_empty() {
            return logits;
        }
        // A token that occurs twice is penalised once.
        self.unique.clear();
        self.unique.extend(&self.recent);
        self.unique.sort_unstable();
        self.unique.dedup();
        buffer.clear();
        buffer.extend_from_slice(logits);
        for &token in &self.unique {
            if let Some(logit) = buffer.get_mut(token as usize) {
                let factor = self.params.repeat_penalty;
                *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
            }
        }
        buffer
    }

    /// Fills the candidates with the top-k logits, likeliest first.
    fn collect(&mut self, logits: &[f32]) {
        let k = match self.params.top_k {
            0 => logits.len(),
            k => k.min(logits.len()),
        };
        // A buffer of twice k is cut back to k whenever it is full; what does not beat the k-th so
        // far is passed over, so nearly all of a large vocabulary costs one comparison each.
        let full = k.saturating_mul(2).min(logits.len());
        let mut threshold = f32::NEG_INFINITY;
        self.candidates.clear();
        self.candidates.reserve(full);
        self.weights.reserve(k);
        for (token, &logit) in logits.iter().enumerate() {
            if logit > threshold {
                self.candidates.push(Candidate { token: token as u32, logit });
                if self.candidates.len() == full && full > k {
                    self.candidates.select_nth_unstable_by(k - 1, by_rank);
                    self.candidates.truncate(k);
                    threshold = self.candidates[k - 1].logit;
                }
            }
        }
        self.candidates.sort_unstable_by(by_rank);
        self.candidates.truncate(k);
    }

    /// Computes the candidates' weights exp((logit − best) / temperature) and returns their sum.
    fn weigh(&mut self, temperature: f64) -> f64 {
        let best = f64::from(self.candidates[0].logit);
        self.weights.clear();
        // libm's exp is the same code on every platform; the system's may differ in the last bit.
        self.weights.extend(
            self.candidates.iter().map(|c| libm::exp((f64::from(c.logit) - best) / temperature)),
        );
        self.weights.iter().sum()
    }

    fn cut_top_p(&mut self) {
        if self.params.top_p >= 1.0 {
            return;
        }
        let goal = self.weigh(1.0) * f64::from(self.params.top_p);
        let mut sum = 0.0;
        let reached = self.weights.iter().position(|w| {
            sum += w;
            sum >= goal
        });
        if let Some(last) = reached {
            self.candidates.truncate(last + 1);
        }
    }

    fn cut_min_p(&mut self) {
        if self.params.min_p <= 0.0 {
            return;
        }
        let least = f64::from(self.candidates[0].logit) + libm::log(f64::from(self.params.min_p));
        let n = self.candidates.partition_point(|c| f64::from(c.logit) >= least);
        self.candidates.truncate(n.max(1));
    }

    fn draw(&mut self) -> u32 {
        let mut rest = self.weigh(f64::from(self.params.temperature)) * self.rng.next_f64();
        for (candidate, weight) in self.candidates.iter().zip(&self.weights) {
            rest -= weight;
            if rest < 0.0 {
                return candidate.token;
            }
        }
        // Rounding can leave a rest of zero behind the last weight: the likeliest token then.
        self.candidates[0].token
    }
}

/// The lowest index of the largest logit. Errors on NaN, +∞, and when nothing is above −∞.
pub fn argmax(logits: &[f32]) -> Result<u32, SampleError> {
    let mut best = None;
    let mut best_logit = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SampleError::NotFinite { token, value: logit });
        }
        if logit > best_logit {
            best_logit = logit;
            best = Some(token as u32);
        }
    }
    best.ok_or(SampleError::NoCandidate { n_logits: logits.len() })
}

#[cfg(test)]
mod tests;
