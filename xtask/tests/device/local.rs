//! Steps and what becomes of them, on this machine.

use std::fs;

use serde_json::json;

use super::{Farm, LOCAL, not_passed, passing, tests};

#[test]
fn results_come_back_as_json_junit_and_markdown() {
    let doctor = json!({
        "name": "p::doctor",
        "kind": {"is": "doctor"},
        "commands": [["sh", "-c", "echo '{\"kernels\":\"fast\",\"simd\":[\"one\"]}'"]],
    });
    let golden = json!({
        "name": "p::golden",
        "kind": {"is": "golden", "text": "a b"},
        "commands": [["true"], ["echo", "{\"text\":\"a b c\",\"tok_per_s\":5.0}"]],
    });
    let bench = json!({
        "name": "p::bench_tiny",
        "kind": {"is": "bench"},
        "commands": [["echo", "[{\"test\":\"tg8\",\"avg_ts\":7.5,\"stddev_ts\":0.5}]"]],
    });
    let farm = Farm::new(LOCAL, &[doctor, golden, bench, passing("p::it")]);
    let (good, found) = farm.run_one("here");
    assert!(good, "{found}");
    assert_eq!((&found["kernels"], &found["doctor"]["simd"][0]), (&json!("fast"), &json!("one")));
    assert!(found["facts"]["kernel"].as_str().unwrap().starts_with("Linux"));
    assert_eq!(
        found["figures"][1],
        json!({"name": "tiny tg8", "unit": "tok/s", "mean": 7.5, "sd": 0.5})
    );
    assert_eq!(found["suites"].as_array().unwrap().len(), 4);
    let junit = fs::read_to_string(farm.file("out/junit.xml")).unwrap();
    assert!(junit.contains("tests=\"4\" failures=\"0\" errors=\"0\""), "{junit}");
    let report = fs::read_to_string(farm.file("out/report.md")).unwrap();
    assert!(report.contains("| fast | 4 | 0 | 0 |"), "{report}");
    let log = fs::read_to_string(farm.file("out/here/log.txt")).unwrap();
    assert!(log.contains("test a ... ok"), "{log}");
}

#[test]
fn a_failed_test_is_a_result_and_not_tried_again() {
    let failing = tests(
        "p::bad",
        "echo x >>../../count; echo running 1 test; echo test b ... FAILED; \
         echo 'test result: FAILED. 0 passed; 1 failed'; exit 101",
    );
    let farm = Farm::new(LOCAL, &[failing, passing("p::it")]);
    let (good, found) = farm.run_one("here");
    assert!(!good);
    assert_eq!(not_passed(&found), ["b: \"\""]);
    assert_eq!(found["suites"].as_array().unwrap().len(), 2, "the others run all the same");
    assert_eq!(fs::read_to_string(farm.file("count")).unwrap(), "x\n");
    assert_eq!(found["lost"], json!([]));
}

#[test]
fn wrong_answers_and_wrong_kernels_fail() {
    let golden = json!({
        "name": "p::golden",
        "kind": {"is": "golden", "text": "right"},
        "commands": [["echo", "{\"text\":\"wrong\"}"]],
    });
    let doctor = json!({
        "name": "p::doctor",
        "kind": {"is": "doctor"},
        "commands": [["echo", "{\"kernels\":\"scalar\"}"]],
    });
    let cannot = json!({
        "name": "p::cannot",
        "kind": {"is": "golden", "text": "right"},
        "commands": [["false"], ["echo", "{\"text\":\"right\"}"]],
    });
    let inventory = format!("{LOCAL}capabilities = [\"kernels:neon\"]\n");
    let farm = Farm::new(&inventory, &[golden, doctor, cannot]);
    let (good, found) = farm.run_one("here");
    let bad = not_passed(&found);
    assert!(!good && bad.len() == 3, "{bad:?}");
    assert!(bad[0].contains("answered \\\"wrong\\\" instead"), "{bad:?}");
    assert!(bad[1].contains("instead of neon"), "{bad:?}");
    assert!(bad[2].contains("exit code 1"), "{bad:?}");
}

#[test]
fn a_step_that_takes_too_long_is_ended() {
    let inventory = format!("{LOCAL}timeout = 1\n");
    let farm = Farm::new(&inventory, &[tests("p::slow", "sleep 300 & wait"), passing("p::it")]);
    let (good, found) = farm.run_one("here");
    let bad = not_passed(&found);
    assert!(!good && bad.iter().any(|b| b.contains("not done after 1 s")), "{bad:?}");
    assert_eq!(found["lost"], json!([]), "a time limit is no lost connection");
    assert_eq!(found["suites"].as_array().unwrap().len(), 2);
}

#[test]
fn devices_run_side_by_side() {
    // Each waits for the other's sign, so one after the other would never end.
    let meet = "n=0; until [ -e ../../work ] && [ -e ../../work2 ] && \
            [ $(ls -d ../../work*/run-* | wc -l) = 2 ]; do \
            n=$((n+1)); [ $n -lt 100 ] || exit 1; sleep 0.1; done; sleep 0.5; \
        echo running 1 test; echo test a ... ok; echo 'test result: ok. 1 passed'";
    let other = LOCAL.replace("here", "there").replace("/work", "/work2");
    let farm = Farm::new(&format!("{LOCAL}{other}"), &[tests("p::meet", meet)]);
    let (good, run) = farm.run("all");
    assert!(good, "{run}");
    assert_eq!(run["devices"].as_array().unwrap().len(), 2);
}

#[test]
fn a_report_beside_an_earlier_run_names_what_is_worse() {
    let bench = |speed: &str| {
        let rows = format!("[{{\"test\":\"tg8\",\"avg_ts\":{speed},\"stddev_ts\":0.1}}]");
        json!({"name": "p::bench_m", "kind": {"is": "bench"}, "commands": [["echo", rows]]})
    };
    let report = |a: &Farm, b: &Farm| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["device", "report"]).arg(a.file("out"));
        let output = command.arg("--against").arg(b.file("out/run.json")).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (fast, slow) = (Farm::new(LOCAL, &[bench("9.0")]), Farm::new(LOCAL, &[bench("5.0")]));
    assert!(fast.run("here").0 && slow.run("here").0);
    assert_eq!(report(&fast, &slow), (true, String::new()));
    let (good, message) = report(&slow, &fast);
    assert!(!good && message.contains("m tg8, 9.00 tok/s before, 5.00 tok/s now"), "{message}");
}
