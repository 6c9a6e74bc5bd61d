//! System calls by which the NIC thread sets up itself.
#![allow(unsafe_code)]

/// Start a thread of the library's own: with a name for `ps -L`, with all of the program's signals blocked, and with a
/// short time slice.
///
/// # Errors
/// EAGAIN: no more threads (pthread_create(3)).
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> ::verbs::Result<()> {
    let body = move || {
        memory::deferred_close::deaf(); // handlers of the program must not run on this thread
        ask_for_short_slice();
        run();
    };
    let made = std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(body);
    made.map(|_| ()).map_err(|error| error.raw_os_error().map_or(::verbs::Errno::EAGAIN, ::verbs::Errno))
}

/// `struct sched_attr` of sched_setattr(2), first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Ask for the shortest time slice (100 us, Linux 6.12). A thread that runs for microseconds at a time is then
/// scheduled as soon as it is woken, also where programs spin on all processors. Older kernels ignore or refuse the
/// request. Policy and nice value stay those that the program has: only ordinary threads have slices.
fn ask_for_short_slice() {
    let size = size_of::<SchedAttr>() as u32;
    let mut attr = SchedAttr::default();
    // SAFETY: sched_getattr writes at most `size` bytes at the pointer; 0 means this thread, no flags.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) } == 0;
    if !known || ![libc::SCHED_OTHER as u32, libc::SCHED_BATCH as u32].contains(&attr.policy) {
        return;
    }
    (attr.size, attr.runtime) = (size, 100_000);
    // SAFETY: sched_setattr reads `size` bytes at the pointer; 0 means this thread, no flags.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
    }
}
