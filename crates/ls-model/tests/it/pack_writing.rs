//! A pack appears whole or not at all.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ls_model::ModelFile;
use ls_model::pack::{ColumnType, Columns, PackError, PackOptions, Progress, write};

use crate::packing::{columns, fixture, options, pack, shuffled};

const Q8: ColumnType = ColumnType::Q8;

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn model() -> ModelFile {
    ModelFile::open(fixture("llama.gguf")).unwrap()
}

fn try_pack(
    out: &Path,
    options: &PackOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), PackError<Infallible>> {
    let model = model();
    let (d_ff, n_bytes) = (model.config().d_ff, Q8.column_bytes(model.config().d_model).unwrap());
    let mut make = |layer| Ok(columns(layer, d_ff, n_bytes));
    write(&model, out, options, &mut make, progress).map(drop)
}

fn go(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn progress_grows_to_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model.lspack");
    let mut reports = Vec::new();
    let mut note = |progress: Progress| {
        reports.push(progress);
        ControlFlow::Continue(())
    };
    try_pack(&out, &options(Q8), &mut note).unwrap();
    assert!(reports.is_sorted_by_key(|report| report.bytes_done));
    assert!(reports.is_sorted_by_key(|report| report.layer));
    let last = reports.last().unwrap();
    assert_eq!((last.bytes_done, last.layer), (last.bytes_total, Some(last.n_layers - 1)));
    assert_eq!(last.bytes_total, std::fs::metadata(&out).unwrap().len());
    assert_eq!(names(dir.path()), ["model.lspack"]);
}

#[test]
fn stopping_at_any_report_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model.lspack");
    for last in 1.. {
        let mut n_reports = 0;
        let mut stop = |_| {
            n_reports += 1;
            if n_reports == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match try_pack(&out, &options(Q8), &mut stop) {
            Err(PackError::Stopped) => assert_eq!(names(dir.path()), [""; 0]),
            Err(error) => panic!("{error}"),
            Ok(()) => break,
        }
    }
    assert_eq!(names(dir.path()), ["model.lspack"]);
}

#[test]
fn what_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model.lspack");
    let model = model();
    let attempt = |make: &mut dyn FnMut(usize) -> Result<Columns, std::fmt::Error>| {
        let result = write(&model, &out, &options(Q8), make, &mut go);
        assert_eq!(names(dir.path()), [""; 0]);
        result.unwrap_err()
    };
    let error = attempt(&mut |_| Err(std::fmt::Error));
    assert!(matches!(error, PackError::Columns { layer: 0, .. }), "{error}");
    let error = attempt(&mut |_| Ok(Columns::new(vec![0; 5])));
    assert!(matches!(error, PackError::ColumnsLen { layer: 0, found: 5, .. }), "{error}");
    let mut panics = || attempt(&mut |_| panic!("while columns are made"));
    catch_unwind(AssertUnwindSafe(&mut panics)).unwrap_err();
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_file_is_replaced_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model.lspack");
    std::fs::write(&out, "precious").unwrap();
    let error = try_pack(&out, &options(Q8), &mut go).unwrap_err();
    assert!(matches!(error, PackError::Exists { .. }), "{error}");
    let force = PackOptions { force: true, ..options(Q8) };
    let stopped = try_pack(&out, &force, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(PackError::Stopped)));
    assert_eq!(std::fs::read(&out).unwrap(), b"precious");
    assert_eq!(names(dir.path()), ["model.lspack"]);
    try_pack(&out, &force, &mut go).unwrap();
    ModelFile::open(&out).unwrap().pack().unwrap();
}

#[test]
fn a_name_that_is_taken_meanwhile_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model.lspack");
    let mut take = |_| {
        std::fs::write(&out, "precious").unwrap();
        ControlFlow::Continue(())
    };
    let error = try_pack(&out, &options(Q8), &mut take).unwrap_err();
    assert!(matches!(error, PackError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&out).unwrap(), b"precious");
    assert_eq!(names(dir.path()), ["model.lspack"]);
}

#[test]
fn places_where_no_pack_can_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let force = PackOptions { force: true, ..options(Q8) };
    let error = try_pack(dir.path(), &force, &mut go).unwrap_err();
    assert!(matches!(error, PackError::Exists { .. }), "{error}");
    let error = try_pack(&dir.path().join("absent/model.lspack"), &force, &mut go).unwrap_err();
    assert!(matches!(error, PackError::Io { action: "create", .. }), "{error}");
    let error = try_pack(&fixture("llama.gguf"), &force, &mut go).unwrap_err();
    assert!(matches!(error, PackError::OntoSource { .. }), "{error}");
}

#[test]
fn options_that_do_not_fit_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model.lspack");
    let n_layers = model().config().n_layers;
    let d_ff = model().config().d_ff;
    let twice = [vec![0, 0], shuffled(d_ff - 2, 1)].concat();
    let bad = [
        PackOptions { chunk_kib: 3, ..options(Q8) },
        PackOptions { chunk_kib: 1025, ..options(Q8) },
        PackOptions { chunk_kib: usize::MAX, ..options(Q8) },
        PackOptions { layer_down: vec![Q8; n_layers + 1], ..options(Q8) },
        PackOptions { orders: vec![vec![]; n_layers - 1], ..options(Q8) },
        PackOptions { orders: vec![vec![0]; n_layers], ..options(Q8) },
        PackOptions { orders: vec![twice; n_layers], ..options(Q8) },
    ];
    let sentences: Vec<String> =
        bad.iter().map(|bad| try_pack(&out, bad, &mut go).unwrap_err().to_string()).collect();
    insta::assert_snapshot!(sentences.join("\n"));
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_pack_is_not_packed_again() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first.lspack");
    pack(&model(), &first, &options(Q8));
    let packed = ModelFile::open(&first).unwrap();
    let mut make = |_| Ok::<_, Infallible>(Columns::new(Vec::new()));
    let out = dir.path().join("second.lspack");
    let error = write(&packed, &out, &options(Q8), &mut make, &mut go).unwrap_err();
    assert!(matches!(error, PackError::IsPack { .. }), "{error}");
    assert_eq!(names(dir.path()), ["first.lspack"]);
}

#[test]
fn the_same_model_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    let [a, b] = paths.map(|path| {
        pack(&model(), &path, &options(Q8));
        std::fs::read(path).unwrap()
    });
    assert!(a == b);
}
