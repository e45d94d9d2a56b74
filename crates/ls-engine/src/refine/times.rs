//! What the parts of tokens took, as the thread that decodes saw it.

use std::time::Duration;

/// How often something was done, and nanoseconds of it in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// How often.
    pub n: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Took {
    pub(super) fn add(&mut self, time: Duration) {
        self.n += 1;
        self.ns += time.as_nanos() as u64;
    }

    fn since(self, earlier: Self) -> Self {
        Self { n: self.n - earlier.n, ns: self.ns - earlier.ns }
    }

    /// Nanoseconds of one.
    pub fn mean_ns(&self) -> f64 {
        self.ns as f64 / self.n.max(1) as f64
    }
}

/// What the parts of tokens took, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Tokens, from the first layer's attention to the last layer's MLP.
    pub pass: Took,
    /// What lies between two MLPs: attention.
    pub between: Took,
    /// Scoring.
    pub rank: Took,
    /// Choosing by scores, and marking what is computed.
    pub choose: Took,
    /// Waits for reads.
    pub wait: Took,
    /// Chunks that were taken in.
    pub landed: u64,
    /// Nanoseconds of taking in, asking for and evicting chunks.
    pub host_ns: u64,
    /// Sums over stages: of 1, bytes, nanoseconds, their products with bytes. Bytes are those of all neurons that
    /// were chosen, in columns that were left out as well.
    stages: [f64; 5],
}

impl Times {
    pub(super) fn land(&mut self, time: Duration, chunks: usize) {
        self.landed += chunks as u64;
        self.host_ns += time.as_nanos() as u64;
    }

    pub(super) fn stage(&mut self, time: Duration, bytes: usize) {
        let (x, y) = (bytes as f64, time.as_nanos() as f64);
        let sums = self.stages.iter_mut().zip([1.0, x, y, x * x, x * y]);
        sums.for_each(|(sum, x)| *sum += x);
    }

    /// Since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            pass: self.pass.since(earlier.pass),
            between: self.between.since(earlier.between),
            rank: self.rank.since(earlier.rank),
            choose: self.choose.since(earlier.choose),
            wait: self.wait.since(earlier.wait),
            landed: self.landed - earlier.landed,
            host_ns: self.host_ns - earlier.host_ns,
            stages: std::array::from_fn(|i| self.stages[i] - earlier.stages[i]),
        }
    }

    /// Stages that were computed.
    pub fn n_stages(&self) -> u64 {
        self.stages[0] as u64
    }

    /// Nanoseconds of a stage beyond its bytes, and of each byte: the line that is nearest to all stages.
    pub fn stage_line(&self) -> (f64, f64) {
        let [n, x, y, xx, xy] = self.stages;
        let off = n * xx - x * x;
        let slope = if off > 0.0 { ((n * xy - x * y) / off).max(0.0) } else { 0.0 };
        ((y - slope * x) / n.max(1.0), slope)
    }

    /// Nanoseconds of a chunk that is read, for the thread that decodes.
    pub fn chunk_ns(&self) -> f64 {
        self.host_ns as f64 / self.landed.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_on_a_line_give_the_line() {
        let mut times = Times::default();
        times.stage(Duration::from_nanos(99_999), 7);
        let before = times;
        for bytes in [1000, 4000, 9000] {
            times.stage(Duration::from_nanos(500 + bytes / 4), bytes as usize);
        }
        let (fixed, byte) = times.since(&before).stage_line();
        assert!((fixed - 500.0).abs() < 1.0 && (byte - 0.25).abs() < 1e-3, "{fixed} {byte}");
        assert_eq!(times.since(&before).n_stages(), 3);
        assert_eq!(Times::default().stage_line(), (0.0, 0.0));
        assert_eq!(Times::default().chunk_ns(), 0.0);
    }
}
