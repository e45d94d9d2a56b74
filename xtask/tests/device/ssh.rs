//! A secure shell's way to a device: an sshd of the test's own, on this machine.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Farm, passing, processes_in, tests};

const SSHD: &str = "/usr/sbin/sshd";
const BOARD: &str = "[[device]]\nname = \"board\"\ntransport = \"ssh\"\nhost = \"127.0.0.1\"\n\
    port = {port}\nkey = \"{dir}/key\"\nknown_hosts = \"{dir}/known\"\nwork = \"{dir}/work\"\npause = 0\n";

/// A farm with one board, and the server that is its way in.
pub struct Server {
    pub farm: Farm,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn key(path: &Path) {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path);
    assert!(command.status().unwrap().success());
}

/// Starts a server; `None`, and a line that says so, where there is no sshd.
pub fn server(steps: &[Value]) -> Option<Server> {
    if !Path::new(SSHD).exists() {
        // Past the test harness, which keeps what passing tests print to itself.
        let why = format!("SKIPPED: {SSHD} is not there (apt-get install openssh-server)\n");
        std::io::stderr().write_all(why.as_bytes()).unwrap();
        return None;
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let farm = Farm::new(&BOARD.replace("{port}", &port.to_string()), steps);
    let file = |name: &str| farm.file(name).to_str().unwrap().to_owned();
    key(&farm.file("host"));
    key(&farm.file("key"));
    key(&farm.file("stranger"));
    fs::copy(file("key.pub"), file("authorized")).unwrap();
    let public = fs::read_to_string(file("host.pub")).unwrap();
    fs::write(file("known"), format!("[127.0.0.1]:{port} {public}")).unwrap();
    let config = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nPidFile none\nMaxStartups 50\n\
         Subsystem sftp internal-sftp\n",
        file("host"),
        file("authorized")
    );
    fs::write(file("sshd_config"), config).unwrap();
    // Started as root, it insists on this folder.
    let _ = fs::create_dir("/run/sshd");
    let log = fs::File::create(farm.file("sshd.log")).unwrap();
    let child = Command::new(SSHD)
        .args(["-D", "-e", "-f", &file("sshd_config")])
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let server = Server { farm, child };
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        let log = fs::read_to_string(server.farm.file("sshd.log")).unwrap();
        assert!(Instant::now() < deadline, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(server)
}

#[test]
fn a_board_is_sent_to_run_and_fetched_from() {
    let doctor = serde_json::json!({
        "name": "p::doctor",
        "kind": {"is": "doctor"},
        "commands": [["sh", "-c", "echo \"{\\\"kernels\\\":\\\"it's\\\"}\""]],
    });
    let Some(server) = server(&[doctor, passing("p::it")]) else { return };
    let (good, found) = server.farm.run_one("board");
    let log = fs::read_to_string(server.farm.file("out/board/log.txt")).unwrap();
    assert!(good, "{found}\n{log}");
    assert_eq!(found["kernels"], "it's");
    assert_eq!(found["lost"], serde_json::json!([]));
}

#[test]
fn a_key_that_is_not_known_is_refused_at_once() {
    let Some(server) = server(&[passing("p::it")]) else { return };
    let inventory = fs::read_to_string(server.farm.file("devices.toml")).unwrap();
    fs::write(server.farm.file("devices.toml"), inventory.replace("/key\"", "/stranger\""))
        .unwrap();
    let (good, found) = server.farm.run_one("board");
    assert!(!good && found["error"].as_str().unwrap().contains("Permission denied"), "{found}");
    assert_eq!(found["lost"], serde_json::json!([]));

    // Nor does the driver speak to a board that is another than it was.
    fs::write(server.farm.file("devices.toml"), inventory).unwrap();
    let known = fs::read_to_string(server.farm.file("known")).unwrap();
    let other = fs::read_to_string(server.farm.file("stranger.pub")).unwrap();
    let name = known.split(' ').next().unwrap();
    fs::write(server.farm.file("known"), format!("{name} {other}")).unwrap();
    fs::remove_dir_all(server.farm.file("out")).unwrap();
    let (good, found) = server.farm.run_one("board");
    assert!(!good && found["error"].as_str().unwrap().contains("Host key verification"), "{found}");
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    // The first time, the step takes all connections down; the next time it finds the sign of that.
    let script = "sign=$(dirname $(dirname $PWD))/sign; if [ -e $sign ]; then \
        echo running 1 test; echo test a ... ok; echo 'test result: ok. 1 passed'; \
        else touch $sign; sleep 60; fi";
    let Some(server) = server(&[passing("p::first"), tests("p::it", script)]) else { return };
    let child = server.farm.driver("board").spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !server.farm.file("sign").exists() {
        assert!(Instant::now() < deadline, "the step never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The clients of this farm are the connections: each names the farm's key.
    let clients = processes_in(server.farm.dir.path()).into_iter();
    for (pid, _) in clients.filter(|(_, command)| command.starts_with("ssh ")) {
        let _ = Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status();
    }
    let output = child.wait_with_output().unwrap();
    let run = fs::read_to_string(server.farm.file("out/run.json")).unwrap();
    let run: Value = serde_json::from_str(&run).unwrap();
    let found = &run["devices"][0];
    assert!(output.status.success(), "{found}");
    assert_eq!(found["lost"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found["suites"].as_array().unwrap().len(), 2);
    server.farm.assert_nothing_is_left();
}
