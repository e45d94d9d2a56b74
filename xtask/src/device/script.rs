//! Text of the scripts that run on devices: plain sh, with what busybox and toybox have too.

use super::transport::quoted;

/// Ends every process whose folder is `$1` or lies in it. Nothing that a run starts leaves the run's
/// folder (temporary files are in it too), and this finds what a lost connection left as well.
const REAP: &str = r#"
inside() {
    ls -l /proc/[0-9]*/cwd 2>/dev/null | while read -r line; do
        case $line in
            *"-> $1"|*"-> $1/"*|*"-> $1 (deleted)") line=${line%%/cwd*}; echo "${line##*/}";;
        esac
    done
}
reap() {
    turn=0
    quiet=0
    # Twice, since one that is looked for may start another and end in that moment.
    while [ $quiet -lt 2 ] && [ $turn -lt 30 ]; do
        turn=$((turn + 1))
        found=$(inside "$1")
        if [ -z "$found" ]; then
            quiet=$((quiet + 1))
        else
            quiet=0
            kill -KILL $found 2>/dev/null
            sleep 0.1 2>/dev/null || sleep 1
        fi
    done
}
gone() {
    cd /
    round=0
    reap "$1"
    # What was being copied there may come between.
    while [ -e "$1" ] && [ $round -lt 5 ]; do
        rm -rf "$1" || sleep 1
        round=$((round + 1))
    done
    # Until now a script could still enter the folder.
    reap "$1"
}
"#;

/// Lists the folders of all runs under `base`: name, end of its time limit, time now.
pub fn list(base: &str) -> String {
    format!(
        r#"for run in {}/run-*; do
    [ -d "$run" ] || continue
    until=$(cat "$run/until" 2>/dev/null) || until=0
    echo "run ${{run##*/}} ${{until:-0}} $(date +%s)"
done"#,
        quoted(base)
    )
}

/// Removes the folders of runs, with the processes in them.
pub fn remove(base: &str, names: &[String]) -> String {
    let mut script = format!("{REAP}\nbase=$(cd {} && pwd -P) || exit 0\n", quoted(base));
    for name in names {
        script += &format!("gone \"$base\"/{}\n", quoted(name));
    }
    script + "rmdir \"$base\" 2>/dev/null\ntrue"
}

/// Makes the folder of a run, says where it is, and stays for as long as the driver holds its standard
/// input open: then it ends what runs in the folder, and removes it. That is how a run ends in any
/// case, be it that the driver is done, was killed, or that the connection broke.
pub fn keep(base: &str, name: &str, nonce: &str, limit_s: u64) -> String {
    format!(
        r#"{REAP}
for tool in timeout tar gzip ls wc; do
    command -v $tool >/dev/null || {{ echo "@@{nonce} lacks $tool"; exit 1; }}
done
# Nor does it end for want of somebody to listen.
trap '' HUP INT TERM PIPE
mkdir -p {base} && base=$(cd {base} && pwd -P) && work=$base/{name} && mkdir -m 700 "$work" &&
    echo $(($(date +%s) + {limit_s})) >"$work/until" &&
    mkdir "$work/tmp" "$work/out" || exit 1
echo "@@{nonce} work $work"
read -r word
gone "$work"
rmdir "$base" 2>/dev/null
echo "@@{nonce} gone"
"#,
        base = quoted(base)
    )
}

/// Unpacks what was sent, if all of its `bytes` came.
pub fn unpack(work: &str, file: &str, bytes: u64) -> String {
    format!(
        r#"cd {} || exit 1
have=$(wc -c <{file})
[ "$have" -eq {bytes} ] || {{ echo "@@short: $have of {bytes} bytes came"; exit 1; }}
gzip -dc {file} | tar -xf - || exit 1
[ -f bundle.json ] || {{ echo "@@short: bundle.json is missing"; exit 1; }}
rm {file}"#,
        quoted(work)
    )
}

/// Prints facts of a device, one a line, as `fact NAME=VALUE`.
pub const FACTS: &str = r#"
fact() { [ -n "$2" ] && echo "fact $1=$2"; }
first() { sed -n "s/^$1[[:space:]]*: *//p" /proc/cpuinfo 2>/dev/null | head -n 1; }
exec 2>/dev/null
prop() { command -v getprop >/dev/null && getprop "$1"; }
fact kernel "$(uname -srm)"
fact model "$(tr -d '\000' </proc/device-tree/model 2>/dev/null || prop ro.product.model)"
fact soc "$(prop ro.soc.model || tr '\000' ' ' </proc/device-tree/compatible 2>/dev/null)"
fact platform "$(prop ro.board.platform)"
fact android "$(prop ro.build.version.release)"
fact cpu "$(first 'model name')"
fact cpu_part "$(first 'CPU part')"
fact cores "$(grep -c ^processor /proc/cpuinfo 2>/dev/null)"
fact memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo 2>/dev/null)"
fact page_bytes "$(getconf PAGESIZE 2>/dev/null)"
fact nvidia_driver "$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null)"
fact tegra "$(head -n 1 /etc/nv_tegra_release 2>/dev/null)"
true
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::transport::Transport;

    #[test]
    fn facts_of_this_machine_are_lines() {
        let output = Transport::Local.shell(FACTS).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("fact kernel="), "{text}");
        assert!(text.lines().all(|line| line.starts_with("fact ")), "{text}");
    }
}
