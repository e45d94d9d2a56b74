use super::{leanstream, stdout};

fn help(args: &[&str]) -> String {
    let output = leanstream(args);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    stdout(&output)
}

#[test]
fn help_of_the_program() {
    insta::assert_snapshot!(help(&["--help"]));
}

#[test]
fn help_of_inspect() {
    insta::assert_snapshot!(help(&["inspect", "--help"]));
}

#[test]
fn help_of_pack() {
    insta::assert_snapshot!(help(&["pack", "--help"]));
}

#[test]
fn help_of_run() {
    insta::assert_snapshot!(help(&["run", "--help"]));
}

#[test]
fn help_of_perplexity() {
    insta::assert_snapshot!(help(&["perplexity", "--help"]));
}

#[test]
fn help_of_calibrate() {
    insta::assert_snapshot!(help(&["calibrate", "--help"]));
}

#[test]
fn help_of_bench() {
    insta::assert_snapshot!(help(&["bench", "--help"]));
}

#[test]
fn help_of_doctor() {
    insta::assert_snapshot!(help(&["doctor", "--help"]));
}

#[test]
fn every_command_shows_examples() {
    for command in ["inspect", "pack", "run", "perplexity", "bench", "doctor"] {
        assert!(help(&[command, "--help"]).contains("Examples:"), "{command}");
    }
}
