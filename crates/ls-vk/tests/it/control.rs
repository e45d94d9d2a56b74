//! Queues of stages in all three modes.

use std::time::Duration;

use ls_vk::control::{Mode, Runner, RunnerOptions, Ticket, Work};
use ls_vk::format::{ColumnFormat, RowFormat};
use ls_vk::kernels::mlp::Tuning;
use ls_vk::twin::Random;
use ls_vk::{Limits, VkError};

use crate::mlp::{Layer, run, shape};
use crate::{Checked, TIMEOUT};

const MODES: [Mode; 3] = [Mode::Persistent, Mode::Staged, Mode::Blocking];
const D: usize = 96;

fn layer(checked: &Checked) -> Layer {
    let formats = (RowFormat::Q8_0, RowFormat::Q4_1, ColumnFormat::Q8);
    Layer::new(&checked.device, shape(D, formats, 3, 0), &[3; 12])
}

fn runner(layer: &Layer, mode: Mode) -> Runner {
    let options = RunnerOptions {
        mode: Some(mode),
        // Lavapipe does not promise to run two workgroups at once, and a persistent dispatch has to
        // have all of its own running.
        tuning: Tuning {
            workgroups: Some(if mode == Mode::Persistent { persistent_workgroups() } else { 3 }),
            threads: Some(64),
            ..Default::default()
        },
        ..Default::default()
    };
    Runner::new(&layer.slab, layer.shape, &options).unwrap()
}

fn persistent_workgroups() -> u32 {
    if std::env::var_os("LEANSTREAM_VK_DEVICE").is_some() { 64 } else { 1 }
}

fn some(frames: std::ops::Range<u32>) -> Work {
    Work::Frames { per_frame: 3, frames: frames.map(|frame| (frame, 3)).collect() }
}

fn joined(works: &[Work]) -> Work {
    let frames = works.iter().flat_map(|work| match work {
        Work::Frames { frames, .. } => frames.clone(),
        Work::Neurons(_) => unreachable!("only frames here"),
    });
    Work::Frames { per_frame: 3, frames: frames.collect() }
}

/// The variant that takes the input as bytes is the best here, so errors are those of bytes.
fn assert_right(layer: &Layer, work: &Work, x: &[f32], out: &[f32], what: &str) {
    let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let error = layer.error(work, &exact, out);
    assert!(error < 6e-3, "{what}: {error:e}");
}

#[test]
fn stages_of_a_pass_add_up() {
    let checked = Checked::open();
    let layer = layer(&checked);
    for mode in MODES {
        let mut runner = runner(&layer, mode);
        let mut random = Random::new(20);
        for pass in 0..6 {
            let x = random.floats(D);
            runner.begin(&x, TIMEOUT).unwrap();
            let stages = [some(0..4), some(4..5), some(5..5), some(6..12)];
            let tickets: Vec<Ticket> = stages
                .iter()
                .enumerate()
                .map(|(i, work)| {
                    // Partial sums of every other pass are handed out after each stage.
                    runner.queue(work, i == 3 || pass % 2 == 1, vec![]).unwrap()
                })
                .collect();
            for (i, ticket) in tickets.iter().enumerate() {
                let mut out = vec![f32::NAN; D];
                match runner.output(*ticket, &mut out, TIMEOUT) {
                    Ok(()) => {
                        let what = format!("{mode} pass {pass} stage {i}");
                        assert_right(&layer, &joined(&stages[..=i]), &x, &out, &what);
                    }
                    Err(error) => {
                        assert!(i < 3 && pass % 2 == 0, "{mode} {error}");
                        assert!(matches!(error, VkError::UnknownStage { .. }));
                    }
                }
            }
        }
        assert_eq!(runner.mode(), mode);
        assert_eq!(runner.launches() > 0, mode == Mode::Persistent);
    }
}

#[test]
fn passes_overlap_without_mixing() {
    let checked = Checked::open();
    let layer = layer(&checked);
    for mode in MODES {
        let mut runner = runner(&layer, mode);
        let mut random = Random::new(21);
        let passes: Vec<_> = (0..9)
            .map(|i| {
                let x = random.floats(D);
                runner.begin(&x, TIMEOUT).unwrap();
                let works = [some(i..i + 2), some(0..1)];
                runner.queue(&works[0], false, vec![]).unwrap();
                let ticket = runner.queue(&works[1], true, vec![]).unwrap();
                (x, joined(&works), ticket)
            })
            .collect();
        for (x, work, ticket) in passes {
            let mut out = vec![f32::NAN; D];
            runner.output(ticket, &mut out, TIMEOUT).unwrap();
            assert_right(&layer, &work, &x, &out, &format!("{mode}"));
        }
    }
}

#[test]
fn what_waits_can_be_cancelled_and_put_in_another_order() {
    let checked = Checked::open();
    let layer = layer(&checked);
    for mode in MODES {
        let mut runner = runner(&layer, mode);
        let x = Random::new(22).floats(D);
        runner.begin(&x, TIMEOUT).unwrap();
        let works = [some(0..3), some(3..6), some(6..9), some(9..12)];
        // Nothing is handed over before the first pump, so all of it can still change.
        let tickets: Vec<Ticket> =
            works.iter().map(|work| runner.queue(work, true, vec![]).unwrap()).collect();
        assert!(runner.cancel(tickets[1]) && !runner.cancel(tickets[1]));
        runner.reorder(&[tickets[3], tickets[0]]);
        let mut out = vec![f32::NAN; D];
        // The fourth came to the first's place, the third kept its own before the first.
        for (ticket, so_far) in
            [(tickets[3], vec![3]), (tickets[2], vec![3, 2]), (tickets[0], vec![3, 2, 0])]
        {
            runner.output(ticket, &mut out, TIMEOUT).unwrap();
            let done: Vec<Work> = so_far.iter().map(|i: &usize| works[*i].clone()).collect();
            assert_right(&layer, &joined(&done), &x, &out, &format!("{mode} {so_far:?}"));
            assert!(!runner.cancel(ticket), "done stages stay done");
        }
        let taken = runner.output(tickets[0], &mut out, TIMEOUT);
        assert!(matches!(taken, Err(VkError::UnknownStage { .. })));
        assert!(runner.wait(Ticket(u64::MAX), TIMEOUT).is_err());
    }
}

#[test]
fn frames_are_kept_until_their_stage_is_done() {
    let checked = Checked::open();
    let layer = layer(&checked);
    for mode in MODES {
        let mut runner = runner(&layer, mode);
        let x = Random::new(23).floats(D);
        runner.begin(&x, TIMEOUT).unwrap();
        let lease = |frame| layer.slab.lease(frame).unwrap();
        let first = runner.queue(&some(0..1), false, vec![lease(0)]).unwrap();
        let second = runner.queue(&some(1..2), false, vec![lease(1)]).unwrap();
        assert!(layer.slab.write(0).is_err() && layer.slab.write(1).is_err());
        assert!(runner.cancel(second));
        assert!(layer.slab.lease(1).is_ok());
        runner.wait(first, TIMEOUT).unwrap();
        for frame in [0, 1] {
            // As it was, for the next mode.
            let mut writer = layer.slab.write(frame).unwrap();
            writer.copy_from_slice(&layer.frames[frame as usize].0);
            writer.finish().unwrap();
        }
    }
}

#[test]
fn frames_that_change_between_stages_are_read_anew() {
    let checked = Checked::open();
    let mut layer = layer(&checked);
    for mode in MODES {
        let mut runner = runner(&layer, mode);
        let mut random = Random::new(24);
        for _ in 0..5 {
            let frame = random.frame(&layer.shape, 3, layer.slab.frame_bytes() as usize);
            let mut writer = layer.slab.write(2).unwrap();
            writer.copy_from_slice(&frame);
            writer.finish().unwrap();
            layer.frames[2].0 = frame;
            let x = random.floats(D);
            let out = run(&mut runner, &x, &some(2..3));
            assert_right(&layer, &some(2..3), &x, &out, &format!("{mode}"));
        }
    }
}

#[test]
fn a_parked_dispatch_is_started_anew() {
    let checked = Checked::open();
    let layer = layer(&checked);
    let mut runner = runner(&layer, Mode::Persistent);
    let mut random = Random::new(25);
    for _ in 0..4 {
        let x = random.floats(D);
        let out = run(&mut runner, &x, &layer.all());
        assert_right(&layer, &layer.all(), &x, &out, "after parking");
        // Long enough that it parks, and that its life is over.
        std::thread::sleep(Duration::from_millis(230));
    }
    assert!(runner.launches() >= 4, "{} launches", runner.launches());
}

#[test]
fn workgroups_that_lose_each_other_say_so_and_never_add_wrongly() {
    let checked = Checked::open();
    let layer = layer(&checked);
    let mut random = Random::new(27);
    for _ in 0..8 {
        let options = RunnerOptions {
            mode: Some(Mode::Persistent),
            tuning: Tuning { workgroups: Some(2), threads: Some(64), ..Default::default() },
            ..Default::default()
        };
        let mut runner = Runner::new(&layer.slab, layer.shape, &options).unwrap();
        let x = random.floats(D);
        runner.begin(&x, TIMEOUT).unwrap();
        let ticket = runner.queue(&layer.all(), true, vec![]).unwrap();
        let mut out = vec![f32::NAN; D];
        match runner.output(ticket, &mut out, TIMEOUT) {
            Ok(()) => assert_right(&layer, &layer.all(), &x, &out, "two workgroups"),
            Err(error) => assert!(matches!(error, VkError::Stalled { .. }), "{error}"),
        }
    }
}

#[test]
fn a_lost_device_fails_every_mode_and_ends_cleanly() {
    for mode in MODES {
        let checked = Checked::open();
        let layer = layer(&checked);
        let mut runner = runner(&layer, mode);
        let x = Random::new(26).floats(D);
        run(&mut runner, &x, &layer.all());
        checked.device.give_up();
        // In flight or not: from now on everything fails, at once and alike.
        let error = runner.begin(&x, TIMEOUT).err();
        let error = error.expect("a lost device takes no work");
        assert!(matches!(error, VkError::DeviceLost { .. }), "{mode}: {error}");
        assert_eq!(runner.pump(), Err(error));
    }
}

#[test]
fn what_a_device_lacks_is_named() {
    let checked = Checked::narrowed(|_| Limits::least());
    let layer = layer(&checked);
    for mode in [Mode::Persistent, Mode::Staged] {
        let options = RunnerOptions { mode: Some(mode), ..Default::default() };
        let error = Runner::new(&layer.slab, layer.shape, &options).unwrap_err();
        assert!(matches!(error, VkError::Missing { .. }), "{error}");
    }
}
