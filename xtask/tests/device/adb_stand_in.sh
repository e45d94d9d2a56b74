#!/bin/sh
# Stands in for adb: push, shell and pull on this machine, with the faults that the file `fault` beside it
# names. A fault that is used up is removed from the file first.
here=$(dirname "$0")
fault=$(cat "$here/fault" 2>/dev/null)
used_up() { : >"$here/fault"; }
[ "$1" = -s ] && { [ "$2" = phone ] || { echo "error: device '$2' not found" >&2; exit 1; }; shift 2; }
echo "$1" >>"$here/calls"
case $fault in
    gone) echo "error: device 'phone' not found" >&2; exit 1;;
    gone_once) used_up; echo "error: device offline" >&2; exit 1;;
    unauthorized) echo "error: device unauthorized." >&2; exit 1;;
esac
case $1 in
    push)
        case $fault in
            full) echo "adb: error: failed to copy: remote No space left on device" >&2; exit 1;;
            short) used_up; head -c 100 "$2" >"$3"; echo "1 file pushed"; exit 0;;
        esac
        cp "$2" "$3" && echo "$2: 1 file pushed.";;
    pull)
        [ "$fault" = no_pull ] && { used_up; echo "adb: error: remote closed" >&2; exit 1; }
        cp "$2" "$3";;
    shell)
        case $fault in
            code_0) sh -c "$2"; exit 0;;
            code_1) sh -c "$2"; exit 1;;
            terminal) sh -c "$2" 2>&1 | sed -u 's/$/\r/'; exit 0;;
            # As when the cable is pulled: all that runs over it ends, here and there.
            vanish) case $2 in *"echo running"*)
                    used_up
                    for pid in $(cat "$here/shells"); do kill -KILL "$pid" 2>/dev/null; done
                    exit 1;;
                esac;;
            # The device takes commands and answers nothing.
            hang) case $2 in *"echo running"*) used_up; exec sleep 60 >/dev/null;; esac;;
            full_there) case $2 in *"tar -xf"*)
                    echo "tar: write error: No space left on device"
                    exec sh -c "$(echo "$2" | sed 's/^gzip.*/exit 1/')";;
                esac;;
        esac
        echo $$ >>"$here/shells"
        exec sh -c "$2";;
    *) echo "adb: unknown command $1" >&2; exit 1;;
esac
