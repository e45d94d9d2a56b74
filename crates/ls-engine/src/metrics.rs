//! How long a run took and how much memory it held.

use std::time::{Duration, Instant};

use crate::system;

/// Times and memory of one generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Tokens of the prompt that were computed (not those already in the state).
    pub prompt_tokens: usize,
    /// From the start to the end of the prompt's computation.
    pub prompt_time: Duration,
    /// From the start until the first token was chosen; `None` when none was.
    pub first_token_time: Option<Duration>,
    /// Steps that computed one token each, and the time of all of them with sampling and output.
    pub decode_steps: usize,
    /// See `decode_steps`.
    pub decode_time: Duration,
    /// The most anonymous memory seen, in bytes; `None` where the system does not tell.
    pub peak_rss_anon: Option<u64>,
}

impl Metrics {
    /// Prompt tokens per second; `None` when there were none.
    pub fn prompt_tok_per_s(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prompt_time)
    }

    /// Generated tokens per second, the first token left out: it is the prompt's work.
    pub fn tok_per_s(&self) -> Option<f64> {
        rate(self.decode_steps, self.decode_time)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

/// The most anonymous memory of this process that was seen.
///
/// The kernel keeps a peak of resident memory as a whole, but mapped files are part of that. So the
/// present value is read at points where memory has just grown.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakRss {
    peak: Option<u64>,
}

impl PeakRss {
    /// A peak that starts with the present value.
    pub fn start() -> Self {
        let mut peak = Self::default();
        peak.sample();
        peak
    }

    /// Reads the present value. Allocates nothing; takes some tens of microseconds.
    pub fn sample(&mut self) {
        self.peak = self.peak.max(system::rss_anon());
    }

    /// The peak in bytes.
    pub fn bytes(&self) -> Option<u64> {
        self.peak
    }
}

/// Collects [`Metrics`] while a generation runs.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: Instant,
    prompt_end: Instant,
    peak: PeakRss,
    metrics: Metrics,
}

/// Steps between two readings of memory; in a steady decode loop it hardly moves.
const STEPS_PER_SAMPLE: usize = 32;

impl Recorder {
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self { start: now, prompt_end: now, peak: PeakRss::start(), metrics: Metrics::default() }
    }

    /// The prompt's tokens are computed.
    pub(crate) fn prompt_done(&mut self, n_tokens: usize) {
        self.prompt_end = Instant::now();
        self.metrics.prompt_tokens = n_tokens;
        self.metrics.prompt_time = self.prompt_end - self.start;
        self.peak.sample();
    }

    /// A token was chosen.
    pub(crate) fn chosen(&mut self) {
        self.metrics.first_token_time.get_or_insert_with(|| self.start.elapsed());
    }

    /// One token was computed and the next chosen.
    pub(crate) fn step(&mut self) {
        self.metrics.decode_steps += 1;
        if self.metrics.decode_steps.is_multiple_of(STEPS_PER_SAMPLE) {
            self.peak.sample();
        }
    }

    pub(crate) fn finish(mut self) -> Metrics {
        self.metrics.decode_time = self.prompt_end.elapsed();
        self.peak.sample();
        self.metrics.peak_rss_anon = self.peak.bytes();
        self.metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_absent_without_work() {
        let metrics = Metrics::default();
        assert_eq!((metrics.prompt_tok_per_s(), metrics.tok_per_s()), (None, None));
    }

    #[test]
    fn rates_divide_work_by_its_own_time() {
        let metrics = Metrics {
            prompt_tokens: 100,
            prompt_time: Duration::from_millis(500),
            decode_steps: 30,
            decode_time: Duration::from_secs(2),
            ..Metrics::default()
        };
        assert_eq!(metrics.prompt_tok_per_s(), Some(200.0));
        assert_eq!(metrics.tok_per_s(), Some(15.0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_outlives_the_memory() {
        let mut peak = PeakRss::start();
        let before = peak.bytes().unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        peak.sample();
        drop(block);
        peak.sample();
        assert!(peak.bytes().unwrap() >= before + (60 << 20));
    }
}
