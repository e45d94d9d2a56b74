use super::{leanstream, stderr, write};

/// Runs the program, which must fail with `code` and without output; returns its message.
fn failure(args: &[&str], code: i32) -> String {
    let output = leanstream(args);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
    assert!(output.stdout.is_empty(), "{args:?} wrote to standard output");
    assert!(message.starts_with("error: "), "{message}");
    let parts: Vec<&str> = message.lines().next().unwrap().split(": ").collect();
    let is_said_again = |(i, part)| parts[..i].iter().any(|said: &&str| said.contains(part));
    assert!(!parts.iter().copied().enumerate().any(is_said_again), "repeats itself: {message}");
    message
}

/// As `failure` with code 1, where the message is one line.
fn sentence(args: &[&str]) -> String {
    let message = failure(args, 1);
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    for args in [
        &["fly"][..],
        &["run"],
        &["run", "m.gguf", "-p", "a", "--budget", "700XB"],
        &["run", "m.gguf", "-p", "a", "-f", "b"],
        &["run", "m.gguf", "-p", "a", "--raw", "--chat"],
        &["run", "m.gguf", "-p", "a", "--temp", "hot"],
        &["run", "m.gguf", "-p", "a", "--stop", ""],
        &["run", "m.gguf", "-p", "a", "--threads", "0"],
        &["run", "m.gguf", "-p", "a", "--io-depth", "0"],
        &["pack", "m.gguf", "--chunk-kib", "3"],
        &["pack", "m.gguf", "--down", "q1"],
        &["perplexity", "m.gguf"],
        &["bench", "m.gguf", "-r", "0"],
        &["bench", "m.gguf", "-o", "xml"],
        &["bench", "m.gguf", "-o", "csv", "--json"],
        &["bench", "m.gguf", "-p", "0", "-n", "0"],
        &["bench", "m.gguf", "--write-logits", "a.logits"],
        &["bench", "m.gguf", "-f", "a.txt", "-n", "1", "--write-logits", "a.logits"],
        &["bench", "a.gguf", "b.gguf", "-f", "a.txt", "--compare-logits", "a.logits"],
        &["perplexity", "m.gguf", "-f", "text", "-c", "3"],
        &["run", "m.gguf", "-p", "a", "--mode", "roughly"],
        &["run", "m.gguf", "-p", "a", "--device", "abacus"],
        &["run", "m.gguf", "-p", "a", "--gpu-control", "magic"],
    ] {
        failure(args, 2);
    }
}

#[test]
fn a_parameter_out_of_range_is_wrong_usage_and_named() {
    let message = failure(&["run", "m.gguf", "-p", "a", "--top-p", "1.5"], 2);
    assert!(message.contains("top-p is 1.5, but must be above 0, at most 1"), "{message}");
    for (value, shown) in [("-1", "-1"), ("inf", "inf"), ("nan", "NaN")] {
        let message = failure(&["run", "m.gguf", "-p", "a", "--temp", value], 2);
        let expected = format!("temperature is {shown}, but must be a finite number, 0 or more");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn a_system_message_without_a_chat_says_what_to_add() {
    for prompt in [&["-p", "a"][..], &["-f", "no/such.txt"], &[]] {
        let message = failure(&[&["run", "m.gguf", "--system", "s"], prompt].concat(), 2);
        assert!(message.contains("add --chat"), "{message}");
    }
}

#[test]
fn a_missing_model_is_named_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let text = write(dir.path(), "text.txt", b"some text");
    for args in [
        &["inspect", "no/such.gguf"][..],
        &["run", "no/such.gguf", "-p", "a"],
        &["perplexity", "no/such.gguf", "-f", &text],
        &["bench", "no/such.gguf"],
    ] {
        let message = sentence(args);
        assert!(message.contains("no/such.gguf"), "{message}");
        assert!(message.contains("No such file"), "{message}");
    }
}

#[test]
fn a_file_that_is_no_model_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("text.gguf", &b"this is a text and not a model"[..]),
        ("empty.gguf", b""),
        ("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    ] {
        let path = write(dir.path(), name, bytes);
        for args in [&["inspect", &path][..], &["run", &path, "-p", "a"], &["bench", &path]] {
            let message = sentence(args);
            assert!(message.contains(name), "{message}");
            assert_eq!(name == "empty.gguf", message.contains("is empty"), "{message}");
        }
    }
}

#[test]
fn a_folder_without_a_model_says_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let message = sentence(&["inspect", dir.path().to_str().unwrap()]);
    assert!(message.contains("config.json"), "{message}");
}

#[test]
fn a_prompt_file_is_read_before_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let message = sentence(&["run", "no/such.gguf", "-f", "no/such.txt"]);
    assert!(message.contains("no/such.txt"), "{message}");
    let binary = write(dir.path(), "binary", b"ab\xffcd");
    let message = sentence(&["perplexity", "no/such.gguf", "-f", &binary]);
    assert!(message.contains("not UTF-8 text at byte 2"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_model_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let path = path.to_str().unwrap();
    for args in [&["inspect", path][..], &["run", path, "-p", "a"], &["bench", path]] {
        let message = sentence(args);
        assert!(message.contains("pipe.gguf is neither a file nor a folder"), "{message}");
    }
}
