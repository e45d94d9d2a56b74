//! SIGBUS: what the system sends when a mapped model file ends before the bytes that are read, or
//! its disk fails. Nothing can be computed from there on; what remains is to say so.

#![allow(unsafe_code)]

const MESSAGE: &[u8] = b"error: a model file was cut or could not be read while it was in use \
    (SIGBUS); restore the file and run again\n";

/// From here on SIGBUS ends the program with a sentence and exit code 1.
pub fn install() {
    // SAFETY: all zeros is a valid `sigaction`: no flags, an empty mask, the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = end as extern "C" fn(libc::c_int) as usize;
    // The other stack, where a thread has one, leaves room even if its own is used up.
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: `action` is initialised and outlives the call, the old action is not asked for, and
    // `end` calls nothing that a signal handler must not. A refusal leaves the default action,
    // which ends the program too.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
}

extern "C" fn end(_signal: libc::c_int) {
    // SAFETY: `write` is async-signal-safe, and pointer and length are those of a constant.
    unsafe { libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
    // SAFETY: `_exit` is async-signal-safe and runs no code of this program.
    unsafe { libc::_exit(1) }
}
