//! What a device claims, tried out: each variant of the MLP kernel against its twin, and each way
//! of control. Drivers miscompile, and persistent dispatches rest on more than any of them promises;
//! so what is used is what passed here, once for each driver.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::control::{Mode, Runner, RunnerOptions, Ticket, Work};
use crate::error::{Result, VkError};
use crate::format::{ColumnFormat, RowFormat};
use crate::kernels::mlp::{Activation, MlpShape, Variant};
use crate::twin::{self, Random};
use crate::{Device, DeviceKind, Slab, measure};

/// How long a stage of the test may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Changes when tests or kernels do: older results do not hold then.
const VERSION: u32 = 4;

/// What passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelfTest {
    /// Variants of the kernel that are their twin.
    pub variants: Vec<Variant>,
    /// Ways of control that work.
    pub modes: Vec<Mode>,
    /// Workgroups that a persistent dispatch can have, where that works.
    pub persistent_workgroups: Option<u32>,
    /// Median round trip of an empty persistent stage, in nanoseconds.
    pub round_trip_ns: Option<u64>,
    /// What did not pass, and why.
    pub failures: Vec<String>,
}

impl SelfTest {
    /// Runs all that the device's limits allow.
    ///
    /// # Errors
    ///
    /// [`VkError::DeviceLost`] and failures to get memory. What is merely wrong is in
    /// [`SelfTest::failures`].
    pub fn run(device: &Arc<Device>) -> Result<Self> {
        let mut result = Self::default();
        let cases = cases(device)?;
        for variant in Variant::ALL.into_iter().rev() {
            let possible = |case: &&Case| variant.is_possible(device.limits(), &case.shape, 1);
            let tried: Vec<&Case> = cases.iter().filter(possible).collect();
            let outcome = tried.iter().try_for_each(|case| case.check(variant));
            if tried.is_empty() {
                continue;
            }
            match result.note(format!("{variant:?}"), outcome)? {
                Some(()) => result.variants.push(variant),
                None => continue,
            }
        }
        for mode in [Mode::Persistent, Mode::Staged, Mode::Blocking] {
            let outcome = result.control(device, &cases, mode);
            if let Some((workgroups, nanos)) = result.note(mode.to_string(), outcome)? {
                result.modes.push(mode);
                if mode == Mode::Persistent {
                    result.persistent_workgroups = Some(workgroups);
                    result.round_trip_ns = Some(nanos);
                }
            }
        }
        Ok(result)
    }

    /// A way of control, with each variant that would be chosen where stages have kernels of their own for
    /// it; workgroups and round trip of the first.
    fn control(&self, device: &Device, cases: &[Case], mode: Mode) -> Result<(u32, u64)> {
        let first = self.best(device, &cases[0].shape)?;
        let result = cases[0].control(mode, first, &mut Random::new(4))?;
        let mut tried = vec![first];
        for case in cases.iter().filter(|_| mode == Mode::Persistent) {
            // Where no variant suits a case, there is nothing to try.
            let Ok(variant) = self.best(device, &case.shape) else { continue };
            if !tried.contains(&variant) {
                case.control(mode, variant, &mut Random::new(4))?;
                tried.push(variant);
            }
        }
        Ok(result)
    }

    /// Reads the results for this device and driver from `folder`, or runs the tests and writes
    /// them there.
    ///
    /// # Errors
    ///
    /// As [`SelfTest::run`]. A folder that cannot be read or written is no error: the tests run
    /// again next time.
    pub fn cached(device: &Arc<Device>, folder: &Path) -> Result<Self> {
        let file = folder.join(file_name(device));
        let kept = std::fs::read_to_string(&file).ok().and_then(|text| Self::parse(&text));
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let result = Self::run(device)?;
        let _ = std::fs::create_dir_all(folder);
        let _ = std::fs::write(&file, result.to_text());
        Ok(result)
    }

    /// The best way of control that works.
    pub fn mode(&self) -> Option<Mode> {
        self.modes.first().copied()
    }

    /// The ways of control that work, the best first. A driver that computes on the processor has no use
    /// for a dispatch that waits: it would take the time of the one that it waits for.
    pub fn modes_for(&self, kind: DeviceKind) -> Vec<Mode> {
        let (mut modes, waits) = (self.modes.clone(), |mode: &Mode| *mode == Mode::Persistent);
        if kind == DeviceKind::Cpu {
            modes.sort_by_key(waits);
        }
        modes
    }

    /// The best variant that passed and that can run a shape with one buffer of weights.
    ///
    /// # Errors
    ///
    /// [`VkError::Missing`] if none did.
    pub fn best(&self, device: &Device, shape: &MlpShape) -> Result<Variant> {
        let allowed = |v| self.variants.contains(&v);
        let what = "a kernel that passed the self-test";
        Variant::best(device.limits(), shape, 1, allowed)
            .ok_or_else(|| VkError::Missing { device: device.info().name.clone(), what })
    }

    /// Keeps a failure in mind; what ends everything stays an error.
    fn note<T>(&mut self, what: String, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error @ (VkError::DeviceLost { .. } | VkError::OutOfMemory { .. })) => Err(error),
            Err(error) => {
                self.failures.push(format!("{what}: {error}"));
                Ok(None)
            }
        }
    }

    fn to_text(&self) -> String {
        let mut text = format!("version {VERSION}\n");
        for variant in &self.variants {
            let _ = writeln!(text, "variant {variant:?}");
        }
        for mode in &self.modes {
            let _ = writeln!(text, "mode {mode}");
        }
        if let (Some(n), Some(nanos)) = (self.persistent_workgroups, self.round_trip_ns) {
            let _ = writeln!(text, "persistent {n} {nanos}");
        }
        for failure in &self.failures {
            let _ = writeln!(text, "failure {}", failure.replace('\n', " "));
        }
        text + "end\n"
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != format!("version {VERSION}") || lines.next_back()? != "end" {
            return None;
        }
        let mut result = Self::default();
        for line in lines {
            let (kind, value) = line.split_once(' ')?;
            match kind {
                "variant" => {
                    let named = |v: &Variant| format!("{v:?}") == value;
                    result.variants.push(Variant::ALL.into_iter().find(named)?);
                }
                "mode" => {
                    let all = [Mode::Persistent, Mode::Staged, Mode::Blocking];
                    result.modes.push(all.into_iter().find(|m| m.to_string() == value)?);
                }
                "persistent" => {
                    let (n, nanos) = value.split_once(' ')?;
                    result.persistent_workgroups = Some(n.parse().ok()?);
                    result.round_trip_ns = Some(nanos.parse().ok()?);
                }
                "failure" => result.failures.push(value.to_owned()),
                _ => return None,
            }
        }
        Some(result)
    }
}

/// One file for each device, driver and set of limits.
fn file_name(device: &Device) -> String {
    let uuid: String = device.info().uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    // FNV-1a of what the tests depend on besides.
    let limits = format!("{:?} {}", device.limits(), device.info().name);
    let hash = limits
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("vulkan-{uuid}-{:x}-{hash:016x}.txt", device.info().driver)
}

/// A shape and its random frames.
struct Case {
    shape: MlpShape,
    slab: Arc<Slab>,
    frames: Vec<Vec<u8>>,
}

const PER_FRAME: usize = 3;
const N_FRAMES: u32 = 5;

/// Formats whose unpacking differs most, at an odd and at a plain width.
fn cases(device: &Arc<Device>) -> Result<Vec<Case>> {
    let all = [
        (544, RowFormat::Q4_0, ColumnFormat::Q4),
        (512, RowFormat::Q4_K, ColumnFormat::Q6),
        (256, RowFormat::Q6_K, ColumnFormat::Q8),
        (288, RowFormat::F16, ColumnFormat::F16),
    ];
    all.into_iter().map(|(d, row, down)| Case::new(device, d, row, down)).collect()
}

/// A stage of whole frames.
fn frames(frames: std::ops::Range<u32>) -> Work {
    let per_frame = PER_FRAME as u32;
    Work::Frames { per_frame, frames: frames.map(|frame| (frame, per_frame)).collect() }
}

impl Case {
    fn new(device: &Arc<Device>, d: usize, row: RowFormat, down: ColumnFormat) -> Result<Self> {
        let bytes = PER_FRAME * row.row_bytes(d).expect("whole blocks");
        let activation = Activation::Silu;
        let (up_at, down_at) = (bytes + 2, 2 * bytes + 2);
        let shape = MlpShape { d_model: d, gate: row, up: row, down, up_at, down_at, activation };
        let len = shape.bytes_for(PER_FRAME).next_multiple_of(4);
        let slab = Slab::new(device, len as u32, N_FRAMES, None)?;
        let mut random = Random::new(d as u64);
        let frames: Vec<_> = (0..N_FRAMES).map(|_| random.frame(&shape, PER_FRAME, len)).collect();
        let case = Self { shape, slab, frames };
        (0..N_FRAMES).try_for_each(|frame| case.fill(frame))?;
        Ok(case)
    }

    fn fill(&self, frame: u32) -> Result<()> {
        let mut writer = self.slab.write(frame)?;
        writer.copy_from_slice(&self.frames[frame as usize]);
        writer.finish()
    }

    /// A variant against the twin, by blocking submissions.
    fn check(&self, variant: Variant) -> Result<()> {
        let options = RunnerOptions { variant: Some(variant), ..Default::default() };
        let mut runner = Runner::new(&self.slab, self.shape, &options)?;
        let x = Random::new(3).floats(self.shape.d_model);
        self.pass(&mut runner, &x, "mlp_stage")
    }

    /// One pass over all frames, in two stages.
    fn pass(&self, runner: &mut Runner, x: &[f32], kernel: &str) -> Result<()> {
        runner.begin(x, TIMEOUT)?;
        runner.queue(&frames(0..2), false, vec![])?;
        let ticket = runner.queue(&frames(2..N_FRAMES), true, vec![])?;
        self.compare(runner, ticket, x, &self.frames, kernel)
    }

    /// The output of a stage against the twin of the pass's frames.
    fn compare(
        &self,
        runner: &mut Runner,
        ticket: Ticket,
        x: &[f32],
        frames: &[Vec<u8>],
        kernel: &str,
    ) -> Result<()> {
        let mut out = vec![f32::NAN; x.len()];
        runner.output(ticket, &mut out, TIMEOUT)?;
        let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let neurons = frames.iter().flat_map(|f| (0..PER_FRAME).map(move |j| (&f[..], j)));
        let answer = twin::mlp(&self.shape, neurons, &exact);
        let variant = runner.plan().variant();
        // Of the magnitude of what is summed up: rounding in f32, eight times in halves, and an
        // input in bytes.
        let bound = match variant {
            Variant::One | Variant::Plain | Variant::Subgroups => 3e-6,
            Variant::Half => 5e-3,
            Variant::Dot => 6e-3,
        };
        let of = |((got, want), size): ((&f32, &f64), &f64)| {
            let error = (f64::from(*got) - want).abs() / (size + 1e-9);
            if error.is_nan() { f64::INFINITY } else { error }
        };
        let errors = out.iter().zip(&answer.out).zip(&answer.magnitude).map(of);
        let error = errors.fold(0.0, f64::max);
        if error > bound {
            let device = self.slab.device().info().name.clone();
            return Err(VkError::WrongAnswer {
                kernel: format!("{kernel} {variant:?}"),
                device,
                error,
                bound,
            });
        }
        Ok(())
    }

    /// A way of control: passes whose frames and inputs change; workgroups and median round trip.
    fn control(&self, mode: Mode, variant: Variant, random: &mut Random) -> Result<(u32, u64)> {
        let variant = if mode == Mode::Persistent && variant == Variant::One {
            Variant::Plain
        } else {
            variant
        };
        let options =
            RunnerOptions { mode: Some(mode), variant: Some(variant), ..Default::default() };
        let mut runner = Runner::new(&self.slab, self.shape, &options)?;
        let mut changed =
            Self { shape: self.shape, slab: Arc::clone(&self.slab), frames: self.frames.clone() };
        for i in 0..24u32 {
            // A frame's new bytes must be seen, whatever the device has cached of the old ones: in
            // the next pass, or in the same one, where all frames have been used and one is again.
            let (frame, within) = (i % N_FRAMES, i % 2 == 1);
            let x = random.floats(self.shape.d_model);
            let mut used = vec![];
            if within {
                runner.begin(&x, TIMEOUT)?;
                for frame in 0..N_FRAMES {
                    let ticket = runner.queue(&frames(frame..frame + 1), false, vec![])?;
                    runner.wait(ticket, TIMEOUT)?;
                }
                used.clone_from(&changed.frames);
            }
            let len = self.slab.frame_bytes() as usize;
            changed.frames[frame as usize] = random.frame(&self.shape, PER_FRAME, len);
            changed.fill(frame)?;
            if within {
                used.push(changed.frames[frame as usize].clone());
                let ticket = runner.queue(&frames(frame..frame + 1), true, vec![])?;
                self.compare(&mut runner, ticket, &x, &used, &mode.to_string())?;
            } else {
                changed.pass(&mut runner, &x, &mode.to_string())?;
            }
        }
        let (median, _) = measure::round_trip(&mut runner, 200)?;
        let workgroups = runner.plan().workgroups;
        drop(runner);
        (0..N_FRAMES).try_for_each(|frame| self.fill(frame))?;
        Ok((workgroups, median.as_nanos() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_they_were_written() {
        let result = SelfTest {
            variants: vec![Variant::Dot, Variant::Half, Variant::One],
            modes: vec![Mode::Persistent, Mode::Blocking],
            persistent_workgroups: Some(264),
            round_trip_ns: Some(2900),
            failures: vec!["staged: lost\nits way".into()],
        };
        let read = SelfTest::parse(&result.to_text()).unwrap();
        assert_eq!(read.failures, ["staged: lost its way"]);
        assert_eq!(SelfTest { failures: vec![], ..read }, SelfTest { failures: vec![], ..result });
    }

    #[test]
    fn what_is_cut_or_of_another_version_is_not_believed() {
        let text = SelfTest { modes: vec![Mode::Staged], ..Default::default() }.to_text();
        assert!(SelfTest::parse(&text).is_some());
        let unknown = format!("version {VERSION}\nmode fast\nend\n");
        for bad in [&text[..text.len() - 4], "", "version 0\nend\n", &unknown] {
            assert_eq!(SelfTest::parse(bad), None, "{bad}");
        }
    }
}
